package eval

import (
	"go/ast"
	"regexp"
	"strings"
	"unicode"
)

// asks reports whether the tests or the problem ask for a method of a type: they call it, or a comment speaks of it as
// of a method. Error is called of every error; it is asked of types that are named so, or where errors.As is used.
func (u usage) asks(of, name string) bool {
	before := "[`.)]|, |\\b(and|an?|its|with|methods?|implements?|declare|define|write|add) "
	said := regexp.MustCompile("(?i:" + before + ")" + name + "\\b|\\b" + name + "(\\(|`| methods?)")
	if said.MatchString(u.comments) {
		return true
	}
	if name == "Error" {
		return u.library["errors.As"] || u.asked[name] && strings.Contains(strings.ToLower(of), "err")
	}
	return u.asked[name]
}

// ofLibrary reports whether a variable is declared with a type of the library, or begins with what that returns.
func ofLibrary(id *ast.Ident) bool {
	if id.Obj == nil {
		return false
	}
	var e ast.Expr
	switch d := id.Obj.Decl.(type) {
	case *ast.Field:
		e = d.Type
	case *ast.ValueSpec:
		e = d.Type
		if e == nil && len(d.Values) == 1 {
			e = d.Values[0]
		}
	case *ast.AssignStmt:
		if len(d.Rhs) == 1 {
			e = d.Rhs[0]
		}
	}
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.UnaryExpr:
			e = x.X
		case *ast.CompositeLit:
			e = x.Type
		case *ast.CallExpr:
			if f, ok := x.Fun.(*ast.Ident); ok && f.Name == "new" && len(x.Args) == 1 {
				e = x.Args[0]
				continue
			}
			e = x.Fun
		case *ast.SelectorExpr:
			of, ok := x.X.(*ast.Ident)
			return ok && of.Obj == nil
		default:
			return false
		}
	}
}

// wordsOf returns the words of a text.
func wordsOf(text string) map[string]bool {
	all := map[string]bool{}
	for _, w := range strings.FieldsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_'
	}) {
		all[w] = true
	}
	return all
}
