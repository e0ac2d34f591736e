package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"github.com/google/go-cmp/cmp"
)

func TestDataRoundTrip(t *testing.T) {
	for name, tok := range map[string]*Tokenizer{"fixture": fixture(t), "small": smallTokenizer(t)} {
		d := tok.Data()
		back, err := FromData("x.apr", d)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := Compare(tok, back); diff != nil {
			t.Errorf("%s: %v", name, diff)
		}
		if diff := cmp.Diff(d, back.Data()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Without types the special tokens are known by their looks, and what merges make is never special.
func TestDataWithoutTypes(t *testing.T) {
	d := smallTokenizer(t).Data()
	d.TokenType = nil
	d.Vocabulary = append(d.Vocabulary, "</s>", "<Upper>", "<a_name_of_more_than_20_bytes>", "", "<|x y|>")
	tok, err := FromData("x.apr", d)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int32]Kind{256: Normal, 259: Control, 260: Control, 261: Control, 262: Normal, 263: Normal, 264: Unused, 265: Control, 266: Unused, -1: Unused} {
		if got := tok.Kind(id); got != want {
			t.Errorf("kind of %d is %d, want %d", id, got, want)
		}
	}
}

func TestLooksSpecial(t *testing.T) {
	for text, want := range map[string]bool{
		"<|im_end|>": true, "<|a name of more than twenty bytes|>": true, "<||>": true, "<|>": false, "<s>": true, "</s>": true,
		"<>": false, "</>": false, "<S>": false, "<s": false, "s>": false, "<a_b>": true, "<a b>": false, "<//s>": false,
		"<abcdefghijklmnopqr>": true, "<abcdefghijklmnopqrs>": false, "": false, "<": false,
	} {
		if got := looksSpecial(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	d := smallTokenizer(t).Data()
	d.TokenType = nil
	d.Vocabulary = append(d.Vocabulary, "<a", "<a>")
	d.Merges = append(d.Merges, "< a", "<a >")
	tok, err := FromData("x.apr", d)
	if err != nil {
		t.Fatal(err)
	}
	if kind := tok.Kind(262); kind != Normal {
		t.Errorf("<a>, which a merge makes, is of kind %d", kind)
	}
}

// Ids without a token inside the vocabulary are kept as unused, those at its end are no ids.
func TestDataUnused(t *testing.T) {
	d := smallTokenizer(t).Data()
	d.Vocabulary = append(d.Vocabulary, "[PAD261]", "<|late|>", "[PAD263]")
	d.TokenType = append(d.TokenType, int(Unused), int(Control), int(Unused))
	tok, err := FromData("x.apr", d)
	if err != nil {
		t.Fatal(err)
	}
	if n := tok.RealIDs(); n != 263 {
		t.Errorf("%d real ids, want 263", n)
	}
	if _, ok := tok.Bytes(261); ok {
		t.Error("an unused id has text")
	}
	if _, err := tok.Decode([]int32{97, 261}); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "position 1") {
		t.Errorf("decoding an unused id: %v", err)
	}
	for rows, ok := range map[int]bool{262: false, 263: true, 300: true} {
		if err := tok.CheckRows(rows); (err == nil) != ok || !ok && fault.KindOf(err) != fault.Load {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
	back, err := Parse("x", string(tok.MarshalTokenizer()), "")
	if err != nil {
		t.Fatal(err)
	}
	if d := Compare(tok, back); d != nil {
		t.Errorf("through tokenizer.json: %v", d)
	}
	contracttest.Cases(t, 1)
}

func TestFromDataRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Data)
		want   string
		seen   bool // by the outline too
	}{
		{"pre type", func(d *Data) { d.PreType = "default" }, "E-TOK-008", true},
		{"too few types", func(d *Data) { d.TokenType = d.TokenType[1:] }, "E-TOK-004", true},
		{"type of bytes", func(d *Data) { d.TokenType[7] = 6 }, "E-TOK-004", true},
		{"type unknown", func(d *Data) { d.TokenType[7] = -1 }, "E-TOK-004", true},
		{"token twice", func(d *Data) { d.Vocabulary[257] = "ab" }, "E-TOK-005", false},
		{"broken UTF-8", func(d *Data) { d.Vocabulary[257] = "\xff" }, "E-TOK-004", false},
		{"empty control token", func(d *Data) { d.Vocabulary[259] = "" }, "E-TOK-007", false},
		{"byte missing", func(d *Data) { d.Vocabulary['A'] = "AA" }, "E-TOK-011", false},
		{"merge without space", func(d *Data) { d.Merges[0] = "ab" }, "E-TOK-006", false},
		{"merge without right part", func(d *Data) { d.Merges[0] = "ab " }, "E-TOK-006", false},
		{"merge of three parts", func(d *Data) { d.Merges[0] = "a b c" }, "E-TOK-006", false},
		{"merge of an unknown part", func(d *Data) { d.Merges[0] = "a xy" }, "E-TOK-006", false},
		{"bos", func(d *Data) { d.BOS = 5000 }, "bos token: id 5000", true},
		{"eos", func(d *Data) { d.EOS = -2 }, "eos token: id -2", true},
		{"padding", func(d *Data) { d.Pad = 261 }, "padding token: id 261", true},
		{"nothing", func(d *Data) { *d = Data{PreType: "qwen2", BOS: None, EOS: None, Pad: None} }, "E-TOK-011", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := smallTokenizer(t).Data()
			c.change(&d)
			_, err := FromData("m.apr", d)
			if _, outlineErr := OutlineData("m.apr", d); outlineErr != nil && outlineErr.Error() != err.Error() {
				t.Errorf("outline: %v", outlineErr)
			} else if outlineErr == nil && c.seen {
				t.Error("the outline does not tell")
			}
			if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "m.apr: ") {
				t.Errorf("%v, want a format error of m.apr with %s", err, c.want)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Data)
		want   string
	}{
		{"nothing", func(*Data) {}, "<nil>"},
		{"template and end token", func(d *Data) { d.ChatTemplate, d.EOS = "x", 3 }, "<nil>"},
		{"a token", func(d *Data) { d.Vocabulary[259] = "<|stop|>" }, `token 259 is "<|end|>" and "<|stop|>"`},
		{"two tokens exchanged", func(d *Data) { v := d.Vocabulary; v['a'], v['b'] = v['b'], v['a'] }, `token 97 is "a" and "b"`},
		{"one more", func(d *Data) {
			d.Vocabulary, d.TokenType = append(d.Vocabulary, "<|more|>"), append(d.TokenType, int(Control))
		}, `token 261 is "" and "<|more|>"`},
		{"one less", func(d *Data) { d.Vocabulary, d.TokenType = d.Vocabulary[:260], d.TokenType[:260] }, `token 260 is "<tool>" and ""`},
		{"kind", func(d *Data) { d.TokenType[260] = int(Control) }, `kind 260 is "4" and "3"`},
		{"merges exchanged", func(d *Data) { m := d.Merges; m[0], m[2] = m[2], m[0] }, `merge 0 is "a b" and "Ġ a"`},
		{"a merge less", func(d *Data) { d.Merges = d.Merges[:2] }, `merge 2 is "Ġ a" and ""`},
		{"pattern", func(d *Data) { d.PreType = "gpt-2" }, `pattern 0 is "qwen2" and "gpt-2"`},
		{"normaliser", func(d *Data) { d.Settings = []string{"nfc=false"} }, `setting 0 is "nfc=true" and "nfc=false"`},
		{"ignore_merges", func(d *Data) { d.Settings = []string{"ignore_merges=true"} }, `setting 1 is "ignore_merges=false" and "ignore_merges=true"`},
		{"white space beside a token", func(d *Data) { d.Settings = []string{"rstrip=259"} }, "<nil>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			a := smallTokenizer(t)
			d := a.Data()
			d.Vocabulary, d.TokenType, d.Merges = slices.Clone(d.Vocabulary), slices.Clone(d.TokenType), slices.Clone(d.Merges)
			c.change(&d)
			b, err := FromData("", d)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(Compare(a, b)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if same := a.IDsSHA256() == b.IDsSHA256(); same != (c.want == "<nil>") {
				t.Errorf("equal hashes: %v", same)
			}
		})
	}
}

// Every pattern survives both stored forms.
func TestPatternsStored(t *testing.T) {
	for _, name := range patternNames() {
		d := smallTokenizer(t).Data()
		d.PreType, d.EOS, d.ChatTemplate = name, 259, "a\u2028<b>"
		tok, err := FromData("", d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse("", string(tok.MarshalTokenizer()), string(tok.MarshalConfig(2048)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := tok.Data()
		if name == "smaug-bpe" { // tokenizer.json has no name for it that is not dbrx
			want.PreType = "dbrx"
		}
		if diff := cmp.Diff(want, back.Data()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
