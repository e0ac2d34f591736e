package falsify_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"apr/falsify"
)

// TestChecksCount: each test that a contract names reaches contracttest.Cases in the source, for a check without a case
// shows nothing (VACUOUS), which only a whole run of falsify would tell. What a function calls is taken by name. A test
// that must not compile counts nothing.
func TestChecksCount(t *testing.T) {
	r, err := falsify.ValidatePaths([]string{"../contracts"}, falsify.Ours)
	if err != nil {
		t.Fatal(err)
	}
	s, n := &sources{calls: map[string]map[string][]function{}, counting: map[string]bool{}}, 0
	check := func(id string, g *falsify.GoTest) {
		if g == nil {
			return
		}
		n++
		name, _, _ := strings.Cut(g.Test, "/")
		if !s.counts(function{filepath.Join("..", g.Package), name}, map[function]bool{}) {
			t.Errorf("%s: nothing that %s calls calls contracttest.Cases", id, name)
		}
	}
	for _, v := range r.Contracts {
		doc, err := falsify.Read(v.File, falsify.Ours)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range doc.Contract.FalsificationTests {
			if f.Check != nil && f.Check.Compile == "" {
				check(f.ID, f.Check.Go)
			}
		}
		for _, h := range doc.Contract.KaniHarnesses {
			check(h.ID, h.Go)
		}
	}
	if n < 200 {
		t.Errorf("%d checks are tests: some are missing", n)
	}
}

type function struct{ dir, name string }

var counted = function{filepath.Join("..", "internal/contracttest"), "Cases"}

// sources are read when they are needed.
type sources struct {
	calls    map[string]map[string][]function // by folder and name: what a function or method refers to
	counting map[string]bool                  // folders of which a file, other than tests, imports contracttest
}

// counts reports whether f reaches contracttest.Cases.
func (s *sources) counts(f function, seen map[function]bool) bool {
	if f == counted || seen[f] {
		return f == counted
	}
	seen[f] = true
	if s.calls[f.dir] == nil {
		pattern := "*_test.go" // a program that does not count leads nowhere, and has names that tests have too
		if s.mayCount(f.dir) {
			pattern = "*.go"
		}
		s.calls[f.dir] = calls(f.dir, pattern)
	}
	for _, g := range s.calls[f.dir][f.name] {
		if (g.dir == f.dir || g == counted || s.mayCount(g.dir)) && s.counts(g, seen) {
			return true
		}
	}
	return false
}

// mayCount reports whether functions of another package count: most packages need not be parsed.
func (s *sources) mayCount(dir string) bool {
	may, known := s.counting[dir]
	if !known {
		files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		for _, path := range files {
			text, _ := os.ReadFile(path)
			may = may || !strings.HasSuffix(path, "_test.go") && bytes.Contains(text, []byte(`"apr/internal/contracttest"`))
		}
		s.counting[dir] = may
	}
	return may
}

// calls returns what the functions in such files of a folder refer to: of their own package, and of packages of this
// module.
func calls(dir, pattern string) map[string][]function {
	all := map[string][]function{}
	files, _ := filepath.Glob(filepath.Join(dir, pattern))
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			continue // a test that must not compile may be of no grammar either
		}
		imported := map[string]string{}
		for _, i := range file.Imports {
			if p, _ := strconv.Unquote(i.Path.Value); strings.HasPrefix(p, "apr/") {
				name := filepath.Base(p)
				if i.Name != nil {
					name = i.Name.Name
				}
				imported[name] = filepath.Join("..", strings.TrimPrefix(p, "apr/"))
			}
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if f.Recv != nil { // who names a type may call its methods through an interface
				of := ast.Unparen(f.Recv.List[0].Type)
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if name, ok := of.(*ast.Ident); ok {
					all[name.Name] = append(all[name.Name], function{dir, f.Name.Name})
				}
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && imported[x.Name] != "" {
						all[f.Name.Name] = append(all[f.Name.Name], function{imported[x.Name], n.Sel.Name})
						return false
					}
				case *ast.Ident:
					all[f.Name.Name] = append(all[f.Name.Name], function{dir, n.Name})
				}
				return true
			})
		}
	}
	return all
}
