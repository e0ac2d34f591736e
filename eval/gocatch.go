package eval

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// hands reports whether tests hand a function of theirs to others, or have methods: what fails in those, a program that
// calls them could catch. A function that is called where it stands, or by its own name only, is none.
func hands(t *ast.File) (yes bool) {
	own, called, bound := map[string]bool{}, map[ast.Node]bool{}, map[any]ast.Node{}
	for _, d := range t.Decls {
		if m, ok := d.(*ast.FuncDecl); ok {
			if m.Recv != nil {
				return true
			}
			own[m.Name.Name], called[m.Name] = true, true
		}
	}
	ast.Inspect(t, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			called[ast.Unparen(n.Fun)] = true
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				id, ok := to.(*ast.Ident)
				if ok && n.Tok == token.DEFINE && id.Obj != nil && len(n.Rhs) == len(n.Lhs) {
					if f, ok := n.Rhs[i].(*ast.FuncLit); ok {
						bound[id.Obj], called[id], called[f] = f, true, true
					}
				}
			}
		}
		return true
	})
	ast.Inspect(t, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			yes = yes || !called[n]
		case *ast.SelectorExpr:
			called[n.Sel] = true
		case *ast.Ident:
			yes = yes || !called[n] && (own[n.Name] && (n.Obj == nil || n.Obj.Kind == ast.Fun) || bound[n.Obj] != nil)
		}
		return true
	})
	return yes
}

// shows reports whether declarations of a file look at what package fmt makes of values; for what they fail with, it
// does not matter.
func shows(f *ast.File, decls ...ast.Decl) (yes bool) {
	name := ""
	for _, spec := range f.Imports {
		if spec.Path.Value == `"fmt"` {
			name = "fmt"
			if spec.Name != nil {
				name = spec.Name.Name
			}
		}
	}
	if name == "." {
		return true
	}
	for _, d := range decls {
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "panic" {
					return false
				}
			case *ast.SelectorExpr:
				id, ok := n.X.(*ast.Ident)
				yes = yes || ok && id.Name == name && !strings.HasPrefix(n.Sel.Name, "Print")
			}
			return true
		})
	}
	return yes
}

// spoken are the methods that package fmt calls; it recovers from what fails in them.
var spoken = []string{"String", "Error", "GoString", "Format"}

// formatting are what methods that package fmt calls may ask of the library: nothing that calls methods of the program
// but those that are judged alike.
var formatting = strings.Fields(`fmt.Sprint* fmt.Errorf fmt.Append* strings.* strconv.* math.* math/bits.* unicode.*
	unicode/utf8.* errors.New errors.Join time.* bytes.* slices.* maps.* sort.Ints sort.Strings sort.Float64s sort.Slice
	sort.SliceStable`)

// runs reports whether a method that package fmt calls may run more than the library: it mentions a function or a
// method of the program, anything of a function's type, or what may call methods of the program.
func (r *reach) runs(m *ast.FuncDecl) (yes bool) {
	if !slices.Contains(spoken, m.Name.Name) || m.Body == nil {
		return false
	}
	literal, builds := map[*ast.FuncType]bool{}, map[ast.Node]bool{}
	ast.Inspect(m.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			literal[n.Type] = true
		case *ast.FuncType:
			yes = yes || !literal[n]
		case *ast.CallExpr:
			id, ok := ast.Unparen(n.Fun).(*ast.Ident)
			yes = yes || ok && id.Obj != nil && id.Obj.Kind == ast.Var
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Fprint") && len(n.Args) > 0 {
				builds[s] = r.builder(n.Args[0])
			}
		case *ast.SelectorExpr:
			id, ok := n.X.(*ast.Ident)
			if ok && id.Obj == nil && r.imports[id.Name] != "" {
				yes = yes || !builds[n] && !matches(formatting, r.imports[id.Name]+"."+n.Sel.Name)
				return false
			}
			own := r.methods[n.Sel.Name] != nil || r.callable[n.Sel.Name]
			yes = yes || own && !slices.Contains(spoken, n.Sel.Name) || n.Sel.Name == "WriteTo" || n.Sel.Name == "ReadFrom"
		case *ast.Ident:
			yes = yes || r.callable[n.Name] || n.Obj != nil && n.Obj.Kind == ast.Fun
			if n.Obj != nil && n.Obj.Kind == ast.Var && (n.Obj.Pos() < m.Pos() || n.Obj.Pos() > m.End()) {
				t := r.typeOf(n)
				yes = yes || t == nil || callable(t, 20)
			}
		}
		return true
	})
	return yes
}

// matches reports whether a name is one of a list; those that end in * stand for all that begin so.
func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(s string) bool {
		begin, all := strings.CutSuffix(s, "*")
		return s == name || all && strings.HasPrefix(name, begin)
	})
}

// builder reports whether an expression is the address of a local strings.Builder or bytes.Buffer.
func (r *reach) builder(e ast.Expr) bool {
	u, ok := e.(*ast.UnaryExpr)
	if !ok || u.Op != token.AND {
		return false
	}
	s, ok := r.typeOf(u.X).(*ast.SelectorExpr)
	return ok && (s.Sel.Name == "Builder" || s.Sel.Name == "Buffer")
}

// callables returns the names of fields, variables and types of a file that are, or hold, functions, and of what
// interfaces ask for.
func callables(f *ast.File) map[string]bool {
	names := map[string]bool{}
	note := func(t ast.Expr, ids ...*ast.Ident) {
		if t == nil || !callable(t, 20) {
			return
		}
		for _, id := range ids {
			names[id.Name] = true
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			note(n.Type, n.Names...)
		case *ast.ValueSpec:
			note(n.Type, n.Names...)
			for i, v := range n.Values {
				if _, ok := v.(*ast.FuncLit); ok && i < len(n.Names) {
					names[n.Names[i].Name] = true
				}
			}
		case *ast.TypeSpec:
			note(n.Type, n.Name)
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, id := range m.Names {
					names[id.Name] = names[id.Name] || !slices.Contains(spoken, id.Name)
				}
			}
			return false
		}
		return true
	})
	return names
}

// callable reports whether a type is one of functions, or of lists, maps, channels or pointers of them, or not known.
func callable(t ast.Expr, depth int) bool {
	switch t := ast.Unparen(t).(type) {
	case *ast.FuncType:
		return true
	case *ast.ArrayType:
		return callable(t.Elt, depth)
	case *ast.Ellipsis:
		return callable(t.Elt, depth)
	case *ast.MapType:
		return callable(t.Key, depth) || callable(t.Value, depth)
	case *ast.ChanType:
		return callable(t.Value, depth)
	case *ast.StarExpr:
		return callable(t.X, depth)
	case *ast.Ident:
		if t.Obj == nil || depth == 0 {
			return false
		}
		spec, ok := t.Obj.Decl.(*ast.TypeSpec)
		if !ok {
			return true // a parameter
		}
		return callable(spec.Type, depth-1)
	}
	return false
}
