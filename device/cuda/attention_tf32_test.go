//go:build emulate || gpu

package cuda_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/tensor"
)

// attend runs attention and its gradients for heads of 64 columns, of which q, k, v and their gradients are columns of
// one matrix, and returns o and the gradients; a dry device has none.
func attend(t *testing.T, d device.Device) (all []float32) {
	t.Helper()
	const rows, n, heads, kv, dim = 2, 70, 4, 2, 64
	a := device.Attn{Batch: rows, QLen: n, KLen: n, KStride: n, Heads: heads, KVHeads: kv, HeadDim: dim}
	s, rng := d.NewStream(), rand.New(rand.NewPCG(5, 6))
	temp := func(cols int) device.Tensor {
		x, v := s.Temp("attention", device.Activations, tensor.F32, rows*n, cols), make([]float32, rows*n*cols)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		s.Upload(x, v)
		return x
	}
	const q, both = heads * dim, (heads + 2*kv) * dim
	split := func(x device.Tensor) (a, b, c device.Tensor) {
		return x.ColRange(0, q), x.ColRange(q, q+kv*dim), x.ColRange(q+kv*dim, both)
	}
	qkv, dqkv, o, do := temp(both), temp(both), temp(q), temp(q)
	lse := s.Temp("lse", device.Activations, tensor.F32, rows*n, heads)
	qt, kt, vt := split(qkv)
	dq, dk, dv := split(dqkv)
	s.Attention(o, lse, qt, kt, vt, a)
	s.AttentionBackward(dq, dk, dv, do, o, lse, qt, kt, vt, a)
	results := []device.Tensor{o, dqkv}
	if _, planned := d.(*dry.Device); planned {
		results = nil
	}
	for _, x := range results {
		v := make([]float32, x.Rows*x.Cols)
		if err := s.Download(v, x); err != nil {
			t.Fatal(err)
		}
		all = append(all, v...)
	}
	s.Release(qkv, dqkv, o, do, lse)
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestAttentionTF32Planned: attention rounds where products may and nowhere else; a plan knows what it loads; results
// repeat.
func TestAttentionTF32Planned(t *testing.T) {
	findDriver(t)
	results := map[cuda.Compute][]float32{}
	for _, c := range []cuda.Compute{cuda.TF32, cuda.F32} {
		d := open(t, cuda.Options{Compute: c, StrictSeal: true})
		planned := dry.New(d.Target())
		attend(t, planned)
		if err := d.Prepare(planned.Record()); err != nil {
			t.Fatal(err)
		}
		d.Seal()
		results[c] = attend(t, d)
		if again := attend(t, d); !slices.Equal(results[c], again) {
			t.Errorf("%v: the second run gives other bits", c)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	var diff, size float64
	for i, x := range results[cuda.F32] {
		diff, size = diff+math.Pow(float64(results[cuda.TF32][i]-x), 2), size+float64(x)*float64(x)
	}
	// A rounding to 10 bits is 0.4 units of 2⁻¹¹; some six of them meet in a gradient.
	if e := math.Sqrt(diff / size); !(e > 0x1p-13 && e < 0x1p-9) {
		t.Errorf("tf32 differs from float32 by %.3g", e)
	}
}
