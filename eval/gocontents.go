package eval

import (
	"cmp"
	"go/ast"
	"slices"
	"strings"
)

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

// taken collects names of the whole program that variables of the library get.
func (r *reach) taken(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Recv != nil {
			r.members[n.Name.Name] = true
		}
		r.returning(n)
	case *ast.CallExpr:
		r.passed(n)
	case *ast.Field:
		for _, id := range n.Names {
			r.members[id.Name] = true
		}
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			if from := min(i, len(n.Rhs)-1); from == i || from == 0 {
				r.take(to, n.Rhs[from])
				r.share(to, n.Rhs[from], len(n.Rhs) == len(n.Lhs))
			}
		}
	case *ast.ValueSpec:
		for i, to := range n.Names {
			if from := min(i, len(n.Values)-1); from >= 0 {
				r.take(to, n.Values[from])
				r.share(to, n.Values[from], len(n.Names) == len(n.Values))
			}
		}
	case *ast.RangeStmt:
		if n.Value != nil {
			r.take(n.Value, &ast.IndexExpr{X: n.X})
		}
		for i, to := range []ast.Expr{n.Key, n.Value} {
			if id, ok := to.(*ast.Ident); ok && id.Obj != nil && r.points(r.item(n.X, i)) {
				r.mark(id, cmp.Or(r.owner(n.X), r.collection(n.X)))
			}
		}
	}
	return true
}

// makers are functions and methods of the library that hand out what it shares.
var makers = []string{"MakeTable", "Location", "LoadLocation", "FixedZone"}

// making reports whether the tests could notice what is done to what a maker hands out.
func (r *reach) making(name string) bool { return name == "MakeTable" || r.clock && r.has("time") }

func (r *reach) take(to, from ast.Expr) {
	id, ok := to.(*ast.Ident)
	if !ok || id.Obj == nil || id.Obj.Kind != ast.Var || id.Name == "_" {
		return
	}
	from = ast.Unparen(from)
	if v := r.origin(from); v != "" && r.second[id.Obj] == "" {
		r.second[id.Obj] = v
	}
	if v, path := r.contentOf(from); v != "" {
		r.strong[id.Obj], r.second[id.Obj], r.paths[id.Obj] = true, v, path
	}
}

// made returns the maker that a call is of; empty: of none.
func (r *reach) made(e ast.Expr) string {
	c, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(makers, s.Sel.Name) || r.members[s.Sel.Name] && !r.making(s.Sel.Name) {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		return x.Name + "." + s.Sel.Name
	}
	return s.Sel.Name
}

// holder returns the expression that e is a part of, a value of, or in parentheses of; nil where there is none.
func holder(e ast.Expr) ast.Expr {
	switch x := e.(type) {
	case *ast.ParenExpr:
		return x.X
	case *ast.StarExpr:
		return x.X
	case *ast.IndexExpr:
		return x.X
	case *ast.IndexListExpr:
		return x.X
	case *ast.SliceExpr:
		return x.X
	case *ast.TypeAssertExpr:
		return x.X
	case *ast.SelectorExpr:
		return x.X
	}
	return nil
}

// root returns the outermost expression that e is a part of.
func root(e ast.Expr) ast.Expr {
	for x := holder(e); x != nil; x = holder(e) {
		e = x
	}
	return e
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

// content returns which content that the tests share an expression is, and its package; empty: none.
func (r *reach) content(e ast.Expr) (name, path string) {
	if name, path = r.contentOf(e); name == "" {
		name, path = r.part(e), problem
	}
	return name, path
}

// contentOf returns which content of the library an expression is.
func (r *reach) contentOf(e ast.Expr) (name, path string) {
	switch x := ast.Unparen(e).(type) {
	case *ast.TypeAssertExpr:
		return r.contentOf(x.X)
	case *ast.IndexExpr:
		return r.contentOf(x.X)
	case *ast.CallExpr:
		if v := r.made(x); v != "" && r.making(v[strings.LastIndexByte(v, '.')+1:]) {
			return v, makerOf(v)
		}
	case *ast.SelectorExpr:
		id, ok := x.X.(*ast.Ident)
		if ok && id.Obj == nil && holds(r.imports[id.Name], x.Sel.Name) {
			return id.Name + "." + x.Sel.Name, r.imports[id.Name]
		}
	case *ast.Ident:
		if x.Obj != nil && r.strong[x.Obj] {
			return r.second[x.Obj], r.paths[x.Obj]
		}
		for _, path := range r.dots {
			if x.Obj == nil && !r.declared[x.Name] && holds(path, x.Name) {
				return x.Name, path
			}
		}
	}
	return "", ""
}

// makerOf returns the package that a maker is of.
func makerOf(v string) string {
	if strings.HasSuffix(v, "MakeTable") {
		return "hash/crc32"
	}
	return "time"
}

// plain are names of package unicode that are no variables.
var plain = strings.Fields(`CaseRange In Is IsControl IsDigit IsGraphic IsLetter IsLower IsMark IsNumber IsOneOf IsPrint
	IsPunct IsSpace IsSymbol IsTitle IsUpper LowerCase MaxASCII MaxCase MaxLatin1 MaxRune Range16 Range32 RangeTable
	ReplacementChar SimpleFold SpecialCase TitleCase To ToLower ToTitle ToUpper UpperCase UpperLower Version`)

// holds reports whether a name of a package is a variable whose content can be written by another name of it.
func holds(path, name string) bool {
	table := path == "unicode" && ast.IsExported(name) && !slices.Contains(plain, name)
	return table || slices.Contains(contents[path], name)
}

// readers are packages whose functions leave what they are given as it is, and hand it to nobody.
var readers = []string{"fmt", "strings", "bytes"}

// problem stands for the package of the problem's own variables; lookers are functions that only look at those.
const problem = "the problem"

var lookers = strings.Fields(`bytes.Equal bytes.Contains bytes.Index bytes.Count bytes.Compare bytes.HasPrefix
	bytes.HasSuffix reflect.DeepEqual slices.Contains slices.Index slices.Equal slices.Max slices.Min slices.BinarySearch
	slices.Compare slices.Clone maps.Keys maps.Values maps.Clone maps.Equal sort.SearchInts sort.SearchStrings`)

// given are values that get a name which is not followed.
func (r *reach) given(all ...ast.Expr) {
	for _, e := range all {
		if v, _ := r.content(e); v != "" {
			r.found("keeps %s, which its tests share", v)
		}
	}
}

// handed are arguments of a function or method of the library: contents go to those of their own package, and to
// readers.
func (r *reach) handed(path, name string, all ...ast.Expr) {
	for i, e := range all {
		v, own := r.content(e)
		looks := slices.Contains(readers, path)
		if own == problem {
			looks = path == "strings" || slices.Contains(lookers, path+"."+name) ||
				path == "fmt" && !strings.Contains(name, "can") && !(i == 0 && strings.HasPrefix(name, "Fprint")) ||
				path == "" && slices.Contains(reading, name) ||
				path == "sort" && strings.HasPrefix(name, "Slice") && r.owner(e) == "" // of its own list
		}
		if v != "" && path != own && !looks && (path != "" || name != "In") {
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

// fields notes the names of fields in a literal of a struct that the program declares.
func (r *reach) fields(c *ast.CompositeLit) {
	id, ok := c.Type.(*ast.Ident)
	if !ok || id.Obj == nil {
		return
	}
	spec, ok := id.Obj.Decl.(*ast.TypeSpec)
	if !ok {
		return
	}
	if _, ok := spec.Type.(*ast.StructType); !ok {
		return
	}
	for _, e := range c.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok {
				r.keys[key] = true
			}
		}
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
