package eval_test

import (
	"context"
	"math"
	"testing"

	"apr/corpus"
	"apr/eval"
	"apr/internal/near"
)

// Ids stand for as many bytes as they are large; 0 ends a document.
func TestScored(t *testing.T) {
	text := &corpus.Tokens{
		IDs:  []int32{3, 4, 0, 5, 5, 10, 0, 0, 7, 0},
		Docs: []corpus.Doc{{End: 3, Bytes: 7}, {End: 7, Bytes: 40}, {End: 8}, {End: 10, Bytes: 7}}, // the second was twice as long before it was encoded
	}
	for _, tt := range []struct {
		name string
		at   []int
		want eval.Part
	}{
		{"nothing", nil, eval.Part{}},
		{"the end of a document", []int{2}, eval.Part{Documents: 1}},
		{"the rest of a document", []int{1, 2}, eval.Part{Documents: 1, Bytes: 4}},
		{"half of the next", []int{1, 2, 3, 4}, eval.Part{Documents: 2, Bytes: 4 + 20}},
		{"one in the middle", []int{3, 4, 5, 6}, eval.Part{Documents: 1, Bytes: 40}},
		{"one without text", []int{7}, eval.Part{Documents: 1}},
		{"all but the first id", []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, eval.Part{Documents: 4, Bytes: 4 + 40 + 7}},
	} {
		var all []eval.Position
		for _, at := range tt.at {
			all = append(all, eval.Position{At: at})
		}
		if got := eval.Scored(text, all, func(id int32) int { return int(id) }); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// Bits per byte are those of what was scored, at the beginning of a text and over all of it: the bytes of the scored ids, decoded.
func TestBitsPerByteOfWhatWasScored(t *testing.T) {
	s, f, m := loadGosrc(t)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text := heldOut(t, f)
	eos, _ := corpus.EndOfText(tok)
	length := func(id int32) int {
		if id == eos {
			return 0
		}
		b, _ := tok.Bytes(id)
		return len(b)
	}
	for _, n := range []int{64, 8192} {
		w, err := corpus.NewWindows(&corpus.Tokens{IDs: text.IDs[:n+1], EOS: text.EOS}, 64, 64)
		if err != nil {
			t.Fatal(err)
		}
		all, err := eval.Positions(context.Background(), s, nil, m, w, eval.Options{Vocab: 4096})
		if err != nil {
			t.Fatal(err)
		}
		nats, bytes, documents := 0.0, 0, 1
		for _, p := range all {
			nats += p.Own.CE
			bytes += length(text.IDs[p.At])
			if text.IDs[p.At-1] == eos {
				documents++
			}
		}
		part := eval.Scored(text, all, length)
		if part.Documents != documents {
			t.Errorf("%d targets: %d documents, want %d", n, part.Documents, documents)
		}
		near.CheckRel(t, "bits/byte", []float64{eval.Summarise(all, false).BitsPerByte(part.Bytes)}, []float64{nats / float64(bytes) / math.Ln2}, 1e-9)
	}
}
