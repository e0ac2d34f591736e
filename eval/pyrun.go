package eval

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"

	"apr/eval/sandbox"
	"apr/internal/fault"
)

// runPython runs a program in one interpreter and its tests in another, and returns how the tests ended.
//
//	tests ── calls, data ──▶ program
//	      ◀── data, calls of what it was given ──
//
// Each has a directory and limits of its own behind the same walls; files that the tests name cross by their content.
// The tests' interpreter gets all texts before the other one starts: nobody else can write to it then.
func (r *Programs) runPython(ctx context.Context, p Problem, completion, word string) (res sandbox.Result, err error) {
	program, tests := p.Program+completion+"\n", p.Test+"\n"
	if p.Style != "mbpp" {
		tests += "check(" + p.Entry + ")\n"
	}
	order, err := json.Marshal(pythonOrder{
		Program: len(program), Tests: len(tests), Word: len(word), Given: strings.Count(p.Program, "\n"), Entry: p.Entry,
	})
	if err != nil {
		return res, err
	}
	var dirs [2]string // of the tests, of the program
	for i := range dirs {
		if dirs[i], err = r.box.MakeDir(); err != nil {
			return res, err
		}
		defer func() {
			if failed := sandbox.Remove(dirs[i]); failed != nil {
				err = errors.Join(err, failed)
			}
		}()
	}
	programIn, testsOut, err1 := os.Pipe()
	testsIn, programOut, err2 := os.Pipe()
	defer closeAll(programIn, testsOut, testsIn, programOut)
	if err := errors.Join(err1, err2); err != nil {
		return res, fault.New(fault.IO, "no pipe").Because(err)
	}

	judge := r.python.program("", "-c", pythonStart, pythonWire+"\n"+pythonChecks+"\n"+pythonTests, "tests", string(order))
	judge.Dir, judge.Stdin, judge.Stdout = dirs[0], testsIn, testsOut
	subject := r.python.program("", "-c", pythonStart, pythonWire+"\n"+pythonProgram, "program", "")
	subject.Dir, subject.Stdin, subject.Stdout = dirs[1], programIn, programOut
	subject.Started = func() { closeAll(programIn, programOut) }

	judged := make(chan error, 1)
	go func() {
		var err error
		res, err = r.box.Run(ctx, judge)
		closeAll(testsIn, testsOut) // whoever still writes to it is told
		judged <- err
	}()
	if _, err := io.WriteString(programOut, program+tests+word); err != nil {
		return res, errors.Join(<-judged, ctx.Err())
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	ran := make(chan error, 1)
	go func() {
		_, err := r.box.Run(limited, subject)
		closeAll(programIn, programOut) // the tests are told
		ran <- err
	}()
	err = <-judged
	cancel()
	if failed := <-ran; err == nil && !errors.Is(failed, context.Canceled) {
		err = failed
	}
	return res, err
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close() // once more is an error that says nothing
	}
}
