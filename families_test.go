package apr_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"apr/arch"
)

// TestFamiliesAreData: no code but arch's, and tokenizer's about its own kinds, names a model_type or a GGUF architecture.
// What a model computes and where its tensors are is asked of its description.
func TestFamiliesAreData(t *testing.T) {
	names := append(arch.Families(), arch.Architectures()...)
	checked := 0
	for _, s := range sources(t) {
		if s.isTest() || s.pkg() == "arch" || s.pkg() == "tokenizer" {
			continue
		}
		for _, literal := range familyLiterals(t, s, names) {
			t.Errorf("%s: %s names a family; ask the description", s.path, literal)
		}
		checked++
	}
	if checked < 100 {
		t.Errorf("%d files", checked)
	}
}

// familyLiterals returns the string literals of a file that are one of names, or begin with one as a key of GGUF does.
func familyLiterals(t *testing.T, s source, names []string) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), s.path, s.text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(names, func(name string) bool { return text == name || strings.HasPrefix(text, name+".") }) {
			found = append(found, lit.Value)
		}
		return true
	})
	return found
}

// TestFamilyLiterals plants the names that TestFamiliesAreData has to find.
func TestFamilyLiterals(t *testing.T) {
	text := "package p\nvar a, b, c, d = \"qwen2\", `llama.block_count`, \"a llama\", \"qwen25\"\n"
	got := familyLiterals(t, source{"p/p.go", []byte(text)}, []string{"qwen2", "llama"})
	if !slices.Equal(got, []string{`"qwen2"`, "`llama.block_count`"}) {
		t.Error(got)
	}
}
