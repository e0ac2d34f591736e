package teacher_test

import (
	"fmt"
	"strings"
	"testing"

	"apr/arch"
	"apr/format"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model/modeltest"
	"apr/modelfile"
	"apr/teacher"
	"apr/tokenizer"
)

// withTokenizer returns a model of rows vocabulary rows whose tokenizer is made from d.
func withTokenizer(path string, rows int, d tokenizer.Data) *modelfile.Files {
	return &modelfile.Files{Config: arch.Config{Vocab: rows}, Container: &modelfile.Container{Path: path, Kind: format.Apr,
		ReadTokenizer: func() (*tokenizer.Tokenizer, error) { return tokenizer.FromData(path, d) }}}
}

// letters is a byte vocabulary with extra tokens at the end, each of a kind.
func letters(t *testing.T, extra ...string) tokenizer.Data {
	t.Helper()
	f := modeltest.Open(t, "../testdata/models/gosrc")
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	d := tok.Data()
	for _, e := range extra {
		kind := 4 // user-defined
		if strings.HasPrefix(e, "<unused") {
			kind = 5
		}
		d.Vocabulary, d.TokenType = append(d.Vocabulary, e), append(d.TokenType, kind)
	}
	return d
}

// Settings of tokenizers in which models of one vocabulary differ are named, with both values; equal ones are not.
func TestConventions(t *testing.T) {
	made := func(change func(*tokenizer.Data)) *tokenizer.Tokenizer {
		d := letters(t)
		d.BOS, d.AddBOS = 4092, true
		change(&d)
		tok, err := tokenizer.FromData("model", d)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	plain := made(func(*tokenizer.Data) {})
	for want, change := range map[string]func(*tokenizer.Data){
		"":              func(*tokenizer.Data) {},
		"chat_template": func(d *tokenizer.Data) { d.ChatTemplate = "{{ messages }}" },
		"bos_token":     func(d *tokenizer.Data) { d.BOS = 4091 },
		"eos_token":     func(d *tokenizer.Data) { d.EOS = tokenizer.None },
		"add_bos_token": func(d *tokenizer.Data) { d.AddBOS = !d.AddBOS },
	} {
		contracttest.Cases(t, 1)
		got := teacher.Conventions(plain, made(change))
		if want == "" {
			if len(got) != 0 {
				t.Errorf("equal ones differ: %+v", got)
			}
			continue
		}
		if len(got) != 1 || got[0].Name != want || got[0].Teacher == got[0].Student || got[0].Teacher == "" || got[0].Student == "" || got[0].Used != "student" {
			t.Errorf("%s: %+v", want, got)
		}
	}
	named := func(id int32, template string) *tokenizer.Tokenizer {
		return made(func(d *tokenizer.Data) { d.BOS, d.AddBOS, d.ChatTemplate = id, false, template })
	}
	if got := teacher.Conventions(named(tokenizer.None, ""), named(4092, "")); len(got) != 0 {
		t.Errorf("a name that is put nowhere: %+v", got)
	}
	if got := teacher.Conventions(named(tokenizer.None, "{{ bos_token }}"), named(4092, "{{ bos_token }}")); len(got) != 1 {
		t.Errorf("a name that a template puts: %+v", got)
	}
}

// Padding at the end of either vocabulary is cut; anything else that differs is refused by its id and both texts.
func TestAlign(t *testing.T) {
	plain := letters(t)
	n := len(plain.Vocabulary)
	other := letters(t)
	other.Vocabulary[n-1] = "<|another|>"
	for _, tt := range []struct {
		name       string
		big, small tokenizer.Data
		rows       [2]int
		kind       fault.Kind
		want       []string
	}{
		{"equal", plain, plain, [2]int{n, n}, 0, nil},
		{"rows beyond are padding", plain, plain, [2]int{n + 200, n + 64}, 0, nil},
		{"unused tokens are padding", letters(t, "<unused1>", "<unused2>"), plain, [2]int{n + 2, n}, 0, nil},
		{"one token differs", plain, other, [2]int{n, n}, fault.Invalid, []string{"small: ", fmt.Sprintf("token %d is %q and %q", n-1, plain.Vocabulary[n-1], "<|another|>")}},
		{"one more real id", letters(t, "<more>"), plain, [2]int{n + 1, n}, fault.Invalid, []string{fmt.Sprintf("token %d is \"<more>\" and \"\"", n)}},
		{"one real id less", plain, letters(t, "<more>"), [2]int{n, n + 1}, fault.Invalid, []string{fmt.Sprintf("token %d is \"\" and \"<more>\"", n)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			tok, vocab, err := teacher.Align(withTokenizer("big", tt.rows[0], tt.big), withTokenizer("small", tt.rows[1], tt.small), "small", tt.rows[1])
			if fault.KindOf(err) != tt.kind {
				t.Fatalf("error %v, want kind %v", err, tt.kind)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			if err == nil && (vocab != n || tok == nil) {
				t.Errorf("V is %d, want %d", vocab, n)
			}
		})
	}
	// A new student has rows but no tokenizer.
	if _, vocab, err := teacher.Align(withTokenizer("big", n, plain), nil, "config.json", n); err != nil || vocab != n {
		t.Errorf("V %d, %v", vocab, err)
	}
	if _, _, err := teacher.Align(withTokenizer("big", n, plain), nil, "config.json", n-1); fault.KindOf(err) != fault.Load {
		t.Errorf("a student with too few rows: %v", err)
	}
}
