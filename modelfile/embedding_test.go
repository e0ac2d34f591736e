package modelfile_test

import (
	"slices"
	"testing"

	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
)

// Rows of embeddings of one id are compared, rows of zeros are passed over, and models of other widths have no rows in common.
func TestEmbeddingCosine(t *testing.T) {
	hf := small(t)
	turned := resized(t, hf, hf.Config.Vocab, tensor.F32, func(_ string, v []float32) { slices.Reverse(v) })
	narrow := *hf
	narrow.Config.Hidden /= 2
	for name, tt := range map[string]struct {
		b         *modelfile.Files
		low, high float64
	}{
		"more rows": {resized(t, hf, hf.Config.Vocab+64, tensor.F32), 0.999999, 1.000001}, "codes": {variant(t, hf, tensor.Q4_K), 0.98, 0.9999},
		"turned": {turned, -0.1, 0.1}, "narrower": {&narrow, 0, 0},
	} {
		contracttest.Cases(t, 1)
		if c, angles, err := modelfile.EmbeddingLikeness(hf, tt.b); err != nil || !(c >= tt.low && c <= tt.high) {
			t.Errorf("%s: %g, %v", name, c, err)
		} else if alike := name != "narrower" && name != "turned"; alike != (angles >= 0.9) {
			t.Errorf("%s: angles %g", name, angles)
		}
	}
}
