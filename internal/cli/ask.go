package cli

import "os"

// Interactive reports whether a person can answer a question: stdin is a terminal.
func (e *Env) Interactive() bool {
	in, ok := e.In.(*os.File)
	return ok && isTerminal(in)
}
