//go:build emulate || gpu

package main

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"apr/device/cuda"
	"apr/model"
)

// TestDevice measures all goldens on the CUDA device, and writes the figures to the file $FAMILIES_OUT if there is one. What the
// device refuses is logged; what it computes has to be near the golden.
func TestDevice(t *testing.T) {
	findDriver(t)
	all, err := goldens("../..")
	if err != nil {
		t.Fatal(err)
	}
	out := measured{Date: time.Now().UTC().Format(time.DateOnly)}
	for _, g := range all {
		if model.Computed(g.config) != nil {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, compute := range []cuda.Compute{cuda.F32, cuda.BF16} {
				d, err := cuda.Open(cuda.Options{Compute: compute})
				if err != nil {
					t.Fatal(err)
				}
				out.Device = d.Info().Name
				f := measure(d, g)
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				switch {
				case f.Refused != "":
					t.Logf("refused: %s", f.Refused)
				case compute == cuda.F32 && !(f.Logits <= 2e-4 && f.Gradient <= 1e-4 && f.Greedy), compute == cuda.BF16 && !(f.Cosine >= g.leastCosine() && f.Ties.Others <= f.Ties.All/20 && f.Ties.Farthest <= .05):
					t.Errorf("%+v", f)
				}
				if compute == cuda.F32 {
					out.Float32 = append(out.Float32, f)
				} else {
					out.BFloat16 = append(out.BFloat16, f)
				}
			}
		})
	}
	if path := os.Getenv("FAMILIES_OUT"); path != "" {
		text, err := json.MarshalIndent(out, "", " ")
		if err == nil {
			err = os.WriteFile(path, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// leastCosine returns the least cosine that is allowed between a row of bfloat16 logits and the golden's: 0.9995 for most goldens.
// Goldens whose float32 logits in transformers differ by e ≥ 1.5e-6 from its float64 are too steep for that: bfloat16 rounds 2¹⁶ times
// as coarsely as float32, so that logits may differ by 2¹⁶·e, and vectors that do so have the cosine 1 − (2¹⁶·e)²/2.
func (g *golden) leastCosine() float64 {
	if g.float32 < 1.5e-6 {
		return .9995
	}
	far := g.float32 * (1 << 16)
	return 1 - far*far/2
}
