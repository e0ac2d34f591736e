package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a program in it.
type terminal struct {
	columns int
	rows    [][]rune // of the screen, with all that has scrolled out of it
	x       int      // of the cursor, which is in the last row
	states  []string // of rows that were rewritten, as they were before, in the order of their appearance
	widest  string
}

// openTerminal returns both ends of a new pseudo-terminal.
func openTerminal(t *testing.T, columns int) (ours, theirs *os.File) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(err)
	t.Cleanup(func() { ours.Close() })
	must(unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	must(err)
	theirs, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	must(unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: uint16(columns)}))
	return ours, theirs
}

// inTerminal runs c in a terminal of so many columns to its end, and returns what was on its screen.
func inTerminal(t *testing.T, c *exec.Cmd, columns int) *terminal {
	t.Helper()
	ours, theirs := openTerminal(t, columns)
	c.Stdin, c.Stdout, c.Stderr = theirs, theirs, theirs
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := c.Start()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(5*time.Minute, func() { _ = c.Process.Kill() })
	defer stuck.Stop()
	text, err := io.ReadAll(ours)
	if err != nil && !errors.Is(err, syscall.EIO) { // EIO: nobody has the other end open
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	s := &terminal{columns: columns, rows: [][]rune{nil}}
	s.write(string(text))
	return s
}

// escapes are what a program may tell a terminal here: colours, and to erase the rest of the line.
var escapes = regexp.MustCompile("^\x1b\\[([0-9;]*)([mK])")

// write does what a terminal does with text. Anything but colours, line ends and rewritten lines is text on the screen.
func (s *terminal) write(text string) {
	for text != "" {
		last := len(s.rows) - 1
		if m := escapes.FindStringSubmatch(text); m != nil {
			if m[2] == "K" {
				s.remember(string(s.rows[last]))
				s.rows[last] = s.rows[last][:min(s.x, len(s.rows[last]))]
			}
			text = text[len(m[0]):]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch r {
		case '\r':
			s.x = 0
		case '\n':
			s.rows, s.x = append(s.rows, nil), 0
		default:
			s.rows[last] = append(s.rows[last][:min(s.x, len(s.rows[last]))], append([]rune{r}, s.rows[last][min(s.x+1, len(s.rows[last])):]...)...)
			s.x++
			if s.x > utf8.RuneCountInString(s.widest) {
				s.widest = string(s.rows[last])
			}
		}
	}
}

// remember keeps a state of a row that is erased.
func (s *terminal) remember(row string) {
	if strings.TrimSpace(row) != "" {
		s.states = append(s.states, row)
	}
}

// screen is what is left on the screen, without spaces at the ends of lines.
func (s *terminal) screen() string {
	var b strings.Builder
	for _, row := range s.rows {
		b.WriteString(strings.TrimRight(string(row), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}
