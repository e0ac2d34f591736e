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
// Ways of these that are known are seen in the text, and refused. It is no proof: what shares memory can find another.

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
	parts    map[any]string      // names that share content with a variable of guarded, by their Ident.Obj: of which
	holds    map[any]string      // local lists of parts, by their Ident.Obj: of which
	follow   map[*ast.CallExpr]bool
	gives    map[any]string    // functions that return such content, by their Ident.Obj: of which
	giving   map[string]string // methods that do, by name: of which
	methods  map[string][]*ast.FuncDecl
	returns  map[*ast.ReturnStmt]bool // of functions and methods, not of function literals
	callable map[string]bool          // names of what holds functions
	depth    int                      // of typeOf
	second   map[any]string           // variables of the program, by their Ident.Obj: of what they were taken from
	strong   map[any]bool             // those of second that are the contents themselves
	paths    map[any]string           // of strong: their packages
	counted  map[ast.Expr]bool        // what only its length is asked of
	clock    bool                     // the tests use package time
	seeded   bool                     // the tests use package math/rand
	why      string                   // the first that was found
}

// reaches says why a Go program does not count: what is generated of program.go, from that byte on, assigns to a
// variable of the library or of the tests, or reaches memory past the language, or imports what is not pure.
func reaches(files map[string]string, generated int) string {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "program.go", files["program.go"], parser.ParseComments)
	if err != nil { // the compiler could read it all the same
		return "does not compile: " + err.Error()
	}
	r := &reach{from: set.File(f.FileStart).Pos(generated), imports: map[string]string{}}
	given := files["program.go"][:generated]
	r.tests = testNames(files, wordsOf(given))
	r.declared, r.members, r.counted = map[string]bool{}, map[string]bool{}, map[ast.Expr]bool{}
	r.second, r.strong, r.paths = map[any]string{}, map[any]bool{}, map[any]string{}
	r.keys, r.calls, r.methods = map[*ast.Ident]bool{}, map[ast.Expr]bool{}, map[string][]*ast.FuncDecl{}
	r.holds, r.follow = map[any]string{}, map[*ast.CallExpr]bool{}
	r.parts, r.gives, r.giving = map[any]string{}, map[any]string{}, map[string]string{}
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
	use := usedBy(f, r.from, given, files["tests.go"])
	r.guard(f, use)
	r.clock = use.packages["time"]
	if use.packages["math/rand"] {
		r.seeded = true
	}
	r.returns, r.callable = map[*ast.ReturnStmt]bool{}, callables(f)
	r.find(f)
	for before := -1; before < r.known(); { // names of names
		before = r.known()
		ast.Inspect(f, r.taken)
	}
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && d.End() <= r.from && r.shared(m) {
			ast.Inspect(m.Body, r.changes)
		}
		if d.End() > r.from {
			ast.Inspect(d, r.look)
		}
	}
	if r.why == "" {
		r.why = r.meaning(f, use)
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
	case *ast.SelectorExpr:
		r.keys[n.Sel] = true
		r.selected(n)
	case *ast.FuncDecl:
		r.keys[n.Name], r.calls[n.Name] = n.Recv != nil, true
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
		if n.Obj != nil && r.gives[n.Obj] != "" && !r.calls[n] {
			r.found("keeps %s, which returns a part of %s", n.Name, r.gives[n.Obj])
		}
	}
	return r.changes(n)
}

// changes judges a node that may write, or hand on, what the tests share.
func (r *reach) changes(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			r.written(n.Lhs...)
		}
		r.kept(n.Rhs...)
		for i, to := range n.Lhs {
			id, ok := to.(*ast.Ident)
			if ok && id.Name == "_" {
				continue
			}
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
		r.returned(n)
	case *ast.SendStmt:
		r.given(n.Value)
	case *ast.SliceExpr:
		if v, own := r.content(n.X); own != problem && v != "" {
			r.given(n.X)
		}
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
	}
	return r.why == ""
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
		id, whole := ast.Unparen(e).(*ast.Ident)
		switch {
		case v != "" || whole && id.Obj == nil:
		case whole: // a name of its own may get another value
			v = r.guarded[id.Obj]
		default:
			v = r.origin(e)
			if at, ok := ast.Unparen(e).(*ast.IndexExpr); ok && r.collection(at.X) != "" {
				break // an item of its own list gets another value
			}
			if v == "" && !r.inPlace(e) {
				v = r.owner(e)
			}
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
		switch {
		case f.Obj != nil && f.Obj.Kind == ast.Var && r.parts[f.Obj] != "":
			r.found("calls what it took from %s, which its tests share", r.parts[f.Obj])
		case f.Obj != nil && f.Obj.Kind == ast.Fun: // its parameters are judged where they are used
			r.given(r.library(c.Args)...)
			return
		case f.Obj == nil && slices.Contains([]string{"delete", "clear", "copy", "append"}, f.Name) && len(c.Args) > 0:
			r.changed(c.Args[0])
			if last := c.Args[len(c.Args)-1]; (f.Name == "copy" || c.Ellipsis.IsValid()) && !r.points(r.item(last, 1)) {
				return // copies what shares nothing
			}
			if r.follow[c] {
				return
			}
		}
		r.given(c.Args...)
	case *ast.SelectorExpr:
		id, ok := f.X.(*ast.Ident)
		library := ok && id.Obj == nil && r.imports[id.Name] != ""
		if library && r.imports[id.Name] == "reflect" {
			r.changed(c.Args...)
		}
		if slices.Contains([]string{"Unmarshal", "Decode", "Read"}, f.Sel.Name) && len(c.Args) > 0 {
			r.changed(c.Args[len(c.Args)-1])
		}
		switch {
		case library:
			r.handed(r.imports[id.Name], f.Sel.Name, c.Args...)
		case r.own(f):
			r.given(r.library(c.Args)...)
		case r.members[f.Sel.Name]:
			r.given(c.Args...)
		default:
			if v := r.owner(f.X); v != "" && r.points(r.typeOf(f.X)) && !slices.Contains(looking, f.Sel.Name) {
				r.found("calls %s of %s, which its tests share", f.Sel.Name, v)
			}
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
	if v := r.owner(s.X); v != "" && !r.calls[s] && r.methods[s.Sel.Name] != nil {
		r.found("keeps the method %s of %s, which its tests share", s.Sel.Name, v)
	}
	if v := r.giving[s.Sel.Name]; v != "" && !r.calls[s] {
		r.found("keeps %s, which returns a part of %s", s.Sel.Name, v)
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
