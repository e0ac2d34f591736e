package eval

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// plainType stands for a type of which copies share nothing.
var plainType = ast.NewIdent("int")

// typeOf returns the type of an expression, as far as the text of its file shows it; nil: not known.
func (r *reach) typeOf(e ast.Expr) ast.Expr {
	if r.depth > 100 { // a variable that begins with itself does not compile
		return nil
	}
	r.depth++
	defer func() { r.depth-- }()
	switch x := ast.Unparen(e).(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			return ast.NewIdent("string")
		}
		return plainType
	case *ast.BinaryExpr:
		return plainType
	case *ast.FuncLit:
		return x.Type
	case *ast.CompositeLit:
		return x.Type
	case *ast.TypeAssertExpr:
		return x.Type
	case *ast.UnaryExpr:
		switch x.Op {
		case token.AND:
			if t := r.typeOf(x.X); t != nil {
				return &ast.StarExpr{X: t}
			}
			return nil
		case token.ARROW:
			if c, ok := under(r.typeOf(x.X)).(*ast.ChanType); ok {
				return c.Value
			}
			return nil
		}
		return plainType
	case *ast.StarExpr:
		if p, ok := under(r.typeOf(x.X)).(*ast.StarExpr); ok {
			return p.X
		}
	case *ast.IndexExpr:
		return r.item(x.X, 1)
	case *ast.SliceExpr:
		if a, ok := under(r.typeOf(x.X)).(*ast.ArrayType); ok {
			return &ast.ArrayType{Elt: a.Elt}
		}
		return r.typeOf(x.X)
	case *ast.SelectorExpr:
		id, ok := x.X.(*ast.Ident)
		if ok && id.Obj == nil { // a name of the library: those that are shared are judged where they are used
			return plainType
		}
		return r.fieldOf(r.typeOf(x.X), x.Sel.Name, 3)
	case *ast.Ident:
		return r.typeOfName(x)
	case *ast.CallExpr:
		return r.typeOfCall(x)
	}
	return nil
}

// typeOfName returns the type of a variable.
func (r *reach) typeOfName(id *ast.Ident) ast.Expr {
	if id.Obj == nil {
		if slices.Contains([]string{"true", "false", "nil", "iota"}, id.Name) {
			return plainType
		}
		return nil
	}
	switch d := id.Obj.Decl.(type) {
	case *ast.Field:
		if list, ok := d.Type.(*ast.Ellipsis); ok {
			return &ast.ArrayType{Elt: list.Elt}
		}
		return d.Type
	case *ast.ValueSpec:
		i := slices.IndexFunc(d.Names, func(n *ast.Ident) bool { return n.Obj == id.Obj })
		switch {
		case d.Type != nil:
			return d.Type
		case id.Obj.Kind == ast.Con:
			return plainType
		case i >= 0 && len(d.Values) == len(d.Names):
			return r.typeOf(d.Values[i])
		case i >= 0 && len(d.Values) == 1:
			return r.resultOf(d.Values[0], i)
		}
	case *ast.AssignStmt:
		i := slices.IndexFunc(d.Lhs, func(e ast.Expr) bool { n, ok := e.(*ast.Ident); return ok && n.Obj == id.Obj })
		switch {
		case i < 0:
		case len(d.Rhs) == len(d.Lhs) && !ranges(d.Rhs[0]):
			return r.typeOf(d.Rhs[i])
		case len(d.Rhs) == 1:
			return r.resultOf(d.Rhs[0], i)
		}
	}
	return nil
}

// ranges reports whether an expression stands for what a loop ranges over.
func ranges(e ast.Expr) bool {
	u, ok := e.(*ast.UnaryExpr)
	return ok && u.Op == token.RANGE
}

// resultOf returns the type of a value that an expression has several of.
func (r *reach) resultOf(e ast.Expr, i int) ast.Expr {
	switch x := e.(type) {
	case *ast.UnaryExpr:
		if x.Op == token.RANGE {
			return r.item(x.X, i)
		}
	case *ast.CallExpr:
		if d := r.function(x); d != nil {
			return result(d, i)
		}
		return nil
	}
	if i == 0 {
		return r.typeOf(e)
	}
	return plainType // ok
}

// item returns the type of keys (0) and values (1) of what an expression holds.
func (r *reach) item(e ast.Expr, i int) ast.Expr {
	t := under(r.typeOf(e))
	if p, ok := t.(*ast.StarExpr); ok {
		t = under(p.X)
	}
	switch t := t.(type) {
	case *ast.ArrayType:
		if i == 0 {
			return plainType
		}
		return t.Elt
	case *ast.MapType:
		if i == 0 {
			return t.Key
		}
		return t.Value
	case *ast.ChanType:
		return t.Value
	case *ast.Ident:
		if t.Obj == nil && t.Name != "any" { // a text or a number
			return plainType
		}
	}
	return nil
}

// fieldOf returns the type of a field, also of embedded structs.
func (r *reach) fieldOf(t ast.Expr, name string, depth int) ast.Expr {
	t = under(t)
	if p, ok := t.(*ast.StarExpr); ok {
		t = under(p.X)
	}
	s, ok := t.(*ast.StructType)
	if !ok || depth == 0 {
		return nil
	}
	for _, f := range s.Fields.List {
		for _, id := range f.Names {
			if id.Name == name {
				return f.Type
			}
		}
		if len(f.Names) == 0 {
			if embedded(f) == name {
				return f.Type
			}
			if in := r.fieldOf(f.Type, name, depth-1); in != nil {
				return in
			}
		}
	}
	return nil
}

// embedded returns the name of a field that is embedded.
func embedded(f *ast.Field) string {
	t := f.Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.SelectorExpr:
		return t.Sel.Name
	}
	return ""
}

// under returns the type that a name of the file stands for.
func under(t ast.Expr) ast.Expr {
	for range 20 {
		if t == nil {
			return nil
		}
		t = ast.Unparen(t)
		id, ok := t.(*ast.Ident)
		if !ok || id.Obj == nil {
			return t
		}
		spec, ok := id.Obj.Decl.(*ast.TypeSpec)
		if !ok {
			return t
		}
		t = spec.Type
	}
	return nil
}

// function returns the function or method of the file that a call is of, if that is known.
func (r *reach) function(c *ast.CallExpr) *ast.FuncDecl {
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		if f.Obj != nil {
			d, _ := f.Obj.Decl.(*ast.FuncDecl)
			return d
		}
	case *ast.SelectorExpr:
		if all := r.methods[f.Sel.Name]; len(all) == 1 && r.own(f) {
			return all[0]
		}
	}
	return nil
}

// result returns the type of a result of a function.
func result(d *ast.FuncDecl, i int) ast.Expr {
	if d.Type.Results == nil {
		return nil
	}
	for _, f := range d.Type.Results.List {
		if i -= max(1, len(f.Names)); i < 0 {
			return f.Type
		}
	}
	return nil
}

// typeOfCall returns the type of what a call or a conversion returns.
func (r *reach) typeOfCall(c *ast.CallExpr) ast.Expr {
	if d := r.function(c); d != nil {
		return result(d, 0)
	}
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		switch {
		case f.Obj != nil && f.Obj.Kind == ast.Typ:
			return f
		case f.Obj != nil || f.Name == "any":
			return nil
		case f.Name == "append" && len(c.Args) > 0:
			return r.typeOf(c.Args[0])
		case f.Name == "make" && len(c.Args) > 0:
			return c.Args[0]
		case f.Name == "new" && len(c.Args) > 0:
			return &ast.StarExpr{X: c.Args[0]}
		}
		return ast.NewIdent(f.Name) // of the language: a conversion, or a number
	case *ast.SelectorExpr:
		id, ok := f.X.(*ast.Ident)
		if !ok || id.Obj != nil {
			return nil
		}
		switch path := r.imports[id.Name]; {
		case path == "strings" && (strings.HasPrefix(f.Sel.Name, "Split") || strings.HasPrefix(f.Sel.Name, "Fields")):
			return &ast.ArrayType{Elt: ast.NewIdent("string")}
		case path == "strings" && strings.HasPrefix(f.Sel.Name, "New"):
			return nil
		case slices.Contains([]string{"errors", "fmt", "strconv", "strings", "math", "regexp", "time"}, path):
			return plainType
		case path == "slices" && f.Sel.Name == "Clone" && len(c.Args) == 1:
			return r.typeOf(c.Args[0])
		}
	case *ast.ArrayType, *ast.MapType, *ast.StarExpr, *ast.InterfaceType, *ast.FuncType:
		return f
	}
	return nil
}

// points reports whether copies of a value of a type share content. Only what is known to be plain does not: numbers,
// texts, errors, functions, and arrays and structs of them.
func (r *reach) points(t ast.Expr) bool {
	if t == nil {
		return true
	}
	switch t := ast.Unparen(t).(type) {
	case *ast.ArrayType:
		return t.Len == nil || r.points(t.Elt)
	case *ast.FuncType:
		return false
	case *ast.StructType:
		return slices.ContainsFunc(t.Fields.List, func(v *ast.Field) bool { return r.points(v.Type) })
	case *ast.Ident:
		if t.Obj == nil {
			return t.Name == "any"
		}
		spec, ok := t.Obj.Decl.(*ast.TypeSpec)
		return !ok || spec.Type == t || r.points(spec.Type)
	case *ast.SelectorExpr:
		id, ok := t.X.(*ast.Ident)
		return !ok || !slices.Contains([]string{"time", "errors", "sync/atomic", "math/cmplx"}, r.imports[id.Name]) &&
			r.imports[id.Name]+"."+t.Sel.Name != "sync.Mutex" && r.imports[id.Name]+"."+t.Sel.Name != "sync.RWMutex"
	case *ast.StarExpr:
		s, ok := t.X.(*ast.SelectorExpr)
		return !ok || s.Sel.Name != "Regexp"
	case *ast.IndexExpr:
		return r.points(t.X)
	}
	return true
}
