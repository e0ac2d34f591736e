package eval

import (
	"cmp"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// The tests may rely on what a variable of the problem holds. What shares content with it is followed through the text:
// parts of it, local names, loops, parameters and receivers of functions of the program, and what those return. None of
// it is written, or handed to anything that is not followed. What no copy shares (see points) is free.

// guard collects the variables of the problem that begin with something and that the tests, or whole functions of the
// problem, name, and those that they begin with. Others that begin empty are the state of a program.
func (r *reach) guard(f *ast.File, use usage) {
	r.guarded = map[any]string{}
	begun := begins(f, r.from)
	values := map[any]ast.Expr{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR || d.End() > r.from {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, id := range v.Names {
				if id.Obj == nil {
					continue
				}
				values[id.Obj] = nil
				if i < len(v.Values) {
					values[id.Obj] = v.Values[i]
				}
				if use.names[id.Name] && (begun[id.Obj] || i < len(v.Values) && !empty(v.Values[i])) {
					r.guarded[id.Obj] = id.Name
				}
			}
		}
	}
	for before := -1; before < len(r.guarded); {
		before = len(r.guarded)
		for obj, e := range values {
			if e == nil || r.guarded[obj] == "" {
				continue
			}
			ast.Inspect(e, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id.Obj != nil {
					if _, is := values[id.Obj]; is {
						r.guarded[id.Obj] = id.Name
					}
				}
				return true
			})
		}
	}
}

// begins returns the variables that functions of the problem begin, by their Ident.Obj: init functions, and what they
// call, write them, or any whole function sets them to what is written out there.
func begins(f *ast.File, from token.Pos) map[any]bool {
	begun, first := map[any]bool{}, map[*ast.FuncDecl]bool{}
	var reached func(m *ast.FuncDecl)
	reached = func(m *ast.FuncDecl) {
		if first[m] || m.End() > from {
			return
		}
		first[m] = true
		ast.Inspect(m, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Obj != nil && id.Obj.Kind == ast.Fun {
				if d, ok := id.Obj.Decl.(*ast.FuncDecl); ok {
					reached(d)
				}
			}
			return true
		})
	}
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && m.Recv == nil && m.Name.Name == "init" {
			reached(m)
		}
	}
	for _, d := range f.Decls {
		m, whole := d.(*ast.FuncDecl)
		if !whole || d.End() > from {
			continue
		}
		ast.Inspect(m, func(n ast.Node) bool {
			a, ok := n.(*ast.AssignStmt)
			if !ok || a.Tok == token.DEFINE {
				return true
			}
			for i, to := range a.Lhs {
				id, ok := root(to).(*ast.Ident)
				if !ok || id.Obj == nil {
					continue
				}
				_, all := to.(*ast.Ident)
				from := a.Rhs[min(i, len(a.Rhs)-1)]
				if first[m] && !empty(from) || all && written(from) {
					begun[id.Obj] = true
				}
			}
			return true
		})
	}
	return begun
}

// written reports whether a value is written out, and is not empty.
func written(e ast.Expr) bool {
	if u, ok := e.(*ast.UnaryExpr); ok {
		e = u.X
	}
	c, ok := e.(*ast.CompositeLit)
	return ok && len(c.Elts) > 0
}

// empty reports whether a variable that begins with e holds nothing yet.
func empty(e ast.Expr) bool {
	switch x := ast.Unparen(e).(type) {
	case *ast.BasicLit:
		return x.Value == "0" || x.Value == `""` || x.Value == "0.0" || x.Value == "``"
	case *ast.Ident:
		return x.Name == "nil" || x.Name == "false"
	case *ast.CompositeLit:
		return len(x.Elts) == 0
	case *ast.UnaryExpr:
		return empty(x.X)
	case *ast.CallExpr:
		id, ok := x.Fun.(*ast.Ident)
		return ok && (id.Name == "make" || id.Name == "new")
	}
	return false
}

// find collects the methods of a file.
func (r *reach) find(f *ast.File) {
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil {
			r.methods[m.Name.Name] = append(r.methods[m.Name.Name], m)
		}
	}
}

// known counts the names that are followed.
func (r *reach) known() int {
	return len(r.second) + len(r.strong) + len(r.parts) + len(r.gives) + len(r.giving) + len(r.holds)
}

// owner returns the variable of the problem that an expression is a part of; empty: of none.
func (r *reach) owner(e ast.Expr) string {
	switch x := ast.Unparen(e).(type) {
	case *ast.Ident:
		if x.Obj == nil {
			return ""
		}
		return cmp.Or(r.guarded[x.Obj], r.parts[x.Obj])
	case *ast.UnaryExpr:
		return r.owner(x.X)
	case *ast.IndexExpr:
		if v := r.collection(x.X); v != "" {
			return v
		}
	case *ast.CallExpr:
		return r.ownerOfResult(x)
	}
	if h := holder(e); h != nil {
		return r.owner(h)
	}
	return ""
}

// passing are functions of the library whose result has the content of what they are given.
var passing = strings.Fields("slices.Clone maps.Clone maps.Keys maps.Values")

// Of methods of the library, looking leave what they are asked of as it is, counting return plain values besides, and
// reading leave their arguments as they are.
var (
	looking  = append([]string{"Front", "Back", "Next", "Prev", "Get", "Load", "Value"}, counting...)
	counting = strings.Fields(`Cmp CmpAbs Sign Int64 Uint64 IsInt64 IsUint64 BitLen Bit Text Len Cap String Error Seconds
		Lock Unlock RLock RUnlock MatchString`)
	reading = strings.Fields("Add Sub Mul Div Mod Quo Rem Exp ModInverse Lsh Rsh And Or Xor Cmp CmpAbs Set")
)

// ownerOfResult returns the variable of the problem that the result of a call may be a part of.
func (r *reach) ownerOfResult(c *ast.CallExpr) string {
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		switch {
		case f.Obj != nil && f.Obj.Kind == ast.Fun:
			return r.gives[f.Obj]
		case len(c.Args) == 1 && (f.Name == "any" || f.Obj != nil && f.Obj.Kind == ast.Typ):
			return r.owner(c.Args[0])
		}
	case *ast.SelectorExpr:
		id, ok := f.X.(*ast.Ident)
		switch {
		case ok && id.Obj == nil && r.imports[id.Name] != "":
			path := r.imports[id.Name] + "." + f.Sel.Name
			if len(c.Args) == 1 && slices.Contains(passing, path) {
				i := 1
				if path == "maps.Keys" {
					i = 0
				}
				if r.points(r.item(c.Args[0], i)) {
					return cmp.Or(r.owner(c.Args[0]), r.collection(c.Args[0]))
				}
			}
		case r.own(f):
			return r.giving[f.Sel.Name]
		case !slices.Contains(counting, f.Sel.Name):
			return r.owner(f.X)
		}
	default:
		if len(c.Args) == 1 {
			return r.owner(c.Args[0])
		}
	}
	return ""
}

// part returns the variable of the problem whose content an expression shares; empty: none.
func (r *reach) part(e ast.Expr) string {
	if v := r.owner(e); v != "" && r.points(r.typeOf(e)) {
		return v
	}
	return r.collection(e)
}

// own reports whether a method may be one that the file declares.
func (r *reach) own(f *ast.SelectorExpr) bool {
	if r.methods[f.Sel.Name] == nil {
		return false
	}
	t := r.typeOf(f.X)
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if _, library := t.(*ast.SelectorExpr); library {
		return false
	}
	id, ok := t.(*ast.Ident)
	if !ok || id.Obj == nil {
		return true
	}
	if _, face := under(t).(*ast.InterfaceType); face {
		return true
	}
	return slices.ContainsFunc(r.methods[f.Sel.Name], func(m *ast.FuncDecl) bool { return receiver(m) == id.Name })
}

// inPlace reports whether an expression is a part of a local variable that no pointer, list or map leads to.
func (r *reach) inPlace(e ast.Expr) bool {
	switch x := ast.Unparen(e).(type) {
	case *ast.Ident:
		return x.Obj == nil || r.guarded[x.Obj] == ""
	case *ast.SelectorExpr:
		_, ok := under(r.typeOf(x.X)).(*ast.StructType)
		return ok && r.inPlace(x.X)
	case *ast.IndexExpr:
		t, ok := under(r.typeOf(x.X)).(*ast.ArrayType)
		return ok && t.Len != nil && r.inPlace(x.X)
	}
	return false
}

func (r *reach) mark(id *ast.Ident, v string) {
	if v != "" && id.Obj != nil && id.Name != "_" && r.parts[id.Obj] == "" && r.guarded[id.Obj] == "" {
		r.parts[id.Obj] = v
	}
}

// share notes that a name gets a part of a variable of the problem. alone says that from is the value of to only.
func (r *reach) share(to, from ast.Expr, alone bool) {
	id, ok := to.(*ast.Ident)
	if !ok || id.Obj == nil || id.Obj.Kind != ast.Var {
		return
	}
	t := r.typeOf(from)
	if !alone {
		t = r.typeOf(id)
	}
	if r.points(t) {
		r.mark(id, r.owner(from))
	}
	r.collects(id, from)
}

// passed notes parts that functions and methods of the file get as parameters and receivers.
func (r *reach) passed(c *ast.CallExpr) {
	r.copied(c)
	switch f := c.Fun.(type) {
	case *ast.Ident:
		if f.Obj != nil && f.Obj.Kind == ast.Fun {
			if d, ok := f.Obj.Decl.(*ast.FuncDecl); ok {
				r.bind(d.Type.Params, c.Args)
			}
		}
	case *ast.SelectorExpr:
		id, ok := root(f.X).(*ast.Ident)
		expression := ok && id.Obj != nil && id.Obj.Kind == ast.Typ && len(c.Args) > 0 // (*T).method(x)
		for _, m := range r.methods[f.Sel.Name] {
			if expression {
				r.bind(m.Recv, c.Args[:1])
				r.bind(m.Type.Params, c.Args[1:])
				continue
			}
			_, pointer := m.Recv.List[0].Type.(*ast.StarExpr)
			if v := cmp.Or(r.owner(f.X), r.collection(f.X)); v != "" && len(m.Recv.List[0].Names) == 1 &&
				(r.points(r.typeOf(f.X)) || pointer && !r.inPlace(f.X)) {
				r.mark(m.Recv.List[0].Names[0], v)
			}
			r.bind(m.Type.Params, c.Args)
		}
	}
}

// bind notes which parameters get parts; where numbers differ, each may.
func (r *reach) bind(params *ast.FieldList, args []ast.Expr) {
	var names []*ast.Ident
	for _, p := range params.List {
		names = append(names, p.Names...)
	}
	for i, a := range args {
		v := r.part(a)
		if len(args) == 1 && len(names) > 1 { // f(g())
			v = cmp.Or(v, r.owner(a))
			for _, id := range names {
				r.mark(id, v)
			}
		}
		if len(names) > 0 {
			r.mark(names[min(i, len(names)-1)], v)
		}
	}
}

// shared reports whether a function of the problem gets a part of one of its variables from what is generated.
func (r *reach) shared(d *ast.FuncDecl) bool {
	lists := []*ast.FieldList{d.Type.Params}
	if d.Recv != nil {
		lists = append(lists, d.Recv)
	}
	for _, l := range lists {
		for _, p := range l.List {
			for _, id := range p.Names {
				if id.Obj != nil && r.parts[id.Obj] != "" {
					return d.Body != nil
				}
			}
		}
	}
	return false
}
