//go:build gpu || emulate

package distill

import (
	"context"
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
	models := newChunkModels(t)
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
		near.Check(t, "sums", s, sums, v.within)
		near.Check(t, "weights", w, doubles(weights), v.within)
		for i := range g {
			near.Check(t, "gradient", g[i], doubles(grads[i]), v.within)
		}
		d.Close()
		contracttest.Cases(t, len(w))
	}
}
