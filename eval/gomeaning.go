package eval

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// usage is what the tests of a Go program, and the whole functions of its problem, rely on.
type usage struct {
	packages map[string]bool // of the library, by path
	library  map[string]bool // names of it, as "errors.Is"
	names    map[string]bool // names of the package, of fields and of methods
	types    map[string]bool // that the tests or the problem declare
	inTests  map[string]bool // those of types that the tests declare
	comments string          // of the problem, but for those on whole functions
	asked    map[string]bool // methods that are called of what is not known to be of a type of the library
	methods  map[string]bool // that the tests declare
	given    map[string]bool // words of the problem
	from     token.Pos       // of what is generated
	catch    bool            // the tests hand functions of theirs over, or have methods
	shows    bool            // the tests look at what package fmt makes of values
}

// usedBy reads the tests, and of f what ends before from.
func usedBy(f *ast.File, from token.Pos, given, tests string) usage {
	u := usage{packages: map[string]bool{}, library: map[string]bool{}, names: map[string]bool{}, from: from}
	u.given = wordsOf(given)
	u.types, u.inTests, u.asked, u.methods = map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	t, err := parser.ParseFile(token.NewFileSet(), "tests.go", tests, 0)
	if err == nil { // else the compiler says so
		u.read(t, t.Decls)
		for _, d := range t.Decls {
			u.declares(d, u.inTests)
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil {
				u.methods[m.Name.Name] = true
			}
		}
		u.catch, u.shows = hands(t), shows(t, t.Decls...)
	}
	docs := map[*ast.CommentGroup]bool{}
	for _, d := range f.Decls {
		if d.End() <= from {
			u.declares(d, u.types)
			if m, ok := d.(*ast.FuncDecl); ok {
				u.read(f, []ast.Decl{d})
				u.shows = u.shows || shows(f, m)
				docs[m.Doc] = true
			}
		}
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.End() <= from && !docs[group] {
				u.comments += c.Text + "\n"
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
		own := map[*ast.Ident]bool{} // names of the library, and of what is declared here
		if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil {
			own[m.Name] = true
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if id, ok := n.X.(*ast.Ident); ok && id.Obj == nil && imports[id.Name] != "" {
					u.packages[imports[id.Name]], u.library[imports[id.Name]+"."+n.Sel.Name], own[n.Sel] = true, true, true
				} else if !ok || !ofLibrary(id) {
					u.asked[n.Sel.Name] = true
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
								u.names[id.Name], u.asked[id.Name] = true, true
							}
						}
					}
					return true
				})
			}
		}
	}
}

// testNames returns what the tests declare for the whole package, but types that the problem mentions, and main: a
// program that calls its tests learns their answers.
func testNames(files map[string]string, given map[string]bool) map[string]bool {
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
				if name := s.(*ast.TypeSpec).Name.Name; given[name] {
					delete(names, name)
				}
			}
		}
	}
	return names
}

// sought are methods that the library looks for in a value, whatever its type says.
var sought = strings.Fields(`String GoString Format Error Is As Unwrap MarshalJSON MarshalText MarshalBinary MarshalXML
	MarshalXMLAttr UnmarshalJSON UnmarshalText UnmarshalBinary UnmarshalXML UnmarshalXMLAttr GobEncode GobDecode IsZero
	Scan Timeout Temporary LogValue Generate Key`)

// meaning says why a Go program does not count: what is generated of f, from from on, declares a method or a field by
// which what the tests say means something else, or catches their failures.
func (r *reach) meaning(f *ast.File, use usage) (why string) {
	from := r.from
	made := generatedTypes(f, from)
	named, given := map[string]bool{}, map[string]bool{} // whose values the tests make by name, or get
	for name := range made {
		if use.names[name] {
			within(name, made, named)
		}
	}
	for _, d := range f.Decls {
		m, ok := d.(*ast.FuncDecl)
		if ok && m.Type.Results != nil && use.names[m.Name.Name] && (use.shows || use.encodes()) {
			ast.Inspect(m.Type.Results, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					within(id.Name, made, given)
				}
				return true
			})
		}
	}
	for name := range named {
		given[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		t := made[name]
		if of, ok := ast.Unparen(t.Type).(*ast.Ident); ok && t.Assign.IsValid() && of.Obj != nil {
			return fmt.Sprintf("declares %s as another name of the type %s, whose methods it could have by that name",
				name, of.Name)
		}
		if s, ok := ast.Unparen(t.Type).(*ast.StructType); ok && given[name] {
			why = cmp.Or(why, use.embeds(f, name, s), use.unencoded(name, s))
		}
	}
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && m.Pos() >= from && why == "" {
			why = use.method(f, m, given)
			if why == "" && use.catch && r.runs(m) {
				why = fmt.Sprintf("declares the method %s, within which package fmt could recover from what fails in its tests",
					m.Name.Name)
			}
		}
		if d.End() <= from {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					if n.Pos() >= from && why == "" && len(m.Names) == 1 && use.methods[m.Names[0].Name] &&
						!use.given[m.Names[0].Name] {
						why = fmt.Sprintf("asks for the method %s, which is of its tests", m.Names[0].Name)
					}
				}
			case *ast.StructType:
				if n.End() > from {
					why = cmp.Or(why, use.hidden(n))
				}
			case *ast.Ident:
				if (n.Name == "recover" || n.Name == "Goexit") && n.Obj == nil && use.catch && why == "" {
					why = "may recover from what fails in a function of its tests"
				}
			}
			return true
		})
	}
	return why
}

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

// method judges a method that is generated. named are the generated types whose values the tests make or get.
func (u usage) method(f *ast.File, m *ast.FuncDecl, named map[string]bool) string {
	name, of := m.Name.Name, receiver(m)
	errors := u.library["errors.Is"] || u.library["errors.As"] || u.library["errors.Unwrap"]
	unasked := slices.Contains(sought, name) && !u.asks(of, name)
	bad := false
	switch {
	case u.inTests[of]:
		bad = true
	case (name == "Is" || name == "As") && u.types[of]:
		bad = !u.names[name] || errors
	case name == "Is" || name == "As":
		bad = errors
	case u.types[of]:
		bad = unasked || u.names[name] && promoted(f, of, name)
	case name == "Unwrap":
		bad = errors && !field(m)
	case named[of]:
		bad = unasked
	}
	if !bad {
		return ""
	}
	return fmt.Sprintf("declares the method %s of %s, by which its tests would mean something else", name, of)
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
