package falsify

import (
	"errors"
	"fmt"
	"strings"

	"apr/internal/fault"
)

// Judged is one file after validation.
type Judged struct {
	ID         string      `json:"id"`
	File       string      `json:"file"`
	Version    string      `json:"version"`
	Kind       string      `json:"kind"` // empty when the file is no contract
	Claims     int         `json:"claims"`
	Valid      bool        `json:"valid"`
	Violations []Violation `json:"violations"`
}

// Report is the outcome of a validation.
type Report struct {
	Rules     string   `json:"rules"`
	Contracts []Judged `json:"contracts"`
	Errors    int      `json:"errors"`
	Warnings  int      `json:"warnings"`
}

// ParseRule is the rule of files that are no contract at all.
const ParseRule = "PARSE"

// ValidatePaths judges the files and the directories' contracts. A file that cannot be parsed is one violation of
// ParseRule and does not keep the others from being judged. A missing path and an empty directory are errors.
func ValidatePaths(paths []string, rules Rules) (*Report, error) {
	r := &Report{Rules: [...]string{"earlier", "later", "ours"}[rules]}
	var files []string
	for _, p := range paths {
		more, err := Files(p)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	trees := map[string]*Tree{}
	for _, file := range files {
		j, err := judgeFile(file, rules, trees)
		if err != nil {
			return nil, err
		}
		for _, v := range j.Violations {
			if v.Severity == Error {
				r.Errors++
				j.Valid = false
			} else {
				r.Warnings++
			}
		}
		r.Contracts = append(r.Contracts, j)
	}
	return r, nil
}

// judgeFile judges one file. trees keeps what was read of each source tree.
func judgeFile(file string, rules Rules, trees map[string]*Tree) (Judged, error) {
	j := Judged{File: file, Valid: true, Violations: []Violation{}}
	doc, err := Read(file, rules)
	if fault.KindOf(err) == fault.Vacuous {
		j.Violations = append(j.Violations, parseViolation(file, err))
		return j, nil
	}
	if err != nil {
		return j, err
	}
	var tree *Tree
	if rules >= Ours {
		if tree = FindTree(file); tree != nil {
			if trees[tree.Root] == nil {
				trees[tree.Root] = tree
			}
			tree = trees[tree.Root]
		}
	}
	c := doc.Contract
	j.ID, j.Version, j.Kind, j.Claims = c.ID, c.Metadata.Version, c.Kind(), c.Claims()
	j.Violations = append(j.Violations, Validate(doc, tree)...)
	return j, nil
}

// parseViolation is a parse error as a violation.
func parseViolation(file string, err error) Violation {
	v := Violation{Severity: Error, Rule: ParseRule, Message: err.Error(), File: file}
	var f *fault.Error
	if errors.As(err, &f) {
		v.Message = f.Msg
		if n, _ := fmt.Sscanf(f.Place, "line %d, column %d", &v.Line, &v.Column); n == 0 {
			v.Line = 0
		}
	}
	return v
}

// String renders the lines of all violations, an empty line, and the counts.
func (r *Report) String() string {
	var b strings.Builder
	for _, c := range r.Contracts {
		for _, v := range c.Violations {
			fmt.Fprintln(&b, v)
		}
	}
	fmt.Fprintf(&b, "\n%d error(s), %d warning(s)\n", r.Errors, r.Warnings)
	switch n := len(r.Contracts); {
	case r.Errors > 0:
	case n == 1:
		b.WriteString("Contract is valid.\n")
	default:
		fmt.Fprintf(&b, "All %d contracts are valid.\n", n)
	}
	return b.String()
}

// Err is nil for a report without errors, else a fault of kind Vacuous about the first file with one.
func (r *Report) Err() error {
	invalid, first := 0, ""
	for _, c := range r.Contracts {
		if !c.Valid {
			if invalid++; first == "" {
				first = c.File
			}
		}
	}
	switch {
	case invalid == 0 && len(r.Contracts) > 0:
		return nil
	case invalid == 0:
		return fault.New(fault.Vacuous, "no contract found").WithID("E-CONTRACT-002")
	case len(r.Contracts) == 1:
		return fault.In(fault.Vacuous, first, "contract has %d validation error(s)", r.Errors).WithID("E-CONTRACT-003")
	}
	return fault.In(fault.Vacuous, first, "%d of %d contracts are invalid, with %d error(s)", invalid, len(r.Contracts), r.Errors).WithID("E-CONTRACT-003")
}
