//go:build gpu || emulate

package distill

import (
	"context"
	"math"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/teacher"
)

// TestCUDAChunk: on a GPU likelihoods of spans teach what they teach on a CPU: sums, the weight of each target and the
// gradient of a step within float32, and as far as bfloat16 allows.
func TestCUDAChunk(t *testing.T) {
	models := newChunkModels(t, 400, 700)
	models.by = 2 // where logits are large, bfloat16 moves probabilities
	step := func(d device.Device) (sums []float64, weights []float32, grads [][]float32) {
		tr, _, _, b := models.step(t, d, chunkText, 24)
		if err := tr.Teacher.(*teacher.Chunks).Align(b); err != nil {
			t.Fatal(err)
		}
		tr.gradients(b, b.TargetCount())
		sc, err := tr.stream.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return []float64{sc.CE, sc.D}, tr.spans.host, gradientsOf(t, tr)
	}
	sums, weights, grads := step(newCPU(t))
	openEmulator(t)
	for _, v := range []struct {
		compute cuda.Compute
		within  float64
	}{{cuda.F32, 1e-4}, {cuda.BF16, .05}} {
		d, err := cuda.Open(cuda.Options{Compute: v.compute})
		if err != nil {
			t.Fatal(err)
		}
		s, w, g := step(d)
		near.Check(t, "sums", []float64{s[0] / sums[0], s[1] / sums[1]}, []float64{1, 1}, v.within)
		near.Check(t, "weights", w, doubles(weights), v.within)
		for i := range g {
			var off, all float64
			for j, x := range grads[i] {
				off, all = off+math.Pow(float64(g[i][j]-x), 2), all+float64(x)*float64(x)
			}
			near.Check(t, "gradient", []float64{math.Sqrt(off / all)}, []float64{0}, v.within)
		}
		d.Close()
		contracttest.Cases(t, len(w))
	}
}
