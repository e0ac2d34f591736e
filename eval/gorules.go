package eval

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// A Go program is in one process with its tests, which share the library's variables with it: a program that sets
// io.EOF to nil, or empties unicode.Letter, changes what its tests compare with. Nothing else of a test can be
// given another meaning, but by memory that is written past the language. Both can be seen in the text.

// shared are variables of the library whose content is reached without naming them again.
var shared = map[string][]string{
	"unicode": {
		"Categories", "Scripts", "Properties", "CaseRanges", "FoldCategory", "FoldScript", "GraphicRanges", "PrintRanges",
		"CategoryAliases",
	},
	"os":       {"Args"},
	"flag":     {"CommandLine"},
	"net/http": {"DefaultClient", "DefaultTransport", "DefaultServeMux"},
}

// sizes are what a program may ask package unsafe.
var sizes = []string{"Sizeof", "Alignof", "Offsetof"}

// reach looks for what a program does to variables that its tests share.
type reach struct {
	from     token.Pos         // of what is generated
	imports  map[string]string // path by name
	dots     bool              // a package is imported with a dot
	declared map[string]bool   // by the program for the whole package
	tests    map[string]bool   // variables of the tests
	why      string            // the first that was found
}

// reaches says why a Go program does not count: what is generated of program.go, from that byte on, assigns to a
// variable of the library or of the tests, or reaches memory past the language. What does not parse is left to the
// compiler.
func reaches(files map[string]string, generated int) string {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "program.go", files["program.go"], parser.ParseComments)
	if err != nil {
		return ""
	}
	r := &reach{from: set.File(f.FileStart).Pos(generated), imports: map[string]string{}, tests: testVariables(files)}
	r.declared = map[string]bool{}
	for _, id := range declared(f) {
		r.declared[id.Name] = true
	}
	for _, spec := range f.Imports {
		r.add(spec)
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.End() > r.from && strings.HasPrefix(c.Text, "//go:linkname") {
				return "names something inside the library (go:linkname)"
			}
		}
	}
	for _, d := range f.Decls {
		if d.End() > r.from {
			ast.Inspect(d, r.look)
		}
	}
	return r.why
}

// testVariables returns the variables that the tests declare for the whole package.
func testVariables(files map[string]string) map[string]bool {
	names := map[string]bool{}
	f, err := parser.ParseFile(token.NewFileSet(), "tests.go", files["tests.go"], parser.SkipObjectResolution)
	if err != nil {
		return names
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			for _, id := range s.(*ast.ValueSpec).Names {
				names[id.Name] = id.Name != "_"
			}
		}
	}
	return names
}

func (r *reach) add(spec *ast.ImportSpec) {
	path, err := strconv.Unquote(spec.Path.Value)
	switch {
	case err != nil:
	case spec.Name == nil:
		name := path[strings.LastIndex(path, "/")+1:]
		if name == "v2" {
			name = "rand" // math/rand/v2, the only one
		}
		r.imports[name] = path
	case spec.Name.Name == ".":
		r.dots = true
	default:
		r.imports[spec.Name.Name] = path
	}
}

// look judges a node, and goes on until something is found.
func (r *reach) look(n ast.Node) bool {
	if n == nil || r.why != "" {
		return false
	}
	if n.End() <= r.from {
		return false
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			r.written(n.Lhs...)
		}
		r.kept(n.Rhs...)
	case *ast.ValueSpec:
		r.kept(n.Values...)
	case *ast.CompositeLit:
		r.kept(n.Elts...)
	case *ast.KeyValueExpr:
		r.kept(n.Value)
	case *ast.ReturnStmt:
		r.kept(n.Results...)
	case *ast.IncDecStmt:
		r.written(n.X)
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			r.written(n.Key, n.Value)
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			r.written(n.X)
		}
	case *ast.CallExpr:
		r.called(n)
	case *ast.SelectorExpr:
		r.selected(n)
	case *ast.Ident:
		if r.tests[n.Name] && n.Obj == nil && !r.declared[n.Name] {
			r.found("mentions %s, a variable of its tests", n.Name)
		}
	}
	return true
}

func (r *reach) found(format string, args ...any) {
	if r.why == "" {
		r.why = fmt.Sprintf(format, args...)
	}
}

// variable returns the variable of the library that an expression is, or is a part of; empty: of none.
func (r *reach) variable(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.TypeAssertExpr:
			e = x.X
		case *ast.SelectorExpr:
			if id, ok := x.X.(*ast.Ident); ok && id.Obj == nil && r.imports[id.Name] != "" {
				return id.Name + "." + x.Sel.Name
			}
			e = x.X
		case *ast.Ident:
			if r.dots && x.Obj == nil && x.Name != "_" && ast.IsExported(x.Name) && !r.declared[x.Name] {
				return x.Name
			}
			return ""
		default:
			return ""
		}
	}
}

// written are expressions that get a value, or whose address is taken.
func (r *reach) written(all ...ast.Expr) {
	for _, e := range all {
		if e == nil {
			continue
		}
		if v := r.variable(e); v != "" {
			r.found("writes to %s, which its tests share", v)
		}
	}
}

// kept are values that get a second name.
func (r *reach) kept(all ...ast.Expr) {
	for _, e := range all {
		if s, ok := e.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && id.Obj == nil && slices.Contains(shared[r.imports[id.Name]], s.Sel.Name) {
				r.found("keeps %s.%s, which its tests share", id.Name, s.Sel.Name)
			}
		}
	}
}

// called judges calls that change what they are given, and reflection of variables.
func (r *reach) called(c *ast.CallExpr) {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		if f.Obj == nil && slices.Contains([]string{"delete", "clear", "copy", "append"}, f.Name) && len(c.Args) > 0 {
			r.written(c.Args[0])
		}
	case *ast.SelectorExpr:
		id, ok := f.X.(*ast.Ident)
		if ok && id.Obj == nil && r.imports[id.Name] == "reflect" {
			r.written(c.Args...)
		}
	}
}

// selected judges names of packages that lead past the language, and the content of tables.
func (r *reach) selected(s *ast.SelectorExpr) {
	id, ok := s.X.(*ast.Ident)
	path := ""
	if ok && id.Obj == nil {
		path = r.imports[id.Name]
	}
	switch {
	case path == "unsafe" && !slices.Contains(sizes, s.Sel.Name):
		r.found("uses unsafe.%s: memory past the language", s.Sel.Name)
	case path == "runtime/debug" && s.Sel.Name == "WriteHeapDump":
		r.found("writes its memory to a file")
	case r.imports["unicode"] != "" && slices.Contains([]string{"R16", "R32"}, s.Sel.Name):
		r.found("opens a table of package unicode, which its tests share")
	case r.imports["reflect"] != "" && r.imports["unicode"] != "" && s.Sel.Name == "Elem":
		r.found("opens a table of package unicode by reflection")
	}
}
