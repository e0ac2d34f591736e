package hub

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"apr/internal/fault"
)

// Token is a secret that is never shown: not when printed by any verb of fmt, as JSON or text, in a log, or
// inside another value (it holds a pointer, which is all that reflection finds). The zero Token is none.
type Token struct{ secret *string }

// NewToken makes a token of s, without blanks around it; an empty s is no token. Characters that cannot stand in a
// header are a fault of kind Usage that does not repeat them.
func NewToken(s string) (Token, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return Token{}, nil
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Token{}, fault.New(fault.Usage, "the token holds a blank, control or non-ASCII character").WithID("E-HUB-001")
	}
	return Token{&s}, nil
}

// IsSet reports whether there is a token.
func (t Token) IsSet() bool { return t.secret != nil }

// String says whether there is a token.
func (t Token) String() string {
	if t.IsSet() {
		return "[token]"
	}
	return "[no token]"
}

// GoString is String.
func (t Token) GoString() string { return t.String() }

// Format prints String, whatever the verb: %d would print the fields of a struct.
func (t Token) Format(s fmt.State, _ rune) {
	_, _ = io.WriteString(s, t.String()) // fmt takes no error
}

// MarshalJSON writes String.
func (t Token) MarshalJSON() ([]byte, error) { return []byte(`"` + t.String() + `"`), nil }

// MarshalText writes String.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// LogValue is String.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }
