package tokenizer

import (
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"apr/internal/fault"
	"pgregory.net/rapid"
)

func TestDecodeBroken(t *testing.T) {
	tok := smallTokenizer(t)
	for _, c := range []struct{ name, raw, want string }{
		{"whole", "a你😀", "a你😀"},
		{"cut at the end", "a\xe2\x82", "a\uFFFD"},
		{"cut inside", "\xe2\x82a", "\uFFFDa"},
		{"cut twice", "\xf0\x9f\x98\xf0\x9f", "\uFFFD\uFFFD"},
		{"no beginning", "\x80\xbf", "\uFFFD\uFFFD"},
		{"too long a form", "\xc0\xaf\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},
		{"surrogate", "\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
		{"beyond Unicode", "\xf4\x90\x80\x80\xff", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ids []int32
			for _, b := range []byte(c.raw) {
				ids = append(ids, int32(b))
			}
			got, err := tok.Decode(ids)
			if err != nil || got != c.want {
				t.Errorf("%+q, %v; want %+q", got, err, c.want)
			}
		})
	}
	for _, id := range []int32{-1, 261, 1 << 30} {
		if _, err := tok.Decode([]int32{id}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Decode of %d: %v", id, err)
		}
		if _, err := tok.NewStream().Push(id); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Push of %d: %v", id, err)
		}
	}
}

// A stream holds back the beginning of a character and shows it when it is whole.
func TestStreamHoldsBack(t *testing.T) {
	s := smallTokenizer(t).NewStream()
	for i, c := range []struct {
		id   int32
		want string
	}{{'a', "a"}, {0xF0, ""}, {0x9F, ""}, {0x98, ""}, {0x80, "😀"}, {0xE2, ""}, {'b', "\uFFFDb"}, {0xC3, ""}} {
		if got, err := s.Push(c.id); err != nil || got != c.want {
			t.Errorf("push %d: %+q, %v; want %+q", i, got, err, c.want)
		}
	}
	if got := s.Flush(); got != "\uFFFD" {
		t.Errorf("Flush gives %+q", got)
	}
	if got := s.Flush(); got != "" {
		t.Errorf("a second Flush gives %+q", got)
	}
}

// Any ids: the pieces of a stream are valid UTF-8 and join to what Decode returns.
func TestStreamIsDecode(t *testing.T) {
	tok := fixture(t)
	rapid.Check(t, func(r *rapid.T) {
		ids := rapid.SliceOf(rapid.OneOf(rapid.Int32Range(90, 260), rapid.Int32Range(0, 4095))).Draw(r, "ids")
		want, err := tok.Decode(ids)
		if err != nil {
			r.Fatal(err)
		}
		var b strings.Builder
		s := tok.NewStream()
		for _, id := range ids {
			piece, err := s.Push(id)
			if err != nil || !utf8.ValidString(piece) {
				r.Fatalf("%q, %v", piece, err)
			}
			b.WriteString(piece)
		}
		b.WriteString(s.Flush())
		if b.String() != want {
			r.Fatalf("stream %+q, Decode %+q", b.String(), want)
		}
		if string([]rune(want)) != want {
			r.Fatalf("Decode gives broken UTF-8 %+q", want)
		}
	})
}

// decode(encode(x)) = NFC(x), byte for byte, also where x is not UTF-8.
func checkRoundTrip(t *Tokenizer, text string, fatalf func(string, ...any)) {
	ids := t.Encode(text, PlainText)
	got, err := t.AppendBytes(nil, ids)
	if want := NFC(text); err != nil || string(got) != want {
		fatalf("%+q comes back as %+q, %v; want %+q", text, got, err, want)
	}
	for _, id := range ids {
		if t.Kind(id) == Control {
			fatalf("%+q has the special token %d in plain text", text, id)
		}
	}
	if plain, err := t.AppendBytes(nil, t.Encode(text, Recognise)); err != nil || NFC(string(plain)) != NFC(text) {
		fatalf("%+q comes back as %+q with special tokens, %v", text, plain, err)
	}
}

func TestRoundTrip(t *testing.T) {
	tok := fixture(t)
	rapid.Check(t, func(r *rapid.T) { checkRoundTrip(tok, anyText().Draw(r, "text"), r.Fatalf) })
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"func main() {\n\treturn\n}", "e\u0301", "<|im_end|>\u0338", "'\u017f", "\xff\xe2\x82", strings.Repeat(" ", 300) + "x"} {
		f.Add(s)
	}
	tok := fixture(f)
	f.Fuzz(func(t *testing.T, text string) { checkRoundTrip(tok, text, t.Fatalf) })
}

// One tokenizer serves many goroutines: each gets what one alone would get.
func TestConcurrent(t *testing.T) {
	tok := fixture(t)
	cases := references(t).TokenizerCases
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for round := range 20 {
				c := cases[(g*7+round)%len(cases)]
				checkIDs(t, tok, c.Text, c.IDs)
				checkText(t, tok, c.IDs, c.Decoded)
			}
		})
	}
	wg.Wait()
}
