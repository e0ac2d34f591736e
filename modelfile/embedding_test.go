package modelfile_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
)

// Rows of embeddings of one id are compared, and rows of zeros are passed over.
func TestEmbeddingCosine(t *testing.T) {
	hf := small(t)
	turned := resized(t, hf, hf.Config.Vocab, tensor.F32, func(_ string, v []float32) { slices.Reverse(v) })
	for name, tt := range map[string]struct {
		b         *modelfile.Files
		low, high float64
	}{
		"more rows": {resized(t, hf, hf.Config.Vocab+64, tensor.F32), 0.999999, 1.000001}, "codes": {variant(t, hf, tensor.Q4_K), 0.98, 0.9999},
		"turned": {turned, -0.1, 0.1},
	} {
		contracttest.Cases(t, 1)
		if c, angles, err := modelfile.EmbeddingLikeness(hf, tt.b); err != nil || !(c >= tt.low && c <= tt.high) {
			t.Errorf("%s: %g, %v", name, c, err)
		} else if alike := name != "turned"; alike != (angles >= 0.9) {
			t.Errorf("%s: angles %g", name, angles)
		}
	}
}

// Embeddings of other widths have angles in common: a copy of which each column is there twice has all of them. Two
// strangers have none, though some of their rows, of ids that no text has, stand near each other in both.
func TestAnglesOfOtherWidths(t *testing.T) {
	doubled := func(rows [][]float32) (out [][]float32) {
		for _, r := range rows {
			out = append(out, slices.Concat(r, r))
		}
		return out
	}
	strangers := func(seed uint64, width, rare int) (rows [][]float32) {
		rng := rand.New(rand.NewPCG(seed, 1))
		for i := range 256 {
			row := make([]float32, width)
			for c := range row {
				row[c] = float32(rng.NormFloat64())
				if i < rare {
					row[c] = float32(1 + 0.3*rng.NormFloat64())
				}
			}
			rows = append(rows, row)
		}
		return rows
	}
	a := strangers(1, 64, 0)
	for name, tt := range map[string]struct {
		a, b      [][]float32
		low, high float64
	}{
		"doubled": {a, doubled(a), 0.999999, 1.000001}, "a stranger": {a, strangers(2, 128, 0), -0.05, 0.05},
		"strangers with rows near each other": {strangers(1, 64, 40), strangers(2, 128, 40), 0, 0.5},
		"equal angles":                        {[][]float32{{1, 0}, {2, 0}, {3, 0}}, [][]float32{{1}, {2}, {3}}, 0, 0},
	} {
		contracttest.Cases(t, 1)
		if r := modelfile.SameAngles(tt.a, tt.b); !(r >= tt.low && r <= tt.high) {
			t.Errorf("%s: angles %g", name, r)
		}
		if c := modelfile.MeanCosine(tt.a, tt.b); c != 0 {
			t.Errorf("%s: cosine %g of other widths", name, c)
		}
	}
}
