package cli

import (
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"charm.land/lipgloss/v2"
	"golang.org/x/term"
)

// Columns a line is made for where no terminal says how wide it is.
const (
	unknownColumns = 80  // of a terminal
	logColumns     = 120 // of a log
)

// screen is a terminal whose last line may change. What others write to it, such as the log, goes above that line.
type screen struct {
	w    io.Writer
	mu   sync.Mutex
	line string // on the terminal now, without a line end; empty: none
}

// clearLine moves to the start of the line and erases it.
const clearLine = "\r\x1b[K"

// Write writes whole lines above the changing line.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := string(p)
	if s.line != "" {
		text = clearLine + text
		if strings.HasSuffix(text, "\n") {
			text += s.line
		} else {
			s.line = ""
		}
	}
	if _, err := io.WriteString(s.w, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// show replaces the changing line; empty removes it.
func (s *screen) show(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if line == s.line {
		return
	}
	_, _ = io.WriteString(s.w, clearLine+line) // progress that cannot be written is no reason to stop
	s.line = line
}

// Live is one line on stderr that says what is going on: rewritten in place on a terminal, nothing elsewhere. The nil Live shows
// nothing. Safe for concurrent use.
type Live struct {
	env  *Env
	mu   sync.Mutex
	last time.Time
	next func(columns int) string // not shown yet
}

// liveEvery is the pause between two states of the line: a person cannot read more.
const liveEvery = 100 * time.Millisecond

// Live begins a line that changes. It is nil where there is no terminal, or no progress is wanted.
func (e *Env) Live() *Live {
	if e.progress != progressBars || e.screen == nil {
		return nil
	}
	return &Live{env: e}
}

// Show makes render the line; render gets the width of the terminal and returns at most that many columns.
func (l *Live) Show(render func(columns int) string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next = render; time.Since(l.last) < liveEvery {
		return
	}
	l.draw()
}

func (l *Live) draw() {
	if l.next == nil {
		return
	}
	columns := l.env.Columns()
	l.env.screen.show(Fit(Escape(l.next(columns)), columns))
	l.last, l.next = time.Now(), nil
}

// Clear removes the line.
func (l *Live) Clear() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.last = nil, time.Time{}
	l.env.screen.show("")
}

// Keep shows the line's newest state, which stays; the next one goes below it.
func (l *Live) Keep() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw()
	l.last = time.Time{}
	s := l.env.screen
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != "" {
		_, _ = io.WriteString(s.w, "\n") // as in show
		s.line = ""
	}
}

// Columns returns how wide lines on stderr may be.
func (e *Env) Columns() int {
	if n, err := strconv.Atoi(e.env["COLUMNS"]); err == nil && n > 0 {
		return n
	}
	if e.screen == nil {
		return logColumns
	}
	if f, ok := e.screen.w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return unknownColumns
}

// Say prints a line for people on stderr, and to the log where that is JSON. --quiet leaves it out.
func (e *Env) Say(line string) { e.say(line, Escape(line)) }

// LogsProgress reports whether the log says how far long operations are: there is no terminal, and progress is wanted.
func (e *Env) LogsProgress() bool { return e.progress == progressLogged }

// Explain prints sentences as Say does, wrapped to the width of the terminal.
func (e *Env) Explain(text string) {
	text = AsCalled(text)
	e.say(text, escapeText(Wrap(text, e.Columns())))
}

func (e *Env) say(text, shown string) {
	switch {
	case e.Quiet:
	case e.jsonLog:
		e.Log.Info(text)
	default:
		_, _ = io.WriteString(e.Err, shown+"\n") // as in show
	}
}

// Fit cuts s to at most so many columns, the last of which is then "…".
func Fit(s string, columns int) string {
	if columns <= 0 || lipgloss.Width(s) <= columns {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && lipgloss.Width(string(runes)) > columns-1 {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}

// FitEnd cuts s to at most so many columns; what is left out is its beginning, as of a path.
func FitEnd(s string, columns int) string {
	if columns <= 0 || lipgloss.Width(s) <= columns {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && lipgloss.Width(string(runes)) > columns-1 {
		runes = runes[1:]
	}
	return "…" + string(runes)
}

// Wrap breaks text into lines of at most so many columns, between words; 0: no limit.
func Wrap(text string, columns int) string {
	var b strings.Builder
	at := 0
	for i, word := range strings.Fields(text) {
		n := lipgloss.Width(word)
		switch {
		case i == 0:
		case columns > 0 && at+1+n > columns:
			b.WriteString("\n")
			at = 0
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}
