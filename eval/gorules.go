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
// given another meaning, but by memory that is written past the language; and only by such memory, by the system or by
// the program's own file are the tests read. All can be seen in the text: what is generated imports pure packages only.

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
}

// contents are variables of pure packages whose content can be written by another name of theirs.
var contents = map[string][]string{
	"encoding/base64": {"StdEncoding", "URLEncoding", "RawStdEncoding", "RawURLEncoding"},
	"encoding/base32": {"StdEncoding", "HexEncoding"},
	"encoding/xml":    {"HTMLEntity", "HTMLAutoClose"},
	"encoding/asn1":   {"NullBytes"},
	"hash/crc32":      {"IEEETable"},
	"time":            {"UTC", "Local"},
}

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
	dots     []string          // packages that are imported with a dot
	declared map[string]bool   // by the program for the whole package
	members  map[string]bool   // names of the program's methods, fields and parameters
	tests    map[string]bool   // variables of the tests
	second   map[any]string    // variables of the program, by their Ident.Obj: of what of the library they were taken from
	strong   map[any]bool      // those of second that are the library's contents themselves
	counted  map[ast.Expr]bool // what only its length is asked of
	why      string            // the first that was found
}

// reaches says why a Go program does not count: what is generated of program.go, from that byte on, assigns to a
// variable of the library or of the tests, or reaches memory past the language, or imports what is not pure.
func reaches(files map[string]string, generated int) string {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "program.go", files["program.go"], parser.ParseComments)
	if err != nil { // the compiler could read it all the same
		return "does not compile: " + err.Error()
	}
	r := &reach{from: set.File(f.FileStart).Pos(generated), imports: map[string]string{}, tests: testVariables(files)}
	r.declared, r.members, r.counted = map[string]bool{}, map[string]bool{}, map[ast.Expr]bool{}
	r.second, r.strong = map[any]string{}, map[any]bool{}
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
	for before := -1; before < len(r.second)+len(r.strong); { // names of names
		before = len(r.second) + len(r.strong)
		ast.Inspect(f, r.taken)
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

// taken collects names of the whole program that variables of the library get.
func (r *reach) taken(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Recv != nil {
			r.members[n.Name.Name] = true
		}
	case *ast.Field:
		for _, id := range n.Names {
			r.members[id.Name] = true
		}
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			if from := min(i, len(n.Rhs)-1); from == i || from == 0 {
				r.take(to, n.Rhs[from])
			}
		}
	case *ast.ValueSpec:
		for i, to := range n.Names {
			if from := min(i, len(n.Values)-1); from >= 0 {
				r.take(to, n.Values[from])
			}
		}
	case *ast.RangeStmt:
		if n.Value != nil {
			r.take(n.Value, &ast.IndexExpr{X: n.X})
		}
	}
	return true
}

// makers are functions and methods of the library that hand out what it shares.
var makers = []string{"MakeTable", "Location", "LoadLocation"}

func (r *reach) take(to, from ast.Expr) {
	id, ok := to.(*ast.Ident)
	if !ok || id.Obj == nil || id.Obj.Kind != ast.Var || id.Name == "_" {
		return
	}
	from = ast.Unparen(from)
	if v := r.origin(from); v != "" && r.second[id.Obj] == "" {
		r.second[id.Obj] = v
	}
	if r.content(from) != "" {
		r.strong[id.Obj] = true
	}
}

// made returns the maker that a call is of; empty: of none.
func (r *reach) made(e ast.Expr) string {
	c, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(makers, s.Sel.Name) || r.members[s.Sel.Name] {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		return x.Name + "." + s.Sel.Name
	}
	return s.Sel.Name
}

// root returns what an expression is a part of.
func root(e ast.Expr) ast.Expr {
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
			e = x.X
		default:
			return e
		}
	}
}

// origin returns the variable of the library that an expression is a part of, by its name or by a second one.
func (r *reach) origin(e ast.Expr) string {
	if v := r.variable(e); v != "" {
		return v
	}
	e = root(e)
	if id, ok := e.(*ast.Ident); ok && id.Obj != nil {
		return r.second[id.Obj]
	}
	return r.made(e)
}

// content returns which of contents an expression is; empty: none.
func (r *reach) content(e ast.Expr) string {
	switch x := ast.Unparen(e).(type) {
	case *ast.TypeAssertExpr:
		return r.content(x.X)
	case *ast.CallExpr:
		if v := r.made(x); strings.HasSuffix(v, "MakeTable") {
			return v
		}
	case *ast.SelectorExpr:
		if id, ok := x.X.(*ast.Ident); ok && id.Obj == nil && slices.Contains(contents[r.imports[id.Name]], x.Sel.Name) {
			return id.Name + "." + x.Sel.Name
		}
	case *ast.Ident:
		if x.Obj != nil && r.strong[x.Obj] {
			return r.second[x.Obj]
		}
		for _, path := range r.dots {
			if x.Obj == nil && !r.declared[x.Name] && slices.Contains(contents[path], x.Name) {
				return x.Name
			}
		}
	}
	return ""
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
		r.selected(n)
	case *ast.Ident:
		for _, path := range r.dots {
			if n.Obj == nil && ast.IsExported(n.Name) && !r.declared[n.Name] {
				r.named(path, n.Name)
			}
		}
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
			if len(r.dots) > 0 && x.Obj == nil && x.Name != "_" && ast.IsExported(x.Name) && !r.declared[x.Name] {
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

// given are values that get a name which is not followed.
func (r *reach) given(all ...ast.Expr) {
	for _, e := range all {
		if v := r.content(e); v != "" {
			r.found("keeps %s, which its tests share", v)
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
		if library && r.imports[id.Name] == "reflect" {
			r.changed(c.Args...)
		}
		if slices.Contains([]string{"Unmarshal", "Decode", "Read"}, f.Sel.Name) && len(c.Args) > 0 {
			r.changed(c.Args[len(c.Args)-1])
		}
		if !library && r.members[f.Sel.Name] {
			r.given(c.Args...)
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
	case r.imports["unicode"] != "" && slices.Contains([]string{"R16", "R32"}, s.Sel.Name):
		r.found("opens a table of package unicode, which its tests share")
	case r.imports["reflect"] != "" && r.imports["unicode"] != "" && s.Sel.Name == "Elem":
		r.found("opens a table of package unicode by reflection")
	}
}
