package falsify

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"apr/internal/readfile"
)

// Tree is a source tree: where checks and mutants are looked up. Its zero value, and nil, hold nothing.
type Tree struct {
	Root  string // the folder with go.mod
	tests map[string][]string
}

// FindTree returns the tree around a file: the nearest folder above it with a go.mod, nil if there is none.
func FindTree(file string) *Tree {
	dir, err := filepath.Abs(file)
	if err != nil {
		return nil
	}
	for {
		dir = filepath.Dir(dir)
		if info, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil && info.Mode().IsRegular() {
			return &Tree{Root: dir, tests: map[string][]string{}}
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

var errNoTree = errors.New("no source tree (go.mod) around the contract")

// inside returns the path of a file or folder of the tree, refusing one that leads out of it.
func (t *Tree) inside(name string) (string, error) {
	if t == nil || t.Root == "" {
		return "", errNoTree
	}
	local := filepath.FromSlash(strings.TrimPrefix(name, "./"))
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("%q is no path inside the source tree", name)
	}
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return "", err
	}
	defer root.Close()
	switch _, err := root.Stat(local); { // follows links, but none that leads out
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%q does not exist", name)
	case err != nil:
		return "", fmt.Errorf("%q cannot be read inside the source tree", name)
	}
	return filepath.Join(t.Root, local), nil
}

// Test reports whether a test exists, as go test -list would: in a package of the tree, with the build tags given, for
// this system. It reads the source and runs nothing.
func (t *Tree) Test(g GoTest) error {
	name, _, _ := strings.Cut(g.Test, "/")
	dir, err := t.inside(g.Package)
	if err != nil {
		return fmt.Errorf("package %w", err)
	}
	id := strings.Join(append([]string{dir}, g.Tags...), "\x00")
	tests, ok := t.tests[id]
	if !ok {
		if tests, err = listTests(dir, g.Tags); err != nil {
			return fmt.Errorf("package %q: %w", g.Package, err)
		}
		t.tests[id] = tests
	}
	if !slices.Contains(tests, name) {
		return fmt.Errorf("package %q has no test %q", g.Package, clip(name))
	}
	return nil
}

// listTests returns the names of the tests in the package in dir.
func listTests(dir string, tags []string) (names []string, err error) {
	files, err := testFiles(dir, tags)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && isTest(fn) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names, nil
}

// testFile is a parsed file of tests.
type testFile struct {
	name string
	*ast.File
}

// testFiles returns the files of tests that the go command would build in dir on this machine, with these tags and
// without cgo.
func testFiles(dir string, tags []string) (files []testFile, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		return nil, errors.New("holds no Go package")
	}
	for _, path := range paths {
		name := filepath.Base(path)
		stem, ok := strings.CutSuffix(name, "_test.go")
		if !ok || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".") || !builtHere(stem) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if constrained(f, tags) {
			files = append(files, testFile{name, f})
		}
	}
	return files, nil
}

// systems and processors are those that file names of this tree end with. go/build knows all, for 217 KB of program.
var (
	systems    = []string{"linux", "darwin", "windows"}
	processors = []string{"amd64", "arm64"}
)

// builtHere reports whether the end of a file's name, _GOOS, _GOARCH or both, lets it be built on this machine.
func builtHere(stem string) bool {
	words := strings.Split(stem, "_")[1:]
	for _, known := range []struct {
		names []string
		here  string
	}{{processors, runtime.GOARCH}, {systems, runtime.GOOS}} {
		if n := len(words); n > 0 && slices.Contains(known.names, words[n-1]) {
			if words[n-1] != known.here {
				return false
			}
			words = words[:n-1]
		}
	}
	return true
}

// constrained reports whether the //go:build line of a file, if it has one, holds with tags.
func constrained(f *ast.File, tags []string) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() > f.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			if x, err := constraint.Parse(c.Text); err == nil && !x.Eval(func(tag string) bool { return holds(tag, tags) }) {
				return false
			}
		}
	}
	return true
}

// holds reports whether a build tag is set: one that is asked for, this system and processor, and releases of Go.
func holds(tag string, tags []string) bool {
	unix := runtime.GOOS == "linux" || runtime.GOOS == "darwin"
	return slices.Contains(tags, tag) || tag == runtime.GOOS || tag == runtime.GOARCH || tag == runtime.Compiler ||
		tag == "unix" && unix || strings.HasPrefix(tag, "go1.")
}

// isTest reports whether the go command takes fn for a test: func TestX(t *testing.T), where X does not begin with a
// small letter.
func isTest(fn *ast.FuncDecl) bool {
	rest, ok := strings.CutPrefix(fn.Name.Name, "Test")
	if r, _ := utf8.DecodeRuneInString(rest); !ok || rest != "" && unicode.IsLower(r) {
		return false
	}
	params := fn.Type.Params.List
	if fn.Recv != nil || len(params) != 1 || len(params[0].Names) > 1 || fn.Type.Results != nil {
		return false
	}
	star, ok := params[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "T"
}

// maxSource bounds a file that a mutant changes.
const maxSource = 4 << 20

// Once reports an error unless find occurs exactly once in a file of the tree.
func (t *Tree) Once(file, find string) error {
	name, err := t.inside(file)
	if err != nil {
		return err
	}
	text, err := readfile.String(name, maxSource)
	if err != nil {
		return fmt.Errorf("%q cannot be read", file)
	}
	if n := strings.Count(text, find); n != 1 || find == "" {
		return fmt.Errorf("occurs %d times in %s, not once", n, file)
	}
	return nil
}
