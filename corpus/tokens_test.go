package corpus

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"apr/internal/fault"
)

func TestHoldOutProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		docs, masks := anyDocs(t)
		fraction := rapid.Float64Range(0, 0.99).Draw(t, "fraction")
		build := func() *Tokens {
			k := tokensOf(docs, masks)
			for i := range k.Docs { // spread the hashes
				d := Document{Text: fmt.Sprint(i / 2)}
				k.Docs[i].Hash = d.Hash()
			}
			return k
		}
		whole := build()
		train, held, err := build().HoldOut(fraction)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckOverlap(train, held); err != nil {
			t.Fatal(err)
		}
		if fraction > 0 && len(docs) > 2 && (len(train.Docs) == 0 || len(held.Docs) == 0) {
			t.Fatalf("%d documents split into %d and %d", len(docs), len(train.Docs), len(held.Docs))
		}
		// Merging both by walking over the whole finds each document once, with its ids and mask.
		at := [2]int{}
		side := [2]*Tokens{train, held}
		for i, d := range whole.Docs {
			k := 0
			if at[1] < len(held.Docs) && held.Docs[at[1]].Hash == d.Hash {
				k = 1
			}
			got := side[k].document(at[k])
			if want := whole.document(i); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("document %d: %v, want %v", i, got, want)
			}
			at[k]++
		}
		if at[0] != len(train.Docs) || at[1] != len(held.Docs) {
			t.Fatalf("documents too many: %v", at)
		}
	})
}

// document returns all of document i but its end.
func (t *Tokens) document(i int) []any {
	start := int64(0)
	if i > 0 {
		start = t.Docs[i-1].End
	}
	d := t.Docs[i]
	out := []any{t.IDs[start:d.End], d.Bytes, d.Hash}
	if t.Mask != nil {
		out = append(out, t.Mask[start:d.End])
	}
	return out
}

func TestHoldOutEdges(t *testing.T) {
	one := func() *Tokens { return tokensOf([][]int32{{1}, {2}}, nil) }
	same := one()
	same.Docs[1].Hash = same.Docs[0].Hash
	train, held, err := same.HoldOut(0.5)
	must(t, err)
	if len(train.Docs) != 2 || len(held.Docs) != 0 {
		t.Errorf("one document twice: %d kept, %d held out", len(train.Docs), len(held.Docs))
	}
	for _, f := range []float64{-0.1, 1, 2} {
		_, _, err := one().HoldOut(f)
		wantError(t, err, "", fmt.Sprintf("fraction of held-out documents is %v, not in [0, 1) [E-CORPUS-001]", f), fault.Usage)
	}
	nan := 0.0
	_, _, err = one().HoldOut(nan / nan)
	wantError(t, err, "", "fraction of held-out documents is NaN, not in [0, 1) [E-CORPUS-001]", fault.Usage)
	err = CheckOverlap(one(), tokensOf([][]int32{{7}}, nil))
	wantError(t, err, "", "1 of 1 held-out documents are in the training data too; the first is held-out document 1, training document 1 [E-CORPUS-002]", fault.Invalid)
}

// TestHoldOutShare holds out about as many documents as asked for.
func TestHoldOutShare(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, "{\"text\": \"document %d\"}\n", i)
	}
	k, _, err := Load(context.Background(), []string{put(t, "a.jsonl", []byte(b.String()))}, byteEncoder{}, options)
	must(t, err)
	_, held, err := k.HoldOut(0.1)
	must(t, err)
	if n := len(held.Docs); n < 400 || n > 600 { // 4.7 standard deviations
		t.Errorf("%d of 5000 documents held out, want about 500", n)
	}
}

// Ids stand for as many bytes as they are large; 0 ends a document. The second document was read with twice the bytes that
// its ids stand for, the third has no text.
func TestHead(t *testing.T) {
	text := &Tokens{
		IDs:  []int32{3, 4, 0, 5, 5, 10, 0, 0, 7, 0},
		Mask: []uint8{1, 1, 1, 0, 1, 1, 1, 1, 1, 1},
		Docs: []Doc{{End: 3, Bytes: 7}, {End: 7, Bytes: 40}, {End: 8}, {End: 10, Bytes: 7}},
	}
	for _, tt := range []struct {
		n, docs int
		bytes   int64
	}{
		{0, 0, 0}, {1, 1, 3}, {2, 1, 7}, {3, 1, 7}, {4, 2, 7 + 10}, {5, 2, 7 + 20}, {6, 2, 47}, {7, 2, 47}, {8, 3, 47}, {9, 4, 54}, {10, 4, 54}, {11, 4, 54},
	} {
		h := text.Head(tt.n, func(id int32) int { return int(id) })
		want := min(tt.n, len(text.IDs))
		if len(h.IDs) != want || len(h.Mask) != want || len(h.Docs) != tt.docs || h.TextBytes() != tt.bytes {
			t.Errorf("first %d: %d ids, %d in the mask, %d documents of %d bytes; want %d documents of %d", tt.n, len(h.IDs), len(h.Mask), len(h.Docs), h.TextBytes(), tt.docs, tt.bytes)
		}
		if n := len(h.Docs); n > 0 && h.Docs[n-1].End != int64(want) {
			t.Errorf("first %d: the last document ends at %d", tt.n, h.Docs[n-1].End)
		}
	}
}

// The identity of the content changes with every id, target and end of a document.
func TestContentSHA256(t *testing.T) {
	hash := func(change func(*Tokens)) string {
		x := &Tokens{IDs: []int32{1, 2, 3, 4}, Mask: []uint8{1, 0, 1, 1}, Docs: []Doc{{End: 2}, {End: 4}}, EOS: 4}
		change(x)
		return x.ContentSHA256()
	}
	same := hash(func(*Tokens) {})
	if same != hash(func(*Tokens) {}) || len(same) != 64 {
		t.Errorf("hash %q", same)
	}
	for name, change := range map[string]func(*Tokens){
		"id": func(x *Tokens) { x.IDs[3] = 5 }, "target": func(x *Tokens) { x.Mask[1] = 1 }, "no mask": func(x *Tokens) { x.Mask = nil },
		"end of a document": func(x *Tokens) { x.Docs[0].End = 3 }, "end of text": func(x *Tokens) { x.EOS = 3 },
		"fewer": func(x *Tokens) { x.IDs = x.IDs[:3] },
	} {
		if hash(change) == same {
			t.Errorf("%s: the same hash", name)
		}
	}
}
