// Package fault gives an error the facts a user needs: which file, where in it, what would be right, and the
// process exit code that belongs to it.
//
// Errors of apr have one of two kinds. The file, the flag or the machine is wrong: that is a *fault.Error. Or the
// program is wrong: that is a panic with a reason, for broken internal preconditions only.
package fault

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Kind classifies a fault; its value is the process exit code.
type Kind int

// The kinds, with the exit codes of the command line.
const (
	Other       Kind = 1  // other failure
	Usage       Kind = 2  // wrong flag, argument, configuration key or environment value
	NotFound    Kind = 3  // file or model not found, or not a file
	Format      Kind = 4  // bad or unsupported format
	Invalid     Kind = 5  // validation failed: threshold, content, overwrite refused
	Load        Kind = 6  // model could not be loaded: missing tensor, shape, tokenizer
	IO          Kind = 7  // input/output, disk full
	Inference   Kind = 8  // inference failed
	Unavailable Kind = 9  // feature or device not available
	Network     Kind = 10 // network
	HTTP404     Kind = 11 // remote file does not exist
	Stopped     Kind = 20 // stopped by a signal, resumable
	Diverged    Kind = 21 // three steps in a row not finite, or with a loss far above those before
	Hung        Kind = 22 // no progress
	Memory      Kind = 23 // out of memory, predicted or met
	UnsafePath  Kind = 24 // path leaves its root
	Vacuous     Kind = 25 // vacuous or invalid contract
)

var names = map[Kind]string{
	Other: "other", Usage: "usage", NotFound: "not_found", Format: "format", Invalid: "invalid", Load: "load",
	IO: "io", Inference: "inference", Unavailable: "unavailable", Network: "network", HTTP404: "http_404",
	Stopped: "stopped", Diverged: "diverged", Hung: "hung", Memory: "memory", UnsafePath: "unsafe_path",
	Vacuous: "vacuous",
}

// String returns the kind's name as it stands in JSON output.
func (k Kind) String() string {
	if s, ok := names[k]; ok {
		return s
	}
	return fmt.Sprintf("kind(%d)", int(k))
}

// Error is a failure the user can act on.
type Error struct {
	Kind  Kind
	Path  string // file, flag or variable; empty if none
	Place string // where in it: `tensor "x"`, "line 3", "offset 64"; empty if none
	Msg   string // what is wrong
	Hint  string // what would be right; empty if nothing helps
	ID    string // stable identifier such as E-APR-012; empty if none
	Err   error  // cause, printed after the message; may be nil

	wrapped error // cause already part of Msg
}

// Error renders "path: place: message [id]: cause".
func (e *Error) Error() string {
	var parts []string
	for _, s := range []string{e.Path, e.Place, e.Msg} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	s := strings.Join(parts, ": ")
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.ID != "" {
		s += " [" + e.ID + "]"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e.Err != nil {
		return e.Err
	}
	return e.wrapped
}

// Plural counts things in a message: 1 token, 2 tokens.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// New returns a fault of kind k with a formatted message (fmt.Errorf rules: %w keeps the cause).
func New(k Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: k, Msg: err.Error(), wrapped: errors.Unwrap(err)}
}

// In returns a fault of kind k about path.
func In(k Kind, path, format string, args ...any) *Error {
	e := New(k, format, args...)
	e.Path = path
	return e
}

// At sets the place in the file and returns e.
func (e *Error) At(format string, args ...any) *Error {
	e.Place = fmt.Sprintf(format, args...)
	return e
}

// WithHint sets what would be right and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithID sets the stable identifier and returns e.
func (e *Error) WithID(id string) *Error { e.ID = id; return e }

// Because sets the cause and returns e.
func (e *Error) Because(err error) *Error { e.Err = err; return e }

// KindOf returns the kind of the first *Error in err's chain, Other for any other error, and 0 for nil.
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Other
}

// ExitCode returns the process exit code of err: 0 for nil.
func ExitCode(err error) int { return int(KindOf(err)) }

// Nearest returns the candidate that word is likely a typo or a part of, else "": one that differs by underscores, hyphens, dots or
// spaces alone; one that differs by a letter, or by two that changed places; one that begins as the other does, of the
// nearest length; the closest by edit distance, if that is at most a third of the word.
func Nearest(word string, candidates []string) string {
	word = strings.ToLower(word)
	for _, c := range candidates {
		if sameLetters(word, strings.ToLower(c)) {
			return c
		}
	}
	near, least := "", max(2, len(word)/3+1)
	part, longer := "", math.MaxInt
	for _, c := range candidates {
		l := strings.ToLower(c)
		if d := distance(word, l); d < least {
			near, least = c, d
		}
		begins := len(l) >= 2 && strings.HasPrefix(word, l) || len(word) >= 3 && strings.HasPrefix(l, word)
		if d := max(len(l)-len(word), len(word)-len(l)); begins && d < longer {
			part, longer = c, d
		}
	}
	if part != "" && least > 1 {
		return part
	}
	return near
}

// sameLetters reports whether words differ by what separates their parts alone, as q4km and q4_k_m do.
func sameLetters(a, b string) bool {
	for {
		a, b = strings.TrimLeft(a, "_-. "), strings.TrimLeft(b, "_-. ")
		if a == "" || b == "" || a[0] != b[0] {
			return a == b
		}
		a, b = a[1:], b[1:]
	}
}

// distance is the least number of letters to insert, remove, change or swap with their neighbour that makes a of b, no letter
// twice: the optimal string alignment of Damerau and Levenshtein.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1) // of the first i-2 and i-1 letters of a
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := row[j-1]
			if a[i-1] != b[j-1] {
				cost++
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cost = min(cost, before[j-2]+1)
			}
			next[j] = min(cost, row[j]+1, next[j-1]+1)
		}
		before, row = row, next
	}
	return row[len(b)]
}
