package eval

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// usage is what the tests of a Go program, and the whole functions of its problem, rely on.
type usage struct {
	packages map[string]bool // of the library, by path
	library  map[string]bool // names of it, as "errors.Is"
	names    map[string]bool // names of the package, of fields and of methods
	types    map[string]bool // that the tests or the problem declare
	inTests  map[string]bool // those of types that the tests declare
	text     string          // of the problem
	catch    bool            // a function of the tests within a function, or a method, fails
}

// usedBy reads the tests, and of f what ends before from.
func usedBy(f *ast.File, from token.Pos, text, tests string) usage {
	u := usage{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, text, false}
	t, err := parser.ParseFile(token.NewFileSet(), "tests.go", tests, 0)
	if err == nil { // else the compiler says so
		u.read(t, t.Decls)
		for _, d := range t.Decls {
			u.declares(d, u.inTests)
			ast.Inspect(d, u.fails)
		}
	}
	for _, d := range f.Decls {
		if d.End() <= from {
			u.declares(d, u.types)
			if _, ok := d.(*ast.FuncDecl); ok {
				u.read(f, []ast.Decl{d})
			}
		}
	}
	return u
}

// read notes what declarations of a file name.
func (u usage) read(f *ast.File, decls []ast.Decl) {
	imports := map[string]string{}
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = path
	}
	for _, d := range decls {
		own := map[*ast.Ident]bool{} // names of the library
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if id, ok := n.X.(*ast.Ident); ok && id.Obj == nil && imports[id.Name] != "" {
					u.packages[imports[id.Name]], u.library[imports[id.Name]+"."+n.Sel.Name], own[n.Sel] = true, true, true
				}
			case *ast.Ident:
				if !own[n] {
					u.names[n.Name] = true
				}
			}
			return true
		})
	}
}

func (u usage) declares(d ast.Decl, into map[string]bool) {
	if g, ok := d.(*ast.GenDecl); ok {
		for _, s := range g.Specs {
			if t, ok := s.(*ast.TypeSpec); ok {
				into[t.Name.Name], u.types[t.Name.Name] = true, true
			}
			if i, ok := s.(*ast.TypeSpec); ok {
				ast.Inspect(i, func(n ast.Node) bool { // a method that an interface asks for
					if face, ok := n.(*ast.InterfaceType); ok {
						for _, m := range face.Methods.List {
							for _, id := range m.Names {
								u.names[id.Name] = true
							}
						}
					}
					return true
				})
			}
		}
	}
}

// fails looks for failures that a program could catch: it is given the function that they are in.
func (u *usage) fails(n ast.Node) bool {
	var body *ast.BlockStmt
	switch n := n.(type) {
	case *ast.FuncLit:
		body = n.Body
	case *ast.FuncDecl:
		if n.Recv != nil {
			body = n.Body
		}
	}
	if body != nil {
		ast.Inspect(body, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			u.catch = u.catch || ok && id.Name == "panic"
			return true
		})
	}
	return true
}

// testNames returns what the tests declare for the whole package but types, and main: a program that calls its tests
// learns their answers.
func testNames(files map[string]string) map[string]bool {
	names := map[string]bool{"main": true}
	f, err := parser.ParseFile(token.NewFileSet(), "tests.go", files["tests.go"], parser.SkipObjectResolution)
	if err != nil {
		return names
	}
	for _, id := range declared(f) {
		names[id.Name] = id.Name != "_"
	}
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			for _, s := range g.Specs {
				delete(names, s.(*ast.TypeSpec).Name.Name)
			}
		}
	}
	return names
}

// guard collects the variables of the problem that begin with something and that the tests, or whole functions of the
// problem, name. Those that begin empty are the state of a program.
func (r *reach) guard(f *ast.File, use usage) {
	r.guarded, r.held = map[any]string{}, map[any]bool{}
	begun := begins(f, r.from)
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR || d.End() > r.from {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, id := range v.Names {
				switch {
				case id.Obj == nil || !use.names[id.Name]:
				case i < len(v.Values) && !empty(v.Values[i]):
					r.guarded[id.Obj], r.held[id.Obj] = id.Name, r.shares(v.Values[i])
				case begun[id.Obj]:
					r.guarded[id.Obj], r.held[id.Obj] = id.Name, true
				}
			}
		}
	}
}

// begins returns the variables that init functions of the problem write, by their Ident.Obj.
func begins(f *ast.File, from token.Pos) map[any]bool {
	begun := map[any]bool{}
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && m.Recv == nil && m.Name.Name == "init" && m.End() <= from {
			ast.Inspect(m, func(n ast.Node) bool {
				if a, ok := n.(*ast.AssignStmt); ok {
					for i, to := range a.Lhs {
						id, ok := root(to).(*ast.Ident)
						if ok && id.Obj != nil && (len(a.Rhs) != len(a.Lhs) || !empty(a.Rhs[i])) {
							begun[id.Obj] = true
						}
					}
				}
				return true
			})
		}
	}
	return begun
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

// sought are methods that the library looks for in a value, whatever its type says.
var sought = strings.Fields(`String GoString Format Error Is As Unwrap MarshalJSON MarshalText MarshalBinary MarshalXML
	MarshalXMLAttr UnmarshalJSON UnmarshalText UnmarshalBinary UnmarshalXML UnmarshalXMLAttr GobEncode GobDecode IsZero
	Scan Timeout Temporary LogValue Generate Key`)

// meaning says why a Go program does not count: what is generated of f, from from on, declares a method or a field by
// which what the tests say means something else, or catches their failures.
func meaning(f *ast.File, from token.Pos, use usage) (why string) {
	made := generatedTypes(f, from)
	named := map[string]bool{}
	for name := range made {
		if use.names[name] {
			within(name, made, named)
		}
	}
	for name, t := range made {
		if of, ok := ast.Unparen(t.Type).(*ast.Ident); ok && t.Assign.IsValid() && of.Obj != nil {
			return fmt.Sprintf("declares %s as another name of the type %s, whose methods it could have by that name",
				name, of.Name)
		}
	}
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && m.Pos() >= from && why == "" {
			why = use.method(f, m, named)
		}
		if d.End() <= from {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, field := range n.Fields.List {
					hidden := field.Tag != nil && strings.Contains(field.Tag.Value, `:"-`)
					if hidden && field.Pos() >= from && use.encodes() && why == "" {
						why = "declares a field that encodings pass over, which its tests compare"
					}
					for _, id := range field.Names {
						if id.Name == "_" && id.Pos() >= from && why == "" {
							why = "declares a field without a name, which comparisons pass over"
						}
					}
				}
			case *ast.Ident:
				if n.Name == "recover" && n.Obj == nil && use.catch && why == "" {
					why = "may recover from what fails in a function of its tests"
				}
			}
			return true
		})
	}
	return why
}

// encodes reports whether the tests use an encoding that fields may be hidden from.
func (u usage) encodes() bool { return u.packages["encoding/json"] || u.packages["encoding/xml"] }

// generatedTypes returns the types that are declared from from on.
func generatedTypes(f *ast.File, from token.Pos) map[string]*ast.TypeSpec {
	made := map[string]*ast.TypeSpec{}
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && d.End() > from {
			for _, s := range g.Specs {
				if t, ok := s.(*ast.TypeSpec); ok {
					made[t.Name.Name] = t
				}
			}
		}
	}
	return made
}

// within adds a type, and the types that values of it hold.
func within(name string, made map[string]*ast.TypeSpec, all map[string]bool) {
	if made[name] == nil || all[name] {
		return
	}
	all[name] = true
	ast.Inspect(made[name].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			within(id.Name, made, all)
		}
		return true
	})
}

// method judges a method that is generated. named are the generated types whose values the tests make.
func (u usage) method(f *ast.File, m *ast.FuncDecl, named map[string]bool) string {
	name, of := m.Name.Name, receiver(m)
	errors := u.library["errors.Is"] || u.library["errors.As"] || u.library["errors.Unwrap"]
	known := slices.Contains(sought, name) && !slices.Contains(words(u.text), name) // comments may ask for it
	bad := false
	switch {
	case u.inTests[of]:
		bad = true
	case (name == "Is" || name == "As") && u.types[of]:
		bad = !u.names[name] || errors
	case name == "Is" || name == "As":
		bad = errors
	case u.types[of]:
		bad = known && !u.names[name] || u.names[name] && promoted(f, of, name)
	case name == "Unwrap":
		bad = errors && !field(m)
	case named[of]:
		bad = known && !u.names[name]
	}
	if !bad {
		return ""
	}
	return fmt.Sprintf("declares the method %s of %s, by which its tests would mean something else", name, of)
}

// words returns the words of a text.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
}

// receiver returns the name of the type that a method is of.
func receiver(m *ast.FuncDecl) string {
	if id, ok := root(m.Recv.List[0].Type).(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// field reports whether a method returns a field of its receiver and does nothing besides.
func field(m *ast.FuncDecl) bool {
	if m.Body == nil || len(m.Body.List) != 1 || len(m.Recv.List[0].Names) != 1 {
		return false
	}
	r, ok := m.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(r.Results) != 1 {
		return false
	}
	s, ok := r.Results[0].(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == m.Recv.List[0].Names[0].Name
}

// locks are the embedded types of the library whose methods are known.
var locks = map[string][]string{
	"Mutex":   {"Lock", "TryLock", "Unlock"},
	"RWMutex": {"Lock", "TryLock", "Unlock", "RLock", "TryRLock", "RUnlock", "RLocker"},
}

// promoted reports whether a method of a type of the problem may stand before one of a field that it embeds.
func promoted(f *ast.File, of, name string) (before bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != of {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range s.Fields.List {
			if len(field.Names) > 0 {
				continue
			}
			e := field.Type
			if star, ok := e.(*ast.StarExpr); ok {
				e = star.X
			}
			switch x := e.(type) {
			case *ast.SelectorExpr:
				methods, known := locks[x.Sel.Name]
				before = before || !known || slices.Contains(methods, name)
			case *ast.Ident:
				before = before || hasMethod(f, x.Name, name)
			}
		}
		return true
	})
	return before
}

// hasMethod reports whether a file declares a method of a type.
func hasMethod(f *ast.File, of, name string) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		m, ok := d.(*ast.FuncDecl)
		return ok && m.Recv != nil && m.Name.Name == name && receiver(m) == of
	})
}
