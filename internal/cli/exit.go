package cli

import (
	"os"
	"time"
)

// Exit ends the program with a code of the command's choice instead of that of an error's kind: that of a child process,
// which has printed what there was to say.
type Exit struct {
	Code int
	Err  error // told like any error, in JSON too; nil: nothing is printed
}

// Error returns the text of Err.
func (e *Exit) Error() string {
	if e.Err == nil {
		return "the command has ended"
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *Exit) Unwrap() error { return e.Err }

// Ending sets what is called before a second signal ends the process, for a second at most and beside whatever the command does.
func (e *Env) Ending(f func(os.Signal)) { e.app.ending.Store(&f) }

// lastWordsLimit is how long what Env.Ending was given may take: the person who signals twice wants the process gone.
const lastWordsLimit = time.Second

// lastWords calls what Env.Ending was given.
func (a *App) lastWords(s os.Signal) {
	f := a.ending.Load()
	if f == nil {
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		(*f)(s)
	}()
	select {
	case <-said:
	case <-time.After(lastWordsLimit):
	}
}

// Abort prints err as the end of a command would and returns its exit code, for a watchdog that ends the process while
// the command hangs. It may hang as well, if that is what hangs: the caller sets a limit.
func (e *Env) Abort(err error) int { return e.app.finish(firstWord(e.app.args), err) }
