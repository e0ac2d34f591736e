package eval

import "apr/corpus"

// Part is what of a text was scored.
type Part struct {
	Documents int     // with a scored target
	Bytes     float64 // of their text
}

// Scored returns the part of t that positions, in the order of the text, stand for. length is how many bytes of text an id stands
// for, 0 for an id that is no text. Every document's bytes are shared out among its ids:
//
//	Bytes = Σ_d d.Bytes · Σ_{i scored in d} length(i) / Σ_{i in d} length(i)
//
// so a document that was scored whole has the bytes it was read with, whatever a template or a normal form made of it, and the
// beginning of one has those of its tokens.
func Scored(t *corpus.Tokens, all []Position, length func(id int32) int) Part {
	var p Part
	start := int64(0)
	for _, d := range t.Docs {
		n := 0
		for n < len(all) && int64(all[n].At) < d.End {
			n++
		}
		if n > 0 {
			p.Documents++
			p.Bytes += float64(d.Bytes) * share(t.IDs, t.IDs[start:d.End], all[:n], length)
		}
		all, start = all[n:], d.End
	}
	return p
}

// share is the part of a document's text that scored positions of it stand for; 0 if the document has no text.
func share(ids, document []int32, scored []Position, length func(id int32) int) float64 {
	var part, whole int
	for _, p := range scored {
		part += length(ids[p.At])
	}
	for _, id := range document {
		whole += length(id)
	}
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
