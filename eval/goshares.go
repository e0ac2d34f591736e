package eval

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// shares reports whether another name of a variable that begins with e may reach its content. Only what is known to be
// a plain value is not: numbers, texts, errors, and arrays and structs of them.
func (r *reach) shares(e ast.Expr) bool {
	switch x := ast.Unparen(e).(type) {
	case *ast.BasicLit, *ast.FuncLit, *ast.BinaryExpr:
		return false
	case *ast.UnaryExpr:
		return x.Op == token.AND || r.shares(x.X)
	case *ast.Ident:
		return x.Obj != nil && x.Obj.Kind == ast.Var && r.sharesVar(x)
	case *ast.SelectorExpr: // a name of the library: others are judged where they are used
		id, ok := x.X.(*ast.Ident)
		return !ok || id.Obj != nil
	case *ast.CompositeLit:
		for _, elem := range x.Elts {
			if pair, ok := elem.(*ast.KeyValueExpr); ok {
				elem = pair.Value
			}
			if r.shares(elem) {
				return true
			}
		}
		return x.Type != nil && r.points(x.Type)
	case *ast.CallExpr:
		return r.sharesCall(x)
	}
	return true
}

// sharesVar judges a variable that another begins with.
func (r *reach) sharesVar(id *ast.Ident) bool {
	spec, ok := id.Obj.Decl.(*ast.ValueSpec)
	if !ok {
		return true
	}
	if spec.Type != nil {
		return r.points(spec.Type)
	}
	i := slices.IndexFunc(spec.Names, func(n *ast.Ident) bool { return n.Name == id.Name })
	return i < 0 || len(spec.Values) != len(spec.Names) || spec.Pos() >= id.Pos() || r.shares(spec.Values[i])
}

// sharesCall judges what a call or a conversion returns.
func (r *reach) sharesCall(c *ast.CallExpr) bool {
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		switch {
		case f.Obj == nil: // of the language
			return slices.Contains([]string{"append", "make", "new", "any"}, f.Name)
		case f.Obj.Kind == ast.Typ:
			return r.points(f)
		}
		d, ok := f.Obj.Decl.(*ast.FuncDecl)
		if !ok || d.Type.Results == nil {
			return true
		}
		return slices.ContainsFunc(d.Type.Results.List, func(v *ast.Field) bool { return r.points(v.Type) })
	case *ast.SelectorExpr:
		id, ok := f.X.(*ast.Ident)
		if !ok || id.Obj != nil {
			return true
		}
		switch r.imports[id.Name] {
		case "errors", "fmt", "strconv", "math", "regexp", "time":
			return false
		case "strings":
			return strings.HasPrefix(f.Sel.Name, "Split") || strings.HasPrefix(f.Sel.Name, "Fields")
		}
		return true
	case *ast.ArrayType, *ast.MapType, *ast.StarExpr, *ast.InterfaceType:
		return r.points(f)
	}
	return true
}

// points reports whether copies of a value of a type share content.
func (r *reach) points(t ast.Expr) bool {
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
		return !ok || r.imports[id.Name] == "math/big"
	case *ast.IndexExpr:
		return r.points(t.X)
	}
	return true
}
