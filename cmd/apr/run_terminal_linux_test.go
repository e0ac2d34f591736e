package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// console is a program at a pseudo-terminal.
type console struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd

	mu     sync.Mutex
	screen bytes.Buffer
	seen   int // bytes of screen that expect has passed
}

// startConsole starts apr at a terminal of so many columns.
func startConsole(t *testing.T, columns uint16, args ...string) *console {
	t.Helper()
	master, slave := openTerminal(t, int(columns))
	defer slave.Close()
	must := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	mode, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
	must(err)
	mode.Lflag |= unix.NOFLSH // else Ctrl-C throws away what is not read yet
	must(unix.IoctlSetTermios(int(master.Fd()), unix.TCSETS, mode))
	c := &console{t: t, master: master, cmd: exec.Command(program(t), args...)}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=-1", "TERM=xterm", "NO_COLOR=1")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(c.cmd.Start())
	go c.read()
	t.Cleanup(func() { _ = c.cmd.Process.Kill() }) // it may have ended
	return c
}

// read collects what is shown until the terminal closes.
func (c *console) read() {
	buf := make([]byte, 4096)
	for {
		n, err := c.master.Read(buf)
		c.mu.Lock()
		c.screen.Write(buf[:n])
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// lineEdits are what an editor of lines and bracketed paste write.
var lineEdits = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)

// shown is the screen as text, without the terminal's echo of Ctrl-C, which may come after what the program says to it.
func (c *console) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := lineEdits.ReplaceAllString(c.screen.String(), "")
	return strings.ReplaceAll(strings.ReplaceAll(text, "^C", ""), "\r\n", "\n")
}

// expect waits until text is shown behind what was expected before.
func (c *console) expect(text string) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s := c.shown()
		if i := strings.Index(s[c.seen:], text); i >= 0 {
			c.seen += i + len(text)
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%q is not shown behind %q\n%s", text, s[max(0, c.seen-40):c.seen], s)
		}
	}
}

// typeKeys presses keys; "\r" is Enter, "\x03" Ctrl-C, "\x04" Ctrl-D.
func (c *console) typeKeys(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// ends waits for the program and returns its exit code.
func (c *console) ends() int {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case <-done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		c.t.Fatalf("the program goes on:\n%s", c.shown())
		return 0
	}
}
