package corpus

import (
	"bytes"
	"maps"
	"slices"
)

// EnoughWindows is how many windows HoldOutEnough holds out, if the data gives them. A score's 95 % interval is ±t·s/√n
// over n windows, with the 0.975 quantile t of Student's distribution and their standard deviation s, which is known to
// 1/√(2(n−1)):
//
//	n    t     relative error of s
//	4    3.18  41 %
//	16   2.13  18 %
//	32   2.04  13 %
//	∞    1.96   0 %
//
// From 32 windows on, more of them narrow the interval by the root of their number alone.
const EnoughWindows = 32

// What HoldOutEnough holds out: a hundredth of the documents if that is enough, and never more than a fifth of the tokens.
const (
	usualFraction = 0.01
	mostHeld      = 5
)

// windowsIn is how many adjoining windows of seqLen targets n ids hold: each has seqLen targets, and the first needs an
// id before them.
func windowsIn(n int64, seqLen int) int64 { return max(0, n-1) / int64(seqLen) }

// idsOf is how many ids w such windows take.
func idsOf(w int64, seqLen int) int64 { return w*int64(seqLen) + 1 }

// HoldOutEnough splits t as HoldOut does, but holds out EnoughWindows windows of seqLen targets, or as many as a fifth
// of the ids gives; of less than a window nothing is held out. The first of these that gives as many is taken:
//
//   - HoldOut with a fraction of 0.01, if that is no more than a fifth of the ids;
//   - whole documents in the order of their hashes, passing over those with which it would be more than a fifth of the ids, or
//     more than twice the ids that are needed;
//   - these, and as many ids as are missing from the end of the longest other document.
//
// The head of a document that is cut stays in the training part, without an end-of-text id, for the text does not end
// there; its copies lose the same ids. length is how many bytes of text an id stands for, as of Head. cut is how many
// ids were cut off a document.
func (t *Tokens) HoldOutEnough(seqLen int, length func(id int32) int) (train, held *Tokens, cut int) {
	all := int64(len(t.IDs))
	enough := min(EnoughWindows, windowsIn(all/mostHeld, seqLen))
	if enough == 0 {
		return t, nil, 0
	}
	sizes := t.sizes()
	usual, usually := t.chooser(usualFraction), int64(0)
	for h, n := range sizes {
		if usual(h) {
			usually += n
		}
	}
	if usually >= idsOf(EnoughWindows, seqLen) && usually <= all/mostHeld {
		train, held = t.split(usual, cutting{})
		return train, held, 0
	}
	chosen, n := choose(sizes, idsOf(enough, seqLen), min(all/mostHeld, 2*idsOf(EnoughWindows, seqLen)))
	var c cutting
	if missing := idsOf(enough, seqLen) - n; missing > 0 {
		c = t.longest(chosen, missing)
	}
	c.length = length
	if n+c.ids < idsOf(1, seqLen) {
		return t, nil, 0
	}
	train, held = t.split(func(h Hash) bool { return chosen[h] }, c)
	return train, held, int(c.ids)
}

// sizes returns the ids of each document, with those of its copies.
func (t *Tokens) sizes() map[Hash]int64 {
	all, start := make(map[Hash]int64, len(t.Docs)), int64(0)
	for _, d := range t.Docs {
		all[d.Hash] += d.End - start
		start = d.End
	}
	return all
}

// choose returns the documents with the lowest hashes that have at least want ids together and at most most, or fewer where
// those that are left are too long; and their ids.
func choose(sizes map[Hash]int64, want, most int64) (chosen map[Hash]bool, n int64) {
	chosen = map[Hash]bool{}
	order := slices.SortedFunc(maps.Keys(sizes), func(a, b Hash) int { return bytes.Compare(a[:], b[:]) })
	for _, h := range order {
		if n >= want {
			break
		}
		if n+sizes[h] <= most {
			chosen[h] = true
			n += sizes[h]
		}
	}
	return chosen, n
}

// cutting is the end of a document that is held out alone.
type cutting struct {
	of     Hash
	ids    int64 // 0: there is none
	length func(id int32) int
}

// longest returns the last ids of the longest document that is not chosen, as many as are missing; fewer if it has no more,
// for something of it is to be left.
func (t *Tokens) longest(chosen map[Hash]bool, missing int64) (c cutting) {
	var most, start int64
	for i, d := range t.Docs {
		whole := t.Words != nil && t.Words[i] != nil || t.Mask != nil && !slices.Contains(t.Mask[start:d.End], 1)
		if n := d.End - start; !chosen[d.Hash] && n > most && !whole { // a prompt is not cut
			most, c.of = n, d.Hash
		}
		start = d.End
	}
	c.ids = max(0, min(missing, most-1))
	return c
}

// split moves the chosen documents, and the end of one, into a part of their own. t is used up.
func (t *Tokens) split(chosen func(Hash) bool, c cutting) (train, held *Tokens) {
	train = &Tokens{IDs: t.IDs[:0], Docs: t.Docs[:0], EOS: t.EOS}
	held = &Tokens{EOS: t.EOS}
	if t.Mask != nil {
		train.Mask, held.Mask = t.Mask[:0], []uint8{}
	}
	if t.Words != nil {
		train.Words, held.Words = t.Words[:0], []*Words{}
	}
	if t.Sources != nil {
		train.Sources, held.Sources = t.Sources[:0], []string{}
	}
	start, done := int64(0), false
	for i := range t.Docs {
		d := t.Docs[i] // a copy, taken before the training part moves over it
		from := start
		start = d.End
		switch {
		case chosen(d.Hash):
			held.take(t, from, d, i)
		case c.ids > 0 && d.Hash == c.of:
			ids := t.IDs[from:d.End]
			head := cutDoc(d, ids, len(ids)-int(c.ids), c.length)
			if !done {
				held.take(t, head.End, Doc{End: d.End, Bytes: d.Bytes - head.Bytes}, i)
			}
			train.take(t, from, head, i)
			done = true
		default:
			train.take(t, from, d, i)
		}
	}
	return train, held
}

// take appends document d of all, whose ids begin at from: all of document i, or a part of it.
func (t *Tokens) take(all *Tokens, from int64, d Doc, i int) {
	t.IDs = append(t.IDs, all.IDs[from:d.End]...)
	if all.Mask != nil {
		t.Mask = append(t.Mask, all.Mask[from:d.End]...)
	}
	if all.Words != nil {
		t.Words = append(t.Words, all.Words[i])
	}
	if all.Sources != nil {
		t.Sources = append(t.Sources, all.Sources[i])
	}
	d.End = int64(len(t.IDs))
	t.Docs = append(t.Docs, d)
}
