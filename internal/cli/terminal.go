package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names of files, tensors and runs come from strangers and may hold terminal escapes. All text for people passes one of
// three doors: a [Page] (stdout), textWriter (messages and plain progress on stderr) and plainHandler (the log).

// dangerous reports whether r does something to a terminal instead of standing in it: C0 and C1 control characters,
// bidirectional overrides and other invisible format characters, separators of lines and paragraphs, unassigned runes.
func dangerous(r rune) bool { return !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r) }

// Escape returns s on one line, every dangerous rune as Go writes it: \x1b, \u202e, \n. Bytes that are not UTF-8 are \xff.
func Escape(s string) string { return escape(s, "") }

// escapeText is Escape for text of several lines: line ends and tabs stay.
func escapeText(s string) string { return escape(s, "\n\t") }

func escape(s, keep string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || dangerous(r) }) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case dangerous(r) && !strings.ContainsRune(keep, r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// textWriter escapes the text of several lines on its way to a terminal. A rune must not be split over two writes.
type textWriter struct{ w io.Writer }

// Write writes p escaped; on success it reports the length of p.
func (t textWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(t.w, escapeText(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// jsonWriter writes JSON with the dangerous runes that encoding/json leaves as they are (DEL, C1, bidirectional overrides)
// as \uXXXX: the same values, harmless on a terminal. Such runes only occur within strings.
type jsonWriter struct{ w io.Writer }

// Write writes p; on success it reports the length of p.
func (j jsonWriter) Write(p []byte) (int, error) {
	if _, err := j.w.Write(jsonText(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func jsonText(p []byte) []byte {
	bad := func(r rune) bool { return r != '\n' && dangerous(r) }
	s := string(p)
	if !strings.ContainsFunc(s, bad) {
		return p
	}
	var b []byte
	for _, r := range s {
		switch {
		case !bad(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff: // a surrogate pair
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}

// Styled is text for a terminal that holds escapes of this package, around text that is escaped.
type Styled string

// shown is an argument of Printf whose text is escaped, whatever the verb.
type shown struct{ v any }

// Format prints the value as the verb says, and escapes that.
func (s shown) Format(f fmt.State, verb rune) {
	_, _ = io.WriteString(f, escapeText(fmt.Sprintf(fmt.FormatString(f, verb), s.v))) // a fmt.State keeps no errors
}

// harmlessArgs wraps the arguments of Printf that may hold foreign text.
func harmlessArgs(args []any) []any {
	all := make([]any, len(args))
	for i, a := range args {
		all[i] = a
		if _, ok := a.(Styled); ok || a == nil {
			continue
		}
		_, formats := a.(interface{ String() string })
		if k := reflect.TypeOf(a).Kind(); formats || k < reflect.Bool || k > reflect.Complex128 {
			all[i] = shown{a}
		}
	}
	return all
}

// plainHandler hands slog records on as one line of escaped text: message and key=value. The handler behind it only
// places and colours time, level and that line.
type plainHandler struct {
	slog.Handler
	before string // attributes of With, as text
	group  string // prefix of keys
}

// Handle prints the record.
func (h plainHandler) Handle(ctx context.Context, r slog.Record) error {
	line := Escape(AsCalled(r.Message)) + h.before
	r.Attrs(func(a slog.Attr) bool {
		line += attribute(h.group, a)
		return true
	})
	return h.Handler.Handle(ctx, slog.NewRecord(r.Time, r.Level, line, r.PC))
}

// WithAttrs adds attributes to all records.
func (h plainHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.before += attribute(h.group, a)
	}
	return h
}

// WithGroup puts a name before the keys that follow.
func (h plainHandler) WithGroup(name string) slog.Handler {
	h.group += name + "."
	return h
}

// attribute renders " key=value", the value quoted where it is not one plain word.
func attribute(group string, a slog.Attr) string {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		text := ""
		for _, member := range v.Group() {
			text += attribute(group+a.Key+".", member)
		}
		return text
	}
	s := v.String()
	plain := s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r == utf8.RuneError || r == '"' || r == '=' || unicode.IsSpace(r) || dangerous(r)
	})
	if !plain {
		s = strconv.Quote(s)
	}
	return " " + Escape(group+a.Key) + "=" + s
}
