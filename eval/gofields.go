package eval

import (
	"fmt"
	"go/ast"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// encodings are packages by which tests may compare values, with the key of the tags that they read.
var encodings = map[string]string{
	"encoding/json": "json", "encoding/xml": "xml", "encoding/asn1": "asn1", "encoding/gob": "gob",
}

// encodes reports whether the tests use an encoding that fields may be hidden from.
func (u usage) encodes() bool {
	for path := range encodings {
		if u.packages[path] {
			return true
		}
	}
	return false
}

// hidden says why fields of a struct that is generated do not count in a comparison.
func (u usage) hidden(s *ast.StructType) string {
	for path, key := range encodings {
		seen := map[string]bool{}
		for _, field := range s.Fields.List {
			names := field.Names
			if len(names) == 0 {
				names = []*ast.Ident{ast.NewIdent(embedded(field))}
			}
			for _, id := range names {
				if id.Name == "_" {
					return "declares a field without a name, which comparisons pass over"
				}
				if !u.packages[path] {
					continue
				}
				name := id.Name
				if field.Tag != nil {
					text, err := strconv.Unquote(field.Tag.Value)
					value, _ := reflect.StructTag(text).Lookup(key)
					tag, _, _ := strings.Cut(value, ",")
					if err != nil || value == "-" {
						return "declares a field that encodings pass over, which its tests compare"
					}
					if tag != "" {
						name = tag
					}
				}
				if seen[name] {
					return fmt.Sprintf("declares two fields that encodings call %s and pass over", name)
				}
				seen[name] = true
			}
		}
	}
	return ""
}

// unencoded says why a struct whose values the tests encode has fields that are left out, or that cannot be encoded.
func (u usage) unencoded(of string, s *ast.StructType) string {
	if !u.encodes() {
		return ""
	}
	for _, field := range s.Fields.List {
		if lock(field.Type) {
			continue
		}
		for _, id := range field.Names {
			if !id.IsExported() {
				return fmt.Sprintf("declares the field %s of %s, which encodings pass over", id.Name, of)
			}
		}
		cannot := false
		ast.Inspect(field.Type, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncType, *ast.ChanType:
				cannot = true
			case *ast.Ident:
				cannot = cannot || n.Obj == nil && strings.HasPrefix(n.Name, "complex")
				if spec, ok := declaration(n); ok {
					switch spec.Type.(type) {
					case *ast.FuncType, *ast.ChanType:
						cannot = true
					}
				}
			case *ast.MapType:
				key, ok := under(n.Key).(*ast.Ident)
				known := ok && (key.Obj != nil || key.Name == "string" || key.Name == "byte" || key.Name == "rune" ||
					strings.Contains(key.Name, "int"))
				cannot = cannot || u.packages["encoding/xml"] || ok && !known
				_, composed := under(n.Key).(*ast.StructType)
				cannot = cannot || composed
			}
			return true
		})
		if cannot {
			return fmt.Sprintf("declares a field of %s that cannot be encoded, which its tests do", of)
		}
	}
	return ""
}

// declaration returns how a name of the file is declared as a type.
func declaration(id *ast.Ident) (*ast.TypeSpec, bool) {
	if id.Obj == nil {
		return nil, false
	}
	spec, ok := id.Obj.Decl.(*ast.TypeSpec)
	return spec, ok
}

// lock reports whether a type is of package sync.
func lock(t ast.Expr) bool {
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	s, ok := t.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && (id.Name == "sync" || id.Name == "atomic")
}

// still are packages whose types have no method that the library looks for, or whose interfaces ask for none.
var still = []string{"sync", "list", "ring", "heap", "sort"}

// embeds says why a struct whose values the tests print or encode may have another's methods for it.
func (u usage) embeds(f *ast.File, of string, s *ast.StructType) string {
	if !u.shows && !u.encodes() || strings.Contains(strings.ToLower(u.comments), "embed") {
		return ""
	}
	for _, field := range s.Fields.List {
		if len(field.Names) > 0 {
			continue
		}
		if name := embedded(field); u.speaks(f, field.Type, 20) {
			return fmt.Sprintf("embeds %s in %s, by whose methods its tests would mean something else", name, of)
		}
	}
	return ""
}

// speaks reports whether a type that is embedded may have a method that the library looks for and that is not
// generated.
func (u usage) speaks(f *ast.File, t ast.Expr, depth int) bool {
	if depth == 0 {
		return true
	}
	switch t := t.(type) {
	case *ast.StarExpr:
		return u.speaks(f, t.X, depth-1)
	case *ast.IndexExpr:
		return u.speaks(f, t.X, depth-1)
	case *ast.SelectorExpr:
		id, ok := t.X.(*ast.Ident)
		return !ok || !slices.Contains(still, id.Name)
	case *ast.InterfaceType:
		return slices.ContainsFunc(t.Methods.List, func(m *ast.Field) bool {
			if len(m.Names) == 0 {
				return u.speaks(f, m.Type, depth-1)
			}
			return slices.Contains(sought, m.Names[0].Name)
		})
	case *ast.StructType:
		return slices.ContainsFunc(t.Fields.List, func(v *ast.Field) bool {
			return len(v.Names) == 0 && u.speaks(f, v.Type, depth-1)
		})
	case *ast.Ident:
		if t.Obj == nil {
			return t.Name == "error" || t.IsExported() // by a dot
		}
		for _, d := range f.Decls {
			m, ok := d.(*ast.FuncDecl)
			if ok && m.Recv != nil && m.End() <= u.from && receiver(m) == t.Name && slices.Contains(sought, m.Name.Name) {
				return true
			}
		}
		spec, ok := declaration(t)
		return !ok || u.speaks(f, spec.Type, depth-1)
	}
	return false
}
