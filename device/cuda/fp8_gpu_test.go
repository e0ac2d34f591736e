//go:build gpu

package cuda_test

import (
	"context"
	"math"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestFP8 compares products in 8-bit floats with those of the same matrix in bfloat16: matrices kept in them, and in
// blocks, in one piece and in several, with bias, and few rows.
func TestFP8(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	for _, quantised := range []bool{false, true} {
		low, large := tensor.BF16, tensor.BF16
		if quantised {
			low, large = tensor.Q4_K, tensor.Q6_K
		}
		for i, parts := range [][]device.Source{
			{inBlocks(t, low, 1024, 1024), inBlocks(t, low, 128, 1024), inBlocks(t, large, 128, 1024)}, {inBlocks(t, large, 1024, 4864)},
			{inBlocks(t, large, 151936, 1024)},
		} {
			exact, rounded := fp8Weights(t, d, parts, quantised)
			for _, n := range []int{9, 100, 4096} {
				x := random(s, n, exact.Cols(), 1)
				bias := s.Temp("bias", device.Activations, tensor.F32, 1, exact.Rows())
				s.Zero(bias)
				want, got := s.Temp("want", device.Activations, tensor.BF16, n, exact.Rows()), s.Temp("got", device.Activations, tensor.BF16, n, exact.Rows())
				if i != 0 {
					bias = device.Tensor{}
				}
				s.MatMul(want, x, exact, bias, false)
				s.MatMul(got, x, rounded, bias, false)
				cos, off := compare(t, s, want, got)
				t.Logf("quantised %v, matrix %d, %d rows: cosine %.6f, relative error %.4f", quantised, i, n, cos, off)
				if !(cos > 0.998) || !(off < 0.06) {
					t.Errorf("quantised %v, matrix %d, %d rows: cosine %g, relative error %g", quantised, i, n, cos, off)
				}
				s.Release(x, want, got)
				if !bias.IsZero() {
					s.Release(bias)
				}
			}
		}
	}
}

func fp8Weights(t *testing.T, d *cuda.Device, parts []device.Source, blocks bool) (exact, rounded device.Weight) {
	t.Helper()
	spec := device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: parts}
	exact, err := d.Weight(spec)
	if err != nil {
		t.Fatal(err)
	}
	spec.Form = device.Form{Blocks: blocks, FP8: true}
	if rounded, err = d.Weight(spec); err != nil {
		t.Fatal(err)
	}
	return exact, rounded
}

// random returns a bfloat16 tensor of values in (−scale, scale).
func random(s device.Stream, rows, cols int, scale float32) device.Tensor {
	x := s.Temp("x", device.Activations, tensor.BF16, rows, cols)
	host := make([]float32, rows*cols)
	seed := uint32(rows + cols)
	for i := range host {
		seed = seed*1664525 + 1013904223
		host[i] = scale * float32(int32(seed)) / (1 << 31)
	}
	s.Upload(x, host)
	return x
}

// compare returns the cosine of two tensors and the length of their difference over that of the first.
func compare(t *testing.T, s device.Stream, want, got device.Tensor) (cos, off float64) {
	t.Helper()
	a, b := make([]float32, want.Rows*want.Cols), make([]float32, want.Rows*want.Cols)
	if err := s.Download(a, want); err != nil {
		t.Fatal(err)
	}
	if err := s.Download(b, got); err != nil {
		t.Fatal(err)
	}
	var ab, aa, bb, dd float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb, dd = ab+x*y, aa+x*x, bb+y*y, dd+(x-y)*(x-y)
	}
	return ab / math.Sqrt(aa*bb), math.Sqrt(dd / aa)
}

// TestFP8Speed prints the rate of products of a 7B model in 8-bit floats, all of an operation included.
func TestFP8Speed(t *testing.T) {
	d := open(t, cuda.Options{TuningDir: t.TempDir()})
	defer d.Close()
	s := d.NewStream()
	for _, parts := range [][]device.Source{
		{inBlocks(t, tensor.Q4_K, 18944, 3584), inBlocks(t, tensor.Q4_K, 18944, 3584)}, {inBlocks(t, tensor.Q6_K, 3584, 18944)},
		{inBlocks(t, tensor.Q4_K, 4096, 3584), inBlocks(t, tensor.Q6_K, 512, 3584)}, {inBlocks(t, tensor.Q4_K, 3584, 3584)},
	} {
		exact, expanded := fp8Weights(t, d, parts, true)
		_, kept := fp8Weights(t, d, parts, false)
		x := random(s, 8192, exact.Cols(), 1)
		y := s.Temp("y", device.Activations, tensor.BF16, 8192, exact.Rows())
		flops := 2 * 8192 * float64(exact.Rows()) * float64(exact.Cols())
		for _, w := range []struct {
			name string
			w    device.Weight
		}{{"bf16", exact}, {"fp8 of blocks", expanded}, {"fp8 kept", kept}} {
			took := profiled(t, d, s, func() { s.MatMul(y, x, w.w, device.Tensor{}, false) })
			t.Logf("8192×%d×%d %-14s %7.4f ms  %5.0f TFLOP/s", exact.Rows(), exact.Cols(), w.name, 1e3*took, flops/took/1e12)
		}
		s.Release(x, y)
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
}
