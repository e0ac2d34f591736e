package align

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/corpus"
	"apr/internal/contracttest"
	"apr/tokenizer"
)

const tokenizers = "../../testdata/tokenizers"

// load reads a tokenizer of the test data.
func load(t testing.TB, name string) *tokenizer.Tokenizer {
	t.Helper()
	dir := filepath.Join(tokenizers, name)
	if name == "gosrc" {
		dir = "../../testdata/models/gosrc"
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return withEnd(t, tok)
}

// withEnd gives a tokenizer without a token that ends a text one.
func withEnd(t testing.TB, tok *tokenizer.Tokenizer) *tokenizer.Tokenizer {
	t.Helper()
	if _, err := corpus.EndOfText(tok); err == nil {
		return tok
	}
	d := tok.Data()
	d.EOS = int32(len(d.Vocabulary))
	d.Vocabulary, d.TokenType = append(d.Vocabulary, "<|endoftext|>"), append(d.TokenType, int(tokenizer.Control))
	if d.Scores != nil {
		d.Scores = append(d.Scores, 0)
	}
	tok, err := tokenizer.FromData("tokenizer with an end", d)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// names are all tokenizers of the test data.
func names(t testing.TB) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(tokenizers)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	return append(all, "gosrc")
}

func pair(t testing.TB, student, teacher *tokenizer.Tokenizer) *Pair {
	t.Helper()
	p, err := NewPair(student, teacher)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// document is a text as a corpus has it: with what begins and ends it.
func document(t testing.TB, tok *tokenizer.Tokenizer, s string) []int32 {
	t.Helper()
	end, err := corpus.EndOfText(tok)
	if err != nil {
		t.Fatal(err)
	}
	return append(tok.Append(tok.Begin(nil), s, tokenizer.PlainText), end)
}

var samples = []string{
	"func main() {\n\tfmt.Println(\"hello, world\", 1234567890)\n}\n",
	"The quick brown fox — naïve café, 你好世界, Здравствуй мир 🙂 é́.",
	"  two blanks, a tab\t, <|endoftext|> and <s> as text, 3.14159 and 2026-11-28",
	"a", " ", "\n\n\n", "x = y*(z+1) // комментарий",
}

// checkRow compares a row with what a slow comparison of all prefixes says: pairs of positions behind the same text
// whose next ids agree under W, each as late as it can be, all of them and no other ones.
func checkRow(t *testing.T, p *Pair, ids []int32, row *Row, s string) {
	t.Helper()
	prefixes := func(tok *tokenizer.Tokenizer, ids []int32) (all []string) {
		text, begun := "", false
		for _, id := range ids {
			b, _ := tok.Bytes(id)
			switch {
			case id == tok.BOS() && !begun:
				b = ""
			case tok.Kind(id) == tokenizer.Control:
				b, begun = "\x00", true
			default:
				if text == "" && strings.HasPrefix(b, " ") && !strings.HasPrefix(s, " ") {
					b = b[1:]
				}
				begun = true
			}
			text += b
			all = append(all, text)
		}
		return all
	}
	mine, theirs := prefixes(p.Student, ids), prefixes(p.Teacher, row.IDs)
	taught := 0
	for i, from := range row.From {
		want := Apart
		for j := 0; j+1 < len(row.IDs); j++ {
			if theirs[j] != mine[i] || theirs[j+1] == theirs[j] && p.Teacher.Kind(row.IDs[j+1]) != tokenizer.Control {
				continue
			}
			want = Differs
			if p.W.First(row.IDs[j+1]) == ids[i+1] {
				want = int32(j)
			}
		}
		if b, _ := p.Student.Bytes(ids[i+1]); b == "" || mine[i] == mine[i+1] {
			want = Apart
		}
		if from != want {
			t.Errorf("%q: position %d of the student belongs to %d of the teacher's, want %d", clip(s), i, from, want)
		}
		if from >= 0 {
			taught++
		}
	}
	if taught != row.Taught {
		t.Errorf("%q: %d positions teach, the row counts %d", s, taught, row.Taught)
	}
}

// Every pair of the tokenizers here: a text is covered whole, unless the teacher's tokenizer changes it, which is said;
// and the positions that teach are those that a slow comparison of all prefixes finds.
func TestPairs(t *testing.T) {
	all, pairs, rows := names(t), 0, 0
	toks := map[string]*tokenizer.Tokenizer{}
	for _, n := range all {
		toks[n] = load(t, n)
	}
	for _, a := range all {
		for _, b := range all {
			p := pair(t, toks[a], toks[b])
			if err := p.W.Check(toks[b].RealIDs(), toks[a].RealIDs()); err != nil {
				t.Fatal(err)
			}
			al := p.NewAligner()
			for _, s := range samples {
				ids := document(t, p.Student, s)
				if ids[0] == p.Student.BOS() && !p.Student.AddBOS() || s != samples[2] && slices.Contains(ids,
					p.Student.Unknown()) {
					continue
				}
				row, err := al.Align(ids, true, 0)
				if err != nil {
					t.Fatal(err)
				}
				changes := strings.Contains(a+b, "unknown")
				back, err := p.Teacher.Decode(p.Teacher.Encode(s, tokenizer.PlainText))
				if err != nil {
					t.Fatal(err)
				}
				if n := row.LostBytes(); n != 0 && !changes && back == s {
					t.Errorf("%s → %s: %q: %d of %d bytes do not teach: %v", a, b, s, n, row.Bytes, row.Lost)
				}
				if row.LostBytes() == 0 && !changes && s[0] != ' ' { // whose own space is the first is a question of the prefix
					checkRow(t, p, ids, row, s)
				}
				rows++
			}
			pairs++
		}
	}
	contracttest.Cases(t, pairs)
	t.Logf("%d pairs, %d rows", pairs, rows)
}

// A tokenizer and itself: all positions teach, each by the teacher's position of the same number, and W is the
// identity.
func TestSame(t *testing.T) {
	for _, n := range names(t) {
		tok := load(t, n)
		p := pair(t, tok, tok)
		ids := document(t, tok, samples[0])
		if slices.Contains(ids, tok.Unknown()) {
			continue
		}
		row, err := p.NewAligner().Align(ids, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(row.IDs, ids) && !slices.Equal(row.IDs, append(tok.Begin(nil), ids...)) {
			t.Errorf("%s: %v becomes %v", n, ids, row.IDs)
		}
		for i, from := range row.From {
			if from < 0 || row.IDs[from] != ids[i] || row.IDs[from+1] != ids[i+1] {
				if b, _ := tok.Bytes(ids[i+1]); strings.TrimSpace(b) != "" {
					t.Errorf("%s: position %d belongs to %d", n, i, from)
				}
			}
		}
	}
}

// small is a byte-level tokenizer with merges, special tokens and what Data may say more.
func small(t testing.TB, merges []string, specials []string, change func(*tokenizer.Data)) *tokenizer.Tokenizer {
	t.Helper()
	base := load(t, "gpt-2")
	d := base.Data()
	byteLevel := d.Vocabulary[:0:0]
	for i, s := range d.Vocabulary {
		if b, _ := base.Bytes(int32(i)); len(b) == 1 && tokenizer.Kind(d.TokenType[i]) == tokenizer.Normal {
			byteLevel = append(byteLevel, s)
		}
	}
	n := tokenizer.Data{Vocabulary: byteLevel, Merges: merges, PreType: d.PreType, Model: d.Model, BOS: tokenizer.None,
		EOS: tokenizer.None, Pad: tokenizer.None}
	for _, m := range merges {
		n.Vocabulary = append(n.Vocabulary, strings.Replace(m, " ", "", 1))
	}
	n.TokenType = slices.Repeat([]int{int(tokenizer.Normal)}, len(n.Vocabulary))
	for _, s := range specials {
		n.Vocabulary, n.TokenType = append(n.Vocabulary, s), append(n.TokenType, int(tokenizer.Control))
	}
	id := func(s string) int32 { return int32(slices.Index(n.Vocabulary, s)) }
	n.EOS = id(specials[0])
	if len(specials) > 1 {
		n.BOS = id(specials[1])
	}
	if change != nil {
		change(&n)
	}
	tok, err := tokenizer.FromData("small", n)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// ids encodes text in which <…> are special tokens.
func encode(tok *tokenizer.Tokenizer, s string) []int32 { return tok.Encode(s, tokenizer.Recognise) }

// show writes a row as the student's next token and the teacher's behind each position.
func show(p *Pair, ids []int32, row *Row) string {
	var parts []string
	name := func(tok *tokenizer.Tokenizer, id int32) string { b, _ := tok.Bytes(id); return b }
	for i, from := range row.From {
		part := name(p.Student, ids[i+1]) + "·"
		switch {
		case from == Differs:
			part += "differs"
		case from >= 0:
			part += name(p.Teacher, row.IDs[from]) + "→" + name(p.Teacher, row.IDs[from+1])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

// The table of what teaches: boundaries, next ids, roles of special tokens.
func TestPositions(t *testing.T) {
	bos := func(d *tokenizer.Data) { d.AddBOS = true }
	plain := small(t, nil, []string{"</s>"}, nil)
	ab := small(t, []string{"a b"}, []string{"<end>", "<begin>", "<|user|>", "<|only|>"}, nil)
	bc := small(t, []string{"b c"}, []string{"<e>", "<b>", "<|user|>"}, bos)
	cases := []struct {
		student, teacher *tokenizer.Tokenizer
		text, want       string
	}{
		// a boundary inside the other's token does not teach; a common one before tokens of other lengths does not, either
		{plain, ab, "cabc</s>", "a·c→ab b· c·ab→c </s>·c→<end>"},
		{ab, plain, "cabc<end>", "ab·differs c·b→c <end>·c→</s>"},
		{ab, bc, "cabcd<end>", "ab·differs c· d·bc→d <end>·d→<e>"},
		// the teacher begins each document with a token that the student does not have there
		{ab, bc, "a<end>ca<end>", "<end>·a→<e> c·<b>→c a·c→a <end>·a→<e>"},
		// of both it is one
		{ab, bc, "<begin>ca<end>", "c·<b>→c a·c→a <end>·a→<e>"},
		{bc, ab, "<b>ca<e>", "c·<begin>→c a·c→a <e>·a→<end>"},
		// a student's begin token that the teacher does not have is skipped
		{bc, plain, "<b>ca<e>c", "c· a·c→a <e>·a→</s> c·</s>→c"},
		// a marker of the same text is one; one without counterpart ends what teaches, up to the end of the document
		{ab, bc, "c<|user|>d<end>", "<|user|>·c→<|user|> d·<|user|>→d <end>·d→<e>"},
		{ab, bc, "c<|only|>d<end>dd<end>", "<|only|>· d· <end>· d·<b>→d d·d→d <end>·d→<e>"},
	}
	contracttest.Cases(t, len(cases))
	for _, c := range cases {
		p := pair(t, c.student, c.teacher)
		ids := encode(c.student, c.text)
		row, err := p.NewAligner().Align(ids, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := show(p, ids, row); got != c.want {
			t.Errorf("%q: got  %s\nwant %s", c.text, got, c.want)
		}
	}
}

// What does not teach is said with its bytes.
func TestLost(t *testing.T) {
	ab := small(t, nil, []string{"<end>", "<begin>", "<|only|>"}, nil)
	nfc := small(t, nil, []string{"</s>"}, func(d *tokenizer.Data) { d.PreType = "qwen2" })
	p := pair(t, ab, nfc)
	a := p.NewAligner()
	for _, c := range []struct {
		text  string
		most  int
		lost  int
		words string
	}{
		{"abc<end>", 0, 0, ""},
		{"abc<|only|>de<end>fg", 0, len("<|only|>de"), `"<|only|>" has no counterpart`},
		{"abe\u0301c<end>", 0, len("e\u0301c"), `writes`},
		{"abcdef<end>", 4, 2, "the teacher needs 7 positions for the row, 4 are there"},
	} {
		row, err := a.Align(encode(ab, c.text), true, c.most)
		if err != nil {
			t.Fatal(err)
		}
		if got := row.LostBytes(); got != c.lost || !strings.Contains(fmt.Sprint(row.Lost), c.words) {
			t.Errorf("%q: %d of %d bytes are lost, want %d: %v", c.text, got, row.Bytes, c.lost, row.Lost)
		}
	}
	if _, err := a.Align([]int32{5, 1 << 20}, true, 0); err == nil || !strings.Contains(err.Error(), "E-ALIGN-001") &&
		!strings.Contains(err.Error(), "not one of the student's") {
		t.Errorf("an id outside the vocabulary gives %v", err)
	}
}

// W of the table's tokenizers: where each id goes, what is counted, and that a row which is no distribution is refused.
func TestMatrix(t *testing.T) {
	student := small(t, []string{"1 2"}, []string{"<end>", "<begin>"}, nil)
	teacher := small(t, []string{"1 2", "12 3", "a b"}, []string{"</s>", "<s>", "<|tool|>"}, nil)
	p := pair(t, student, teacher)
	w := p.W
	for text, want := range map[string]string{"12": "12", "123": "12", "ab": "a", "</s>": "<end>", "<s>": "<begin>",
		"<|tool|>": "", "7": "7"} {
		id := encode(teacher, text)[0]
		got := ""
		if to := w.First(id); to >= 0 {
			got, _ = student.Bytes(to)
		}
		if got != want {
			t.Errorf("the mass of %q goes to %q, want %q", text, got, want)
		}
	}
	a := w.Audit()
	if a.Exact != 256+1+2 || a.Digits != 12 || a.DigitsExact != 11 || a.Specials != 3 || a.SpecialsRole != 2 ||
		a.Empty != 1 || len(a.Worst) != 2 || a.Worst[0].Text != "ab" {
		t.Errorf("the audit says %+v", a)
	}
	if !w.Complete() || a.Covered != student.RealIDs() {
		t.Errorf("%d of %d ids are covered", a.Covered, student.RealIDs())
	}
	if err := w.Check(w.TeacherIDs, w.StudentIDs); err != nil {
		t.Error(err)
	}
	if err := w.Check(w.TeacherIDs, w.StudentIDs+1); err == nil {
		t.Error("W of other vocabularies is accepted")
	}
	sum := w.SHA256()
	w.weights[7] = .5
	if err := w.Check(w.TeacherIDs, w.StudentIDs); err == nil || !strings.Contains(err.Error(), "sums to 0.5") {
		t.Errorf("a row that sums to a half gives %v", err)
	}
	if w.SHA256() == sum {
		t.Error("the hash does not see a weight")
	}
	starts, ids, weights := w.Columns()
	contracttest.Cases(t, len(ids))
	for s := range w.StudentIDs {
		for k := starts[s]; k < starts[s+1]; k++ {
			if w.First(ids[k]) != int32(s) || weights[k] != w.weights[w.starts[ids[k]]] {
				t.Fatalf("column %d holds teacher id %d", s, ids[k])
			}
		}
	}
	if int(starts[w.StudentIDs]) != len(w.ids) {
		t.Error("columns hold other entries than rows")
	}
}

// Any text, in any pair of four tokenizers: what teaches follows the same bytes and is followed by ids that agree, in
// ascending order; every byte is covered or lost.
func FuzzAlign(f *testing.F) {
	for _, s := range samples {
		f.Add(s, uint8(0), false)
		f.Add(s, uint8(6), true)
	}
	var toks []*tokenizer.Tokenizer
	for _, n := range []string{"gosrc", "gemma", "mistral", "gpt-2"} {
		toks = append(toks, load(f, n))
	}
	var pairs []*Pair
	for _, a := range toks {
		for _, b := range toks {
			pairs = append(pairs, pair(f, a, b))
		}
	}
	f.Fuzz(func(t *testing.T, s string, which uint8, fresh bool) {
		p := pairs[int(which)%len(pairs)]
		ids := document(t, p.Student, s)
		row, err := p.NewAligner().Align(ids, fresh, 0)
		if err != nil {
			t.Fatal(err)
		}
		last, taught, common := int32(-1), 0, 0
		for i, from := range row.From {
			if from != Apart {
				common++
			}
			if from < 0 {
				continue
			}
			if from <= last {
				t.Fatalf("position %d belongs to %d, the one before to %d", i, from, last)
			}
			if p.W.First(row.IDs[from+1]) != ids[i+1] {
				t.Fatalf("position %d: next ids differ", i)
			}
			last = from
			taught++
		}
		if taught != row.Taught || common != row.Common || len(row.From) != len(ids)-1 || len(row.Starts) != len(row.IDs) {
			t.Fatalf("%d and %d positions, counted %d and %d", taught, common, row.Taught, row.Common)
		}
		if n := row.LostBytes(); n < 0 || n > row.Bytes {
			t.Fatalf("%d of %d bytes are lost", n, row.Bytes)
		}
	})
}

// The speed of aligning rows of 1024 ids, the student's text decoded and the teacher's encoded with it.
func BenchmarkAlign(b *testing.B) {
	for _, c := range [][2]string{{"gosrc", "gemma"}, {"gemma", "gosrc"}, {"gosrc", "gpt-2"}} {
		b.Run(c[0]+" to "+c[1], func(b *testing.B) {
			p := pair(b, load(b, c[0]), load(b, c[1]))
			text, err := os.ReadFile("align.go")
			if err != nil {
				b.Fatal(err)
			}
			ids := document(b, p.Student, strings.Repeat(string(text), 8))
			a, n := p.NewAligner(), 0
			b.ResetTimer()
			for range b.N {
				n = 0
				for lo := 0; lo+1 < len(ids); lo += 1024 {
					row, err := a.Align(ids[lo:min(lo+1025, len(ids))], false, 0)
					if err != nil {
						b.Fatal(err)
					}
					n += row.Bytes
				}
			}
			b.SetBytes(int64(n))
		})
	}
}
