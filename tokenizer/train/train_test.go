package train

import (
	"os"
	"strings"
	"testing"

	"apr/tokenizer"
)

func texts(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile("train.go")
	if err != nil {
		t.Fatal(err)
	}
	b = []byte(strings.ReplaceAll(string(b), sign, " ")) // which a tokenizer of pieces takes for a space
	return []string{string(b), strings.ToUpper(string(b)), "naïve 你好 x1234\n\n\n\ty"}
}

// Both kinds learn what occurs often, keep every text, and are the same each time.
func TestKinds(t *testing.T) {
	all := texts(t)
	for name, learn := range map[string]func() (*tokenizer.Tokenizer, error){
		"byte-level": func() (*tokenizer.Tokenizer, error) { return ByteLevel(all, 500) },
		"pieces":     func() (*tokenizer.Tokenizer, error) { return Pieces(all, 600) },
	} {
		tok, err := learn()
		if err != nil {
			t.Fatal(err)
		}
		again, err := learn()
		if err != nil {
			t.Fatal(err)
		}
		if d := tokenizer.Compare(tok, again); d != nil {
			t.Errorf("%s: the second time %v", name, d)
		}
		for _, s := range all {
			ids := tok.Encode(s, tokenizer.PlainText)
			if back, err := tok.Decode(ids); err != nil || back != s {
				t.Errorf("%s: %q comes back as %q: %v", name, s[:20], back[:min(20, len(back))], err)
			}
			if len(s) > 1000 && float64(len(s))/float64(len(ids)) < 1.7 {
				t.Errorf("%s: %d bytes are %d ids", name, len(s), len(ids))
			}
		}
		t.Logf("%s: %d ids", name, tok.RealIDs())
	}
	if _, err := ByteLevel(all, 100); err == nil {
		t.Error("100 ids are enough for 256 bytes")
	}
	if _, err := Pieces(all, 200); err == nil {
		t.Error("200 ids are enough for 256 bytes")
	}
}

func TestCut(t *testing.T) {
	for s, want := range map[string]string{"func main": "func", " main()": " main", "123": "1", "   x": "  ", "  ": "  ",
		"\n\tx": "\n\t", "é1": "é", " 1": " 1", "== y": "=="} {
		if got := s[:cut(s)]; got != want {
			t.Errorf("the first word of %q is %q, want %q", s, got, want)
		}
	}
}
