package cpu

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// A block of queries works on the keys that one of them sees, not on all up to it.
func TestWindowsAndDocumentsSaveWork(t *testing.T) {
	const n = 1024
	dev, err := New(Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := dev.Stream()
	x := s.Temp("x", device.Activations, tensor.F32, n, 16)
	s.Upload(x, make([]float32, n*16))
	documents := s.Temp("first", device.Batch, tensor.I32, n, 1)
	first := make([]int32, n)
	for i := range first {
		first[i] = int32(i / 100 * 100)
	}
	s.UploadInts(documents, first)
	for _, c := range []struct {
		name  string
		a     device.Attn
		width int // keys of a block, beside its own queries'
	}{
		{"window", device.Attn{Window: 128}, 128}, {"documents", device.Attn{First: documents}, 100},
		{"both", device.Attn{First: documents, Window: 30}, 30},
	} {
		a := c.a
		a.Batch, a.QLen, a.KLen, a.KStride, a.Heads, a.KVHeads, a.HeadDim = 1, n, n, n, 1, 1, 16
		o := &s.ops.attention
		if !o.set(x, x, x, x, device.Tensor{}, a) {
			t.Fatalf("%s: %v", c.name, s.err)
		}
		for b := range o.blocks {
			if got := o.block(0, 0, b); got.keys > c.width+got.n || got.low+got.keys != got.own+got.n {
				t.Errorf("%s: block %d of %d queries works on %d keys from %d", c.name, b, got.n, got.keys, got.low)
			}
		}
	}
}

// Documents that go back are an error of the stream.
func TestDocumentsDoNotFall(t *testing.T) {
	dev, err := New(Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := dev.Stream()
	x := s.Temp("x", device.Activations, tensor.F32, 6, 4)
	s.Zero(x)
	a := device.Attn{Batch: 2, QLen: 3, KLen: 3, KStride: 3, Heads: 1, KVHeads: 1, HeadDim: 4, First: s.Temp("first", device.Batch, tensor.I32, 6, 1)}
	for _, c := range []struct {
		first []int32
		ok    bool
	}{{[]int32{0, 1, 2, 0, 0, 2}, true}, {[]int32{0, 2, 1, 0, 0, 0}, false}} {
		s.UploadInts(a.First, c.first)
		s.Attention(x, device.Tensor{}, x, x, x, a)
		if _, err := s.Wait(context.Background()); (err == nil) != c.ok || err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v: %v", c.first, err)
		}
	}
}

// The bits of masked attention and of norms of heads do not depend on how many workers share the work.
func TestSameBitsOfBlocks(t *testing.T) {
	const rows, heads, dim = 2 * 97, 6, 32
	a := device.Attn{Batch: 2, QLen: 97, KLen: 97, KStride: 97, Heads: heads, KVHeads: 2, HeadDim: dim, Window: 33, Cap: 4, Scale: .3}
	var want []float32
	for _, workers := range []int{1, 2, 3, 5} {
		dev, err := New(Options{Workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		s, rng := dev.Stream(), rand.New(rand.NewPCG(1, 2))
		random := func(rows, cols int) device.Tensor {
			x, values := s.Temp("x", device.Activations, tensor.F32, rows, cols), make([]float32, rows*cols)
			for i := range values {
				values[i] = float32(rng.NormFloat64())
			}
			s.Upload(x, values)
			return x
		}
		q, k, v, do, w, dw := random(rows, heads*dim), random(rows, 2*dim), random(rows, 2*dim), random(rows, heads*dim), random(1, dim), random(1, dim)
		o, lse, dq, dk, dv := random(rows, heads*dim), random(rows, heads), random(rows, heads*dim), random(rows, 2*dim), random(rows, 2*dim)
		y, rstd, dx := random(rows, heads*dim), random(rows, heads), random(rows, heads*dim)
		s.Attention(o, lse, q, k, v, a)
		s.AttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
		s.SetScalars(device.Scalars{InvN: .1})
		narrow := a
		narrow.Window = 20
		s.CompareMaps(dq, dk, device.AttnMap{Q: q, K: k, LSE: lse, Attn: a}, device.AttnMap{Q: do, K: v, LSE: lse, Attn: narrow}, device.Tensor{}, 3)
		s.Mix(o, do, .5, 2, true)
		s.HeadNorm(y, rstd, q, w, dim, 1e-6)
		s.HeadNormBackward(dx, dw, do, q, rstd, w, dim)
		var got []float32
		for _, x := range []device.Tensor{o, lse, dq, dk, dv, y, dx, dw} {
			host := make([]float32, x.Rows*x.Cols)
			if err := s.Download(host, x); err != nil {
				t.Fatal(err)
			}
			got = append(got, host...)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if slices.ContainsFunc(got, func(v float32) bool { return math.IsNaN(float64(v)) }) {
			t.Fatal("NaN")
		}
		if want == nil {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("%d workers give other bits", workers)
		}
	}
}
