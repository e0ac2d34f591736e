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

// A Go program is in one process with its tests. What a test says can get another meaning by
//
//   - variables that both share: the library's, such as io.EOF or unicode.Letter, and those of the problem (this file);
//   - names: the language's, and the functions of the tests, which a program could ask for its answers;
//   - methods that the library looks for in a value, and fields that a comparison passes over (gomeaning.go);
//   - memory that is written past the language, the system, or the program's own file.
//
// All can be seen in the text: what is generated imports pure packages only, and does none of these.

// pure are the packages that generated text may import: they open no file, and reach nothing past the language.
var pure = strings.Fields(`bufio bytes cmp container/heap container/list container/ring context crypto crypto/hmac
	crypto/md5 crypto/sha1 crypto/sha256 crypto/sha3 crypto/sha512 crypto/subtle encoding encoding/ascii85 encoding/asn1
	encoding/base32 encoding/base64 encoding/binary encoding/csv encoding/gob encoding/hex encoding/json encoding/pem
	encoding/xml errors fmt hash hash/adler32 hash/crc32 hash/crc64 hash/fnv hash/maphash html io iter maps math math/big
	math/bits math/cmplx math/rand math/rand/v2 path regexp regexp/syntax slices sort strconv strings sync sync/atomic
	text/tabwriter time unicode unicode/utf16 unicode/utf8 unique`)

// barred are names that generated text may not use, whoever imports their package; * are all that begin so.
var barred = map[string][]string{
	"syscall": {"*"}, "runtime/debug": {"*"}, "os/exec": {"*"}, "plugin": {"*"}, "debug/elf": {"*"}, "go/parser": {"*"},
	"os":             {"Args", "Open*", "ReadFile", "DirFS", "CopyFS", "StartProcess", "Executable"},
	"io/ioutil":      {"ReadFile"},
	"net/http":       {"Dir", "ServeFile*", "FileServer*", "NewFileTransport*"},
	"text/template":  {"Parse*"},
	"html/template":  {"Parse*"},
	"archive/zip":    {"OpenReader"},
	"reflect":        {"NewAt", "SliceAt", "SliceHeader", "StringHeader"},
	"runtime/pprof":  {"*"},
	"runtime/trace":  {"*"},
	"runtime/cgo":    {"*"},
	"testing/iotest": {"*"},
	"crypto":         {"RegisterHash"},
	"runtime":        {"GOMAXPROCS"},
}

// sizes are what a program may ask package unsafe.
var sizes = []string{"Sizeof", "Alignof", "Offsetof"}

// reach looks for what a program does to variables that its tests share.
type reach struct {
	from     token.Pos           // of what is generated
	imports  map[string]string   // path by name
	dots     []string            // packages that are imported with a dot
	declared map[string]bool     // by the program for the whole package
	members  map[string]bool     // names of the program's methods, fields and parameters
	tests    map[string]bool     // variables, constants and functions of the tests, and main
	keys     map[*ast.Ident]bool // names that are none of the package: of fields and methods
	calls    map[ast.Expr]bool   // what is called
	guarded  map[any]string      // variables of the problem that its tests rely on, by their Ident.Obj
	held     map[any]bool        // those of guarded whose content has other names: maps, slices, pointers
	second   map[any]string      // variables of the program, by their Ident.Obj: of what they were taken from
	strong   map[any]bool        // those of second that are the contents themselves
	paths    map[any]string      // of strong: their packages
	counted  map[ast.Expr]bool   // what only its length is asked of
	clock    bool                // the tests use package time
	seeded   bool                // the tests use package math/rand
	why      string              // the first that was found
}

// reaches says why a Go program does not count: what is generated of program.go, from that byte on, assigns to a
// variable of the library or of the tests, or reaches memory past the language, or imports what is not pure.
func reaches(files map[string]string, generated int) string {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "program.go", files["program.go"], parser.ParseComments)
	if err != nil { // the compiler could read it all the same
		return "does not compile: " + err.Error()
	}
	r := &reach{from: set.File(f.FileStart).Pos(generated), imports: map[string]string{}, tests: testNames(files)}
	r.declared, r.members, r.counted = map[string]bool{}, map[string]bool{}, map[ast.Expr]bool{}
	r.second, r.strong, r.paths = map[any]string{}, map[any]bool{}, map[any]string{}
	r.keys, r.calls = map[*ast.Ident]bool{}, map[ast.Expr]bool{}
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
	use := usedBy(f, r.from, files["program.go"][:generated], files["tests.go"])
	r.guard(f, use)
	r.clock = use.packages["time"]
	if use.packages["math/rand"] {
		r.seeded = true
	}
	for before := -1; before < len(r.second)+len(r.strong); { // names of names
		before = len(r.second) + len(r.strong)
		ast.Inspect(f, r.taken)
	}
	for _, d := range f.Decls {
		if d.End() > r.from {
			ast.Inspect(d, r.look)
		}
	}
	if r.why == "" {
		r.why = meaning(f, r.from, use)
	}
	return r.why
}

func (r *reach) add(spec *ast.ImportSpec) {
	path, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return
	}
	if spec.End() > r.from {
		switch {
		case path == "C" || !slices.Contains(pure, path):
			r.found("imports %s, which is not one of the pure packages", path)
		case spec.Name != nil && spec.Name.Name == ".":
			r.found("imports %s with a dot", path)
		}
	}
	switch {
	case spec.Name == nil:
		name := path[strings.LastIndex(path, "/")+1:]
		if name == "v2" {
			name = "rand" // math/rand/v2, the only one
		}
		r.imports[name] = path
	case spec.Name.Name == ".":
		r.dots = append(r.dots, path)
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
		for i, to := range n.Lhs {
			id, ok := to.(*ast.Ident)
			if ok && id.Obj != nil {
				_, result := id.Obj.Decl.(*ast.Field)
				ok = !result
			}
			if !ok && len(n.Rhs) == len(n.Lhs) {
				r.given(n.Rhs[i])
			}
		}
	case *ast.ValueSpec:
		r.kept(n.Values...)
	case *ast.CompositeLit:
		r.fields(n)
		r.kept(n.Elts...)
		r.given(n.Elts...)
	case *ast.KeyValueExpr:
		r.kept(n.Value)
		r.given(n.Value)
	case *ast.ReturnStmt:
		r.kept(n.Results...)
		r.given(n.Results...)
	case *ast.SendStmt:
		r.given(n.Value)
	case *ast.SliceExpr:
		r.given(n.X)
	case *ast.IncDecStmt:
		r.written(n.X)
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			r.written(n.Key, n.Value)
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			r.written(n.X)
			r.given(n.X)
		}
	case *ast.CallExpr:
		r.called(n)
	case *ast.SelectorExpr:
		r.keys[n.Sel] = true
		r.selected(n)
	case *ast.FuncDecl:
		r.keys[n.Name] = n.Recv != nil
	case *ast.Field:
		for _, id := range n.Names {
			r.keys[id] = true
		}
	case *ast.Ident:
		for _, path := range r.dots {
			if n.Obj == nil && ast.IsExported(n.Name) && !r.declared[n.Name] {
				r.named(path, n.Name)
			}
		}
		if r.tests[n.Name] && n.Obj == nil && !r.declared[n.Name] && !r.keys[n] {
			r.found("mentions %s, which is of its tests", n.Name)
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
	for ; e != nil; e = holder(e) {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			if id, ok := x.X.(*ast.Ident); ok && id.Obj == nil && r.imports[id.Name] != "" {
				return id.Name + "." + x.Sel.Name
			}
		case *ast.Ident:
			if x.Obj != nil && r.guarded[x.Obj] != "" {
				return r.guarded[x.Obj]
			}
			if len(r.dots) > 0 && x.Obj == nil && x.Name != "_" && ast.IsExported(x.Name) && !r.declared[x.Name] {
				return x.Name
			}
		}
	}
	return ""
}

// written are expressions that get a value, or whose address is taken.
func (r *reach) written(all ...ast.Expr) {
	for _, e := range all {
		if e == nil {
			continue
		}
		v := r.variable(e)
		if _, whole := ast.Unparen(e).(*ast.Ident); v == "" && !whole { // a name of its own may get another value
			v = r.origin(e)
		}
		if v != "" {
			r.found("writes to %s, which its tests share", v)
		}
	}
}

// changed are expressions whose content a call changes.
func (r *reach) changed(all ...ast.Expr) {
	for _, e := range all {
		r.written(&ast.StarExpr{X: e})
	}
}

// called judges calls that change what they are given, and reflection of variables.
func (r *reach) called(c *ast.CallExpr) {
	r.calls[c.Fun] = true
	switch f := c.Fun.(type) {
	case *ast.Ident:
		if f.Obj == nil && !r.declared[f.Name] && slices.Contains([]string{"len", "cap", "print", "println"}, f.Name) {
			if len(c.Args) == 1 && f.Name == "len" {
				r.counted[c.Args[0]] = true
			}
			return
		}
		if f.Obj == nil && slices.Contains([]string{"delete", "clear", "copy", "append"}, f.Name) && len(c.Args) > 0 {
			r.changed(c.Args[0])
		}
		r.given(c.Args...)
	case *ast.SelectorExpr:
		id, ok := f.X.(*ast.Ident)
		library := ok && id.Obj == nil && r.imports[id.Name] != ""
		if ok && id.Obj != nil && r.guarded[id.Obj] != "" && r.members[f.Sel.Name] {
			r.found("calls its own method %s of %s, which its tests share", f.Sel.Name, r.guarded[id.Obj])
		}
		if library && r.imports[id.Name] == "reflect" {
			r.changed(c.Args...)
		}
		if slices.Contains([]string{"Unmarshal", "Decode", "Read"}, f.Sel.Name) && len(c.Args) > 0 {
			r.changed(c.Args[len(c.Args)-1])
		}
		switch {
		case library:
			r.handed(r.imports[id.Name], f.Sel.Name, c.Args...)
		case r.members[f.Sel.Name]:
			r.given(c.Args...)
		default:
			r.handed("", f.Sel.Name, c.Args...)
		}
	default:
		r.given(c.Args...)
	}
}

// named judges a name of a package.
func (r *reach) named(path, name string) {
	short := path[strings.LastIndex(path, "/")+1:]
	if path == "unsafe" && !slices.Contains(sizes, name) {
		r.found("uses unsafe.%s: memory past the language", name)
	}
	for _, b := range barred[path] {
		if begin, all := strings.CutSuffix(b, "*"); b == name || all && strings.HasPrefix(name, begin) {
			r.found("uses %s.%s, which could read its tests", short, name)
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
	if path != "" && !r.counted[s] {
		r.named(path, s.Sel.Name)
	}
	switch {
	case r.has("unicode") && slices.Contains([]string{"R16", "R32"}, s.Sel.Name):
		r.found("opens a table of package unicode, which its tests share")
	case r.has("reflect") && r.has("unicode") && s.Sel.Name == "Elem":
		r.found("opens a table of package unicode by reflection")
	case path == "math/rand" && s.Sel.Name == "Seed" && r.seeded:
		r.found("uses rand.Seed, which decides what its tests draw")
	case !r.calls[s] && slices.Contains(makers, s.Sel.Name) && r.making(s.Sel.Name) &&
		(path == "") == (s.Sel.Name == "Location"):
		r.found("keeps %s, which hands out what its tests share", s.Sel.Name)
	}
}

// has reports whether the program imports a package, by whatever name.
func (r *reach) has(path string) bool {
	for _, p := range r.imports {
		if p == path {
			return true
		}
	}
	return slices.Contains(r.dots, path)
}
