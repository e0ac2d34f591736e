package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"golang.org/x/term"
)

// Page is stdout as text for people.
type Page struct {
	w        io.Writer
	color    bool
	width    int  // columns; 0 = unlimited
	terminal bool // somebody looks at it
}

// newPage makes a page that writes to w; dst is the stream behind it, asked for its width.
func newPage(w, dst io.Writer, env map[string]string) *Page {
	p := &Page{w: w, terminal: isTerminal(dst)}
	if n, err := strconv.Atoi(env["COLUMNS"]); err == nil && n > 0 {
		p.width = n
	} else if f, ok := dst.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			p.width = n
		}
	}
	return p
}

// Columns returns how wide the page is; 0: unlimited.
func (p *Page) Columns() int { return p.width }

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// wantsColor decides on colours: --color, then NO_COLOR, then CLICOLOR_FORCE, then whether w is a terminal.
func wantsColor(mode string, w io.Writer, env map[string]string) bool {
	switch {
	case mode == "always":
		return true
	case mode == "never" || env["NO_COLOR"] != "":
		return false
	case env["CLICOLOR_FORCE"] != "" && env["CLICOLOR_FORCE"] != "0":
		return true
	}
	return isTerminal(w) && env["TERM"] != "dumb"
}

// Printf prints to the page; arguments are escaped, but for line ends and tabs. A failed write is reported when the page is
// flushed.
func (p *Page) Printf(format string, args ...any) { fmt.Fprintf(p.w, format, harmlessArgs(args)...) }

// Raw prints text that is itself the result, such as that of decoded ids: as it is, escaped only for a terminal.
func (p *Page) Raw(text string) {
	if p.terminal {
		text = escapeText(text)
	}
	_, _ = io.WriteString(p.w, text) // reported when the page is flushed
}

// Bold returns s in bold where colours are wanted.
func (p *Page) Bold(s string) Styled { return p.style(s, lipgloss.NewStyle().Bold(true)) }

// Good colours a verdict that is a success.
func (p *Page) Good(s string) Styled {
	return p.style(s, lipgloss.NewStyle().Foreground(lipgloss.Green))
}

// Bad colours a verdict that is a failure.
func (p *Page) Bad(s string) Styled { return p.style(s, lipgloss.NewStyle().Foreground(lipgloss.Red)) }

func (p *Page) style(s string, style lipgloss.Style) Styled {
	s = escapeText(s)
	if !p.color {
		return Styled(s)
	}
	return Styled(style.Render(s))
}

// Pairs prints "key: value" lines with the values aligned; pairs with an empty value are left out. Below the key
// "next" are commands, as the user calls the program.
func (p *Page) Pairs(kv ...string) {
	width := 0
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i+1] != "" {
			width = max(width, lipgloss.Width(Clean(kv[i])))
		}
	}
	next := false
	for i := 0; i+1 < len(kv); i += 2 {
		if key := Clean(kv[i]); kv[i+1] != "" {
			value := Clean(kv[i+1])
			if next = key == "next" || next && key == ""; next {
				value = AsCalled(value)
			}
			p.Printf("%s%s  %s\n", p.Bold(key), strings.Repeat(" ", width-lipgloss.Width(key)), value)
		}
	}
}

// Wrapped is Pairs with values wrapped to the page, and without commands.
func (p *Page) Wrapped(kv ...string) {
	width, room := 0, 0
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i+1] != "" {
			width = max(width, lipgloss.Width(Clean(kv[i])))
		}
	}
	if p.width > 0 {
		room = max(20, p.width-width-2)
	}
	for i := 0; i+1 < len(kv); i += 2 {
		key := Clean(kv[i])
		for line := range strings.SplitSeq(Wrap(Clean(kv[i+1]), room), "\n") {
			if line != "" {
				p.Printf("%s%s  %s\n", p.Bold(key), strings.Repeat(" ", width-lipgloss.Width(key)), line)
			}
			key = ""
		}
	}
}

// Table prints rows under headers; a header beginning with ">" aligns its column to the right. Headers and
// cells are cleaned of control characters. A table wider than the page is wrapped.
func (p *Page) Table(headers []string, rows [][]string) {
	right := make([]bool, len(headers))
	heads := make([]string, len(headers))
	for i, h := range headers {
		h, right[i] = strings.CutPrefix(h, ">")
		heads[i] = Clean(h)
	}
	t := table.New().Headers(heads...).Border(lipgloss.HiddenBorder()).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderHeader(false).BorderColumn(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := lipgloss.NewStyle()
			if col < len(headers)-1 {
				s = s.PaddingRight(2)
			}
			if col < len(right) && right[col] {
				s = s.Align(lipgloss.Right)
			}
			if row == table.HeaderRow && p.color {
				s = s.Bold(true)
			}
			return s
		})
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = Clean(c)
		}
		t.Row(cells...)
	}
	if !p.Fits(headers, rows) {
		t.Width(p.width)
	}
	for line := range strings.Lines(t.Render() + "\n") {
		p.Printf("%s\n", Styled(strings.TrimRight(line, " \n")))
	}
}

// Fits reports whether a table needs no wrapping.
func (p *Page) Fits(headers []string, rows [][]string) bool {
	total := -2 // behind the last column
	for i, h := range headers {
		width := lipgloss.Width(Clean(strings.TrimPrefix(h, ">")))
		for _, row := range rows {
			if i < len(row) {
				width = max(width, lipgloss.Width(Clean(row[i])))
			}
		}
		total += width + 2
	}
	return p.width <= 0 || total <= p.width
}

// Clean returns s, or its quoted form when it holds control characters or invalid UTF-8: names in files may hold
// terminal escapes.
func Clean(s string) string {
	for _, r := range s {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// Bytes prints a size in decimal units: 13.7 MB.
func Bytes(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1000, 0
	for f >= 999.95 && i+1 < len(units) {
		f, i = f/1000, i+1
	}
	return fmt.Sprintf("%.1f %cB", f, units[i])
}

// Count prints an integer with thousands separated by commas: 6,854,912.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if neg {
		return "-" + s
	}
	return s
}
