package eval

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"go/parser"
	"go/scanner"
	"go/token"
	"os/exec"
	"strings"

	"apr/eval/sandbox"
	"apr/internal/fault"
)

// Programs runs programs of Python, with the user's python3, and of Go, with the user's toolchain; it is a Runner.
//
// A Python program is what the problem says comes before, and the completion. Its tests, for code and humaneval with
// check(entry point), run in another interpreter, which never runs the program. Values and calls cross between the two:
// a program that patches its interpreter, or an object that is equal to everything, does not change what a test means.
// A Go program is a package of three files: that, the tests, which
// define func check(), and a main function that calls it. After the tests the program reads a word, which is new for
// each run, and prints it: without it, the tests did not run to their end, whatever the exit code.
//
// A Go program is in the same process as its tests. It does not count if it assigns to what they share, reaches memory
// past the language (see reaches), or declares what their words depend on (see meaning): such text is found before
// anything runs. The word then tells a program that ends early.
type Programs struct {
	box    *sandbox.Box
	python *pythonTools // nil: not needed
	golang *goTools
}

// NewPrograms finds the interpreters that problems need, and tries each with a program that must pass and one that must not.
// One that is missing, or fails this, is a fault of kind Unavailable: a broken runner would look like a bad model.
func NewPrograms(ctx context.Context, box *sandbox.Box, problems []Problem) (*Programs, error) {
	r := &Programs{box: box}
	for _, p := range problems {
		var err error
		switch {
		case p.Language == "python" && r.python == nil:
			r.python, err = findPython(ctx)
		case p.Language == "go" && r.golang == nil:
			r.golang, err = findGo(ctx)
		}
		if err != nil {
			r.Close()
			return nil, err
		}
	}
	if err := r.control(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close removes what was made to run programs.
func (r *Programs) Close() error {
	if r.golang == nil {
		return nil
	}
	return r.golang.Close()
}

// control runs known programs.
func (r *Programs) control(ctx context.Context) error {
	try := func(p Problem, right, wrong string) error {
		for completion, want := range map[string]bool{right: true, wrong: false} {
			parses, err := r.Parses(ctx, p.Language, p.Program+completion)
			if err != nil {
				return err
			}
			passed, why, err := r.Passes(ctx, p, completion)
			if err != nil {
				return err
			}
			if !parses || passed != want {
				return fault.New(fault.Unavailable, "%s programs do not run here: one that should have passed=%v has passed=%v, parses=%v: %s", p.Language, want, passed, parses, why).WithID("E-EVAL-033")
			}
		}
		return nil
	}
	if r.python != nil {
		p := Problem{Program: "def one():\n", Test: "def check(f):\n    assert f() == 1\n", Entry: "one", Language: "python"}
		if err := try(p, "    return 1\n", "    return 2\n"); err != nil {
			return err
		}
	}
	if r.golang != nil {
		p := Problem{Program: "func one() int {\n", Test: "func check() {\n\tif one() != 1 {\n\t\tpanic(one())\n\t}\n}\n", Language: "go"}
		return try(p, "\treturn 1\n}\n", "\treturn 2\n}\n")
	}
	return nil
}

func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fault.New(fault.Unavailable, "%s is not found; the problems' programs need it", name).Because(err).WithID("E-EVAL-030")
	}
	return path, nil
}

// Parses implements Runner.
func (r *Programs) Parses(ctx context.Context, language, program string) (bool, error) {
	if language == "go" {
		_, err := parser.ParseFile(token.NewFileSet(), "program.go", goFile(program), parser.SkipObjectResolution)
		return err == nil, nil
	}
	res, err := r.box.Run(ctx, r.python.program(program, "-c", "import ast, sys\ntry:\n ast.parse(sys.stdin.read())\nexcept Exception:\n sys.exit(1)"))
	return err == nil && res.Exit == 0, err
}

// Passes implements Runner.
func (r *Programs) Passes(ctx context.Context, p Problem, completion string) (bool, string, error) {
	word := rand.Text()
	var res sandbox.Result
	var err error
	if p.Language == "go" {
		var why string
		if res, why, err = r.runGo(ctx, p, completion, word); why != "" || err != nil {
			return false, why, err
		}
	} else {
		res, err = r.runPython(ctx, p, completion, word)
	}
	if err != nil {
		return false, "", err
	}
	said := strings.HasSuffix(strings.TrimSpace(res.Stdout), word) || strings.HasSuffix(strings.TrimSpace(res.Stderr), word)
	switch {
	case res.TimedOut:
		return false, "out of time", nil
	case res.Exit != 0:
		return false, lastLine(res), nil
	case !said:
		return false, "ended before its tests did", nil
	}
	return true, "", nil
}

// lastLine is what a failed program said last, or of a Go panic what it said first.
func lastLine(r sandbox.Result) string {
	lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
	last := lines[len(lines)-1]
	if strings.HasPrefix(lines[0], "panic: ") {
		last = lines[0]
	}
	if len(last) > 200 {
		last = strings.ToValidUTF8(last[:200], "")
	}
	return strings.TrimSpace(fmt.Sprintf("exit %d: %s", r.Exit, last))
}

// goFile makes source a file of package main. A file that says its package may have comments before that.
func goFile(source string) string {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(source)), []byte(source), func(token.Position, string) {}, 0)
	if _, first, _ := s.Scan(); first == token.PACKAGE {
		return source
	}
	return "package main\n\n" + source
}

// runGo compiles a program, which executes nothing of it, and runs it; why says that it does not compile.
func (r *Programs) runGo(ctx context.Context, p Problem, completion, word string) (res sandbox.Result, why string, err error) {
	files := map[string]string{"program.go": goFile(p.Program + completion), "tests.go": goFile(p.Test), "main.go": goHarness()}
	generated := len(files["program.go"]) - len(completion)
	if why := cmp.Or(disarms(files, generated), reaches(files, generated)); why != "" {
		return res, why, nil
	}
	dir, err := r.box.MakeDir()
	if err != nil {
		return res, "", err
	}
	defer func() {
		if failed := sandbox.Remove(dir); failed != nil {
			err = errors.Join(err, failed)
		}
	}()
	program, why, err := r.golang.build(ctx, r.box, dir, files)
	if why != "" || err != nil {
		return res, why, err
	}
	res, err = r.box.Run(ctx, sandbox.Program{Argv: []string{program}, Input: word, Read: []string{program}})
	if errors.Is(err, sandbox.ErrExec) { // it is linked with what is not there
		return res, "does not start: " + err.Error(), nil
	}
	return res, "", err
}
