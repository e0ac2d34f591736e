package corpus

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"apr/internal/contracttest"
)

// corpusOf makes documents of so many ids, all of which differ; documents of the same name are copies.
func corpusOf(docs ...[2]int) *Tokens {
	t := &Tokens{EOS: -1}
	first := map[int]int{}
	for _, d := range docs {
		name, n := d[0], d[1]
		if _, copied := first[name]; !copied {
			first[name] = len(t.IDs)
		}
		for i := range n {
			t.IDs = append(t.IDs, int32(first[name]+i))
		}
		text := Document{Text: fmt.Sprint(name)}
		t.Docs = append(t.Docs, Doc{End: int64(len(t.IDs)), Bytes: 2 * int64(n), Hash: text.Hash()})
	}
	return t
}

// two is the length of every id's text in corpusOf.
func two(int32) int { return 2 }

// HoldOutEnough holds out 32 windows, or what a fifth gives, whatever the lengths of the documents; the text that is
// trained on holds none of it.
func TestHoldOutEnough(t *testing.T) {
	equal := func(docs, ids int) (all [][2]int) {
		for i := range docs {
			all = append(all, [2]int{i, ids})
		}
		return all
	}
	const s = 16
	const need = 32*s + 1
	for name, tt := range map[string]struct {
		docs      [][2]int
		low, high int // of the ids held out
		cut       bool
	}{
		"a hundredth is enough":             {equal(20_000, 10), need, 2400, false},
		"many documents":                    {equal(1000, 10), need, need + 9, false},
		"a few documents":                   {equal(10, 100), 12*s + 1, 200, false},
		"one long document":                 {equal(1, 100_000), need, need, true},
		"one document, and a fifth of it":   {equal(1, 1000), 12*s + 1, 12*s + 1, true},
		"two long ones":                     {equal(2, 50_000), need, need, true},
		"short ones beside a giant":         {append(equal(8, 40), [2]int{100, 90_000}), need, need, true},
		"copies of one text":                {[][2]int{{7, 2000}, {7, 2000}, {7, 2000}}, need, need, true},
		"a fifth of a window":               {equal(1, 16), 0, 0, false},
		"a fifth is a little less than one": {equal(1, 5*s), 0, 0, false},
		"a fifth is one":                    {equal(1, 5*(s+1)), s + 1, s + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			whole := corpusOf(tt.docs...)
			train, held, cut := corpusOf(tt.docs...).HoldOutEnough(s, two)
			n := 0
			if held != nil {
				n = len(held.IDs)
			}
			if n < tt.low || n > tt.high || n > len(whole.IDs)/5 || cut > 0 != tt.cut {
				t.Errorf("%d of %d ids held out, %d of them cut off; want %d to %d, cut %v", n, len(whole.IDs), cut, tt.low, tt.high, tt.cut)
			}
			if held == nil {
				return
			}
			for _, id := range train.IDs {
				if slices.Contains(held.IDs, id) {
					t.Fatalf("id %d is in both parts", id)
				}
			}
			if _, err := NewWindows(held, s, s); err != nil {
				t.Error(err)
			}
			if got := train.TextBytes() + held.TextBytes(); name != "copies of one text" && got != whole.TextBytes() {
				t.Errorf("%d bytes of text, want %d", got, whole.TextBytes())
			}
		})
	}
}

// A hundredth that is enough is the one of HoldOut, document by document.
func TestHoldOutEnoughIsTheUsual(t *testing.T) {
	var docs [][2]int
	for i := range 5000 {
		docs = append(docs, [2]int{i, 20 + i%30})
	}
	train, held, cut := corpusOf(docs...).HoldOutEnough(16, two)
	wantTrain, wantHeld, err := corpusOf(docs...).HoldOut(0.01)
	must(t, err)
	if cut != 0 || train.ContentSHA256() != wantTrain.ContentSHA256() || held.ContentSHA256() != wantHeld.ContentSHA256() || held.SHA256() != wantHeld.SHA256() {
		t.Errorf("%d and %d ids, want %d and %d", len(train.IDs), len(held.IDs), len(wantTrain.IDs), len(wantHeld.IDs))
	}
}

// Both parts together are the text, but for what copies of a cut document lose; masks stay with their ids; the same
// text gives the same parts.
func TestHoldOutEnoughProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		docs, masks := anyDocs(t)
		s := rapid.IntRange(1, 4).Draw(t, "seqLen")
		build := func() *Tokens {
			k := tokensOf(docs, masks)
			for i := range k.Docs {
				d := Document{Text: fmt.Sprint(i)}
				k.Docs[i].Hash = d.Hash()
			}
			return k
		}
		whole := build()
		train, held, cut := build().HoldOutEnough(s, two)
		if held == nil {
			held = &Tokens{}
			if train.ContentSHA256() != whole.ContentSHA256() {
				t.Fatal("nothing is held out, and the text is another")
			}
		}
		again, _, _ := build().HoldOutEnough(s, two)
		if again.ContentSHA256() != train.ContentSHA256() {
			t.Fatal("the same text is split in two ways")
		}
		if len(train.IDs)+len(held.IDs) != len(whole.IDs) || len(held.IDs) > len(whole.IDs)/5 || cut > len(held.IDs) {
			t.Fatalf("%d ids split into %d and %d, %d cut off", len(whole.IDs), len(train.IDs), len(held.IDs), cut)
		}
		sorted := func(parts ...*Tokens) (ids []int32, ones int) {
			for _, p := range parts {
				ids = append(ids, p.IDs...)
				ones += bytes.Count(p.Mask, []byte{1})
				if p.Mask != nil && len(p.Mask) != len(p.IDs) {
					t.Fatalf("%d ids, %d in the mask", len(p.IDs), len(p.Mask))
				}
			}
			slices.Sort(ids)
			return ids, ones
		}
		got, gotOnes := sorted(train, held)
		want, wantOnes := sorted(whole)
		if !slices.Equal(got, want) || gotOnes != wantOnes {
			t.Fatalf("ids %v with %d targets, want %v with %d", got, gotOnes, want, wantOnes)
		}
	})
}
