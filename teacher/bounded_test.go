package teacher_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/format"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/teacher"
	"apr/tokenizer"
)

// TestAlignTotal is harness verify_effective_vocab_computation: a teacher of 1 to 64 real ids, and a student without
// files, or of 1 to 96 rows, both beyond the 255 ids without which no byte-level tokenizer is whole. The vocabulary is the teacher's real ids, or an error that names the student and both numbers.
func TestAlignTotal(t *testing.T) {
	const bytes = 255
	whole := letters(t)
	cases := 0
	for native := bytes + 1; native <= bytes+64; native++ {
		tok, err := tokenizer.FromData("big", tokenizer.Data{Vocabulary: whole.Vocabulary[:native], TokenType: whole.TokenType[:native], PreType: whole.PreType,
			BOS: tokenizer.None, EOS: tokenizer.None, Pad: tokenizer.None})
		if err != nil {
			t.Fatal(err)
		}
		files := func(path string, rows int) *modelfile.Files {
			return &modelfile.Files{Config: arch.Config{Vocab: rows}, Container: &modelfile.Container{Path: path, Kind: format.Apr,
				ReadTokenizer: func() (*tokenizer.Tokenizer, error) { return tok, nil }}}
		}
		for target := 0; target <= 96; target++ { // 0: a student without files, with as many rows as there are ids
			cases++
			var student *modelfile.Files
			rows := native
			if target > 0 {
				student, rows = files("small", bytes+target), bytes+target
			}
			got, vocab, err := teacher.Align(files("big", native+8), student, "small", rows)
			if rows >= native {
				if err != nil || vocab != native || got != tok {
					t.Fatalf("%d ids, %d rows: V is %d, %v", native, rows, vocab, err)
				}
				continue
			}
			if fault.KindOf(err) != fault.Load || !strings.Contains(err.Error(), fmt.Sprint(native)) || !strings.Contains(err.Error(), fmt.Sprint(rows)) {
				t.Fatalf("%d ids, %d rows: V is %d, %v", native, rows, vocab, err)
			}
		}
	}
	contracttest.Cases(t, cases)
}

// teachers are all types of this package that are teachers.
var teachers = []teacher.Teacher{&teacher.Resident{}, &teacher.Ensemble{}, &teacher.Routed{}, &teacher.States{},
	&teacher.Drawn{},
	&teacher.Aligned{}, &teacher.Chunks{}, &teacher.Lesson{}, &teacher.Privileged{}}

// TestNoTeacherHasGradients is harness verify_q4k_no_grad_typestate: every method of every type that is a teacher. None
// takes or returns what is trained.
func TestNoTeacherHasGradients(t *testing.T) {
	named := map[string]bool{}
	for _, te := range teachers {
		typ := reflect.TypeOf(te)
		named[typ.Elem().Name()] = true
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			for k := range m.Type.NumIn() {
				refuseTrained(t, typ.String()+"."+m.Name, m.Type.In(k))
			}
			for k := range m.Type.NumOut() {
				refuseTrained(t, typ.String()+"."+m.Name, m.Type.Out(k))
			}
			if name := strings.ToLower(m.Name); strings.Contains(name, "grad") || strings.Contains(name, "backward") {
				t.Errorf("%v has a method %s", typ, m.Name)
			}
		}
	}
	for _, name := range typesWith(t, "Begin", "Logits", "End") {
		if !named[name] {
			t.Errorf("%s is a teacher that this test does not look at", name)
		}
	}
	contracttest.Cases(t, len(named))
}

// refuseTrained refuses parameters, alone or in a slice.
func refuseTrained(t *testing.T, where string, typ reflect.Type) {
	t.Helper()
	for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ == reflect.TypeFor[device.Param]() || typ == reflect.TypeFor[device.AdamW]() {
		t.Errorf("%s has to do with %v", where, typ)
	}
}

// typesWith returns the types of this package's source that have all these methods, at least one.
func typesWith(t *testing.T, names ...string) (types []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			for _, name := range names {
				if fn.Name.Name == name {
					typ := fn.Recv.List[0].Type
					if star, ok := typ.(*ast.StarExpr); ok {
						typ = star.X
					}
					if id, ok := typ.(*ast.Ident); ok {
						if has[id.Name]++; has[id.Name] == len(names) {
							types = append(types, id.Name)
						}
					}
				}
			}
		}
	}
	if len(types) == 0 {
		t.Fatal("the source has no teacher")
	}
	return types
}
