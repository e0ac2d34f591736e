package eval_test

import (
	"math"
	"testing"

	"apr/corpus"
	"apr/eval"
	"apr/internal/near"
)

// Documents with a scored target are counted, whatever part of them that is.
func TestDocuments(t *testing.T) {
	text := &corpus.Tokens{
		IDs:  []int32{3, 4, 0, 5, 5, 10, 0, 0, 7, 0},
		Docs: []corpus.Doc{{End: 3, Bytes: 7}, {End: 7, Bytes: 40}, {End: 8}, {End: 10, Bytes: 7}},
	}
	for _, tt := range []struct {
		name string
		at   []int
		want int
	}{
		{"nothing", nil, 0},
		{"the end of a document", []int{2}, 1},
		{"half of the next", []int{1, 2, 3, 4}, 2},
		{"one in the middle", []int{3, 4, 5, 6}, 1},
		{"one without text", []int{7}, 1},
		{"all but the first id", []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, 4},
	} {
		var all []eval.Position
		for _, at := range tt.at {
			all = append(all, eval.Position{At: at})
		}
		if got := eval.Documents(text, all); got != tt.want {
			t.Errorf("%s: %d documents, want %d", tt.name, got, tt.want)
		}
	}
}

// All ids of the data count, those that end documents too, over the bytes of the texts.
func TestBitsPerByte(t *testing.T) {
	text := &corpus.Tokens{IDs: make([]int32, 12), Docs: []corpus.Doc{{End: 5, Bytes: 20}, {End: 12, Bytes: 28}}}
	near.CheckRel(t, "bits/byte", []float64{eval.BitsPerByte(2, text)}, []float64{2 * 12 / 48.0 / math.Ln2}, 1e-15)
	shards := &corpus.Tokens{IDs: make([]int32, 12), Docs: []corpus.Doc{{End: 12}}}
	if got := eval.BitsPerByte(2, shards); !math.IsNaN(got) {
		t.Errorf("text of unknown length has %g bits a byte", got)
	}
}
