package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/term"
)

// ErrInterrupted is Ctrl-C while a line is typed.
var ErrInterrupted = errors.New("interrupted")

// Lines reads lines that a person types at a terminal, with editing and a history. Prompt and echo go to stderr, so that
// stdout has results only. Between lines the terminal is as the shell left it: Ctrl-C is a signal then.
type Lines struct {
	in, err *os.File
	keys    keys
	editor  *term.Terminal
	history term.History
}

// keys is what is typed; it remembers Ctrl-C, which term.Terminal calls an end like Ctrl-D.
type keys struct {
	io.Reader
	io.Writer
	interrupted bool
}

// Read reads keys.
func (k *keys) Read(p []byte) (int, error) {
	const ctrlC, ctrlD, escape = 3, 4, 27
	n, err := k.Reader.Read(p)
	for n == 1 && p[0] == escape && err == nil { // the key alone: the editor would wait for a sequence that it begins
		n, err = k.Reader.Read(p)
	}
	k.interrupted = bytes.LastIndexByte(p[:n], ctrlC) > bytes.LastIndexByte(p[:n], ctrlD)
	return n, err
}

// Lines returns a reader of typed lines; nil where stdin or stderr is no terminal.
func (e *Env) Lines() *Lines {
	in, ok := e.In.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(e.app.Err) {
		return nil
	}
	l := &Lines{in: in, err: e.app.Err.(*os.File)}
	l.renew()
	return l
}

// StdinIsTerminal reports whether a person would have to type what is read from stdin.
func (e *Env) StdinIsTerminal() bool {
	in, ok := e.In.(*os.File)
	return ok && isTerminal(in)
}

// StdoutIsTerminal reports whether somebody looks at stdout.
func (e *Env) StdoutIsTerminal() bool { return isTerminal(e.app.Out) }

// renew begins with an empty line: after Ctrl-C the editor still holds what was typed.
func (l *Lines) renew() {
	l.keys = keys{Reader: l.in, Writer: l.err}
	l.editor = term.NewTerminal(&l.keys, "")
	if l.history != nil {
		l.editor.History = l.history
	}
	l.history = l.editor.History
}

// Read returns the next line. pasted says that the line came whole from the clipboard, so that others may follow. The error is
// ErrInterrupted after Ctrl-C, io.EOF after Ctrl-D on an empty line, and that of ctx when it ends.
func (l *Lines) Read(ctx context.Context, prompt string) (line string, pasted bool, err error) {
	before, err := term.MakeRaw(int(l.in.Fd()))
	if err != nil {
		return "", false, err
	}
	if width, height, err := term.GetSize(int(l.err.Fd())); err == nil {
		_ = l.editor.SetSize(width, height) // repaints a line that is being typed: there is none
	}
	l.editor.SetPrompt(prompt)
	l.editor.SetBracketedPasteMode(true)
	type result struct {
		line string
		err  error
	}
	typed := make(chan result, 1)
	go func() { // goes on waiting for a key after ctx has ended; the program ends then too
		line, err := l.editor.ReadLine()
		typed <- result{line, err}
	}()
	var r result
	select {
	case r = <-typed:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	l.editor.SetBracketedPasteMode(false)
	if err := term.Restore(int(l.in.Fd()), before); err != nil {
		return "", false, err
	}
	switch {
	case errors.Is(r.err, term.ErrPasteIndicator):
		return r.line, true, nil
	case r.err == nil:
		return r.line, false, nil
	}
	_, _ = io.WriteString(l.err, "\n") // the line that was being typed ends; an error of stderr has no other place to go
	if errors.Is(r.err, io.EOF) && l.keys.interrupted {
		l.renew()
		r.err = ErrInterrupted
	}
	return "", false, r.err
}

// Interrupts sets what is asked at each Ctrl-C instead of stopping the command, until it answers false or is nil.
func (e *Env) Interrupts(take func() bool) {
	if take == nil {
		e.app.take.Store(nil)
		return
	}
	e.app.take.Store(&take)
}

// taken reports whether the command wants a signal for itself.
func (a *App) taken(s os.Signal) bool {
	take := a.take.Load()
	return s == os.Interrupt && take != nil && (*take)()
}
