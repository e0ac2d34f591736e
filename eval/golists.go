package eval

import "go/ast"

// A local list of parts is the program's own: it may grow and be sorted. Its items are parts.

// collection returns the variable of the problem that the items of a local list are parts of; empty: of none.
func (r *reach) collection(e ast.Expr) string {
	switch x := ast.Unparen(e).(type) {
	case *ast.SliceExpr:
		return r.collection(x.X)
	case *ast.Ident:
		if x.Obj != nil {
			return r.holds[x.Obj]
		}
	}
	return ""
}

// collects notes lists that get parts by an assignment.
func (r *reach) collects(to *ast.Ident, from ast.Expr) {
	v := r.collection(from)
	if c, ok := ast.Unparen(from).(*ast.CallExpr); ok {
		if f, ok := c.Fun.(*ast.Ident); ok && f.Obj == nil && f.Name == "append" && len(c.Args) > 0 {
			v = r.collection(c.Args[0])
			for _, a := range c.Args[1:] {
				if p := r.part(a); p != "" && (!c.Ellipsis.IsValid() || r.points(r.item(a, 1))) {
					v = p
				}
			}
			r.follow[c] = r.follow[c] || v != ""
		}
	}
	r.hold(to, v)
}

// copied notes lists that parts are copied into.
func (r *reach) copied(c *ast.CallExpr) {
	f, ok := c.Fun.(*ast.Ident)
	if !ok || f.Obj != nil || f.Name != "copy" || len(c.Args) != 2 {
		return
	}
	if to, ok := c.Args[0].(*ast.Ident); ok && to.Obj != nil && r.points(r.item(c.Args[1], 1)) {
		v := r.part(c.Args[1])
		r.hold(to, v)
		r.follow[c] = r.follow[c] || v != ""
	}
}

func (r *reach) hold(id *ast.Ident, v string) {
	if v != "" && id.Obj != nil && r.holds[id.Obj] == "" && r.guarded[id.Obj] == "" && r.parts[id.Obj] == "" {
		r.holds[id.Obj] = v
	}
}

// returning notes which functions and methods return parts.
func (r *reach) returning(d *ast.FuncDecl) {
	if d.Body == nil {
		return
	}
	ast.Inspect(d.Body, func(n ast.Node) bool {
		if _, inner := n.(*ast.FuncLit); inner {
			return false
		}
		back, ok := n.(*ast.ReturnStmt)
		if !ok {
			return true
		}
		r.returns[back] = true
		results := back.Results
		if len(results) == 0 && d.Type.Results != nil { // by their names
			for _, f := range d.Type.Results.List {
				for _, id := range f.Names {
					results = append(results, id)
				}
			}
		}
		for _, e := range results {
			switch v := r.part(e); {
			case v == "":
			case d.Recv != nil:
				r.giving[d.Name.Name] = v
			case d.Name.Obj != nil:
				r.gives[d.Name.Obj] = v
			}
		}
		return true
	})
}

// returned judges a return: of a function that is followed, parts of the problem's variables may be results.
func (r *reach) returned(n *ast.ReturnStmt) {
	if r.returns[n] {
		r.given(r.library(n.Results)...)
		return
	}
	r.given(n.Results...)
}

// library returns those expressions that are content of the library.
func (r *reach) library(all []ast.Expr) (some []ast.Expr) {
	for _, e := range all {
		if v, _ := r.contentOf(e); v != "" {
			some = append(some, e)
		}
	}
	return some
}
