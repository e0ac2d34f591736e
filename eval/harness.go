package eval

import (
	"crypto/rand"
	_ "embed"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"strings"
)

// goHarness runs the tests of a Go program, then prints a word. It reads the word from the standard input before any
// code of the program runs: variables are initialised before init functions, and those of the first file first. The
// program and its tests find the standard input empty, and cannot name the variable, whose name is new for each run.
func goHarness() string {
	return strings.ReplaceAll(`package main

import harness "syscall"

var word = func() []byte {
	var text [64]byte
	n, _ := harness.Read(0, text[:])
	null, _ := harness.Open("/dev/null", 0, 0)
	harness.Dup3(null, 0, 0)
	harness.Close(null)
	return text[:n]
}()

func main() {
	check()
	harness.Write(2, word)
}
`, "word", "word"+rand.Text())
}

// The tests of a Python program run in an interpreter of their own, which never runs a line of the program: what the
// program does to its interpreter reaches its answers alone. Both interpreters get pythonWire and their own side;
// that of the tests, as its argument, a pythonOrder.
//
//go:embed harness.py
var pythonWire string

//go:embed harness_program.py
var pythonProgram string

//go:embed harness_checks.py
var pythonChecks string

//go:embed harness_tests.py
var pythonTests string

// pythonStart runs the harness in a namespace of its own, with names of the language that the program cannot change.
const pythonStart = `import builtins, sys
names = {'__builtins__': vars(builtins).copy(), '__name__': 'harness'}
exec(compile(sys.argv[1] + '\n\nstart(*sys.argv[2:])', '<harness>', 'exec'), names)`

// pythonOrder says what the interpreter of the tests reads from its standard input.
type pythonOrder struct {
	Program int    `json:"program"` // bytes
	Tests   int    `json:"tests"`
	Word    int    `json:"word"`
	Given   int    `json:"given"` // lines of the program that are the problem's
	Entry   string `json:"entry"` // the function that is asked for; empty: not known
}

// disarms says why a Go program does not count: what is generated of program.go, from that byte on, declares for the whole
// package a name of the language that the tests, the problem's text or the harness use, such as panic. Others it
// may declare: max became a name of the language late. Names of the tests and of the harness the compiler refuses to
// see twice, and what a file imports with a dot is known in that file alone.
func disarms(files map[string]string, generated int) string {
	used := map[string]bool{}
	note := func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && doc.IsPredeclared(id.Name) {
			used[id.Name] = true
		}
		return true
	}
	for _, name := range []string{"tests.go", "main.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, files[name], parser.SkipObjectResolution)
		if err != nil {
			continue // the compiler says so
		}
		ast.Inspect(f, note)
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "program.go", files["program.go"], parser.SkipObjectResolution)
	if err != nil {
		return "does not compile: " + err.Error()
	}
	var given func(ast.Node) bool
	given = func(n ast.Node) bool { // the problem's text: functions, types, and what it asks for
		if field, ok := n.(*ast.Field); ok { // its names are its own
			ast.Inspect(field.Type, given)
			return false
		}
		return n == nil || set.File(f.FileStart).Offset(n.Pos()) < generated && note(n)
	}
	ast.Inspect(f, given)
	for _, id := range declared(f) {
		if used[id.Name] && set.File(f.FileStart).Offset(id.End()) > generated {
			return fmt.Sprintf("declares %s, which its tests use as the language's own", id.Name)
		}
	}
	return ""
}

// declared returns the names that a file declares for its package.
func declared(f *ast.File) (names []*ast.Ident) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name)
				case *ast.ValueSpec:
					names = append(names, s.Names...)
				}
			}
		}
	}
	return names
}
