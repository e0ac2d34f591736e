//go:build emulate || gpu

package cuda_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestFinishHeads: one kernel has the bits of norms of heads, rotation, and copies to a cache, at any position, or to
// any rows.
func TestFinishHeads(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for _, c := range []struct {
		rows, heads, kv, d, pairs, at int
		norms, inPlace, gated, placed bool
	}{
		{1, 4, 2, 128, 64, 0, true, false, false, false}, {1, 3, 1, 64, 32, 37, false, true, false, false},
		{8, 2, 2, 256, 32, 5, true, false, false, false}, {3, 5, 5, 24, 8, 1100, true, false, false, false},
		{2, 1, 1, 16, 8, 9, true, true, false, false}, {1, 9, 3, 80, 40, 2, false, false, false, false},
		{1, 4, 2, 256, 32, 3, true, false, true, false}, {8, 3, 1, 64, 32, 0, false, false, true, false},
		{21, 7, 1, 128, 64, 40, false, true, false, true}, {2, 3, 2, 64, 16, 3, true, false, true, true},
	} {
		b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(1, uint64(c.d)))}
		n, kv := c.heads*c.d, c.kv*c.d
		x := b.typed(tensor.BF16, c.rows, n+2*kv+8, 3).ColRange(0, n+2*kv)
		var qNorm, kNorm device.Tensor
		if c.norms {
			qNorm, kNorm = b.values(1, c.d, 1), b.values(1, c.d, 1)
		}
		r := device.Rotary{HeadDim: c.d, Table: turning(c.pairs, 50, 1.2), SeqLen: c.rows, Offset: c.at}
		want, got := b.typed(tensor.BF16, c.rows, n+kv, 1), b.typed(tensor.BF16, c.rows, n, 1)
		wantKV := b.typed(tensor.BF16, c.rows+4, 2*kv, 1)
		gotKV := b.typed(tensor.BF16, c.rows+4, 2*kv, 1)
		b.s.Copy(gotKV, wantKV)
		put := func(dst, src device.Tensor) { b.s.Copy(dst.RowRange(2, 2+c.rows), src) }
		var places device.Tensor
		if c.placed {
			r.SeqLen, r.Offset = 1, c.at+c.rows
			r.Positions = b.numbers(c.rows, func(i int) int { return c.at + c.rows - i })
			places = b.numbers(c.rows, func(i int) int { return (5*i + 3) % (c.rows + 1) })
			put = func(dst, src device.Tensor) { b.s.PutRows(dst, src, places) }
		}
		for _, part := range []struct {
			lo, hi int
			norm   device.Tensor
		}{{0, n, qNorm}, {n, n + kv, kNorm}} {
			if c.norms {
				b.s.HeadNorm(want.ColRange(part.lo, part.hi), device.Tensor{}, x.ColRange(part.lo, part.hi), part.norm, c.d, 1e-5)
			} else {
				b.s.Copy(want.ColRange(part.lo, part.hi), x.ColRange(part.lo, part.hi))
			}
		}
		b.s.Rotate(want, r)
		put(wantKV.ColRange(0, kv), want.ColRange(n, n+kv))
		put(wantKV.ColRange(kv, 2*kv), x.ColRange(n+kv, n+2*kv))
		if c.inPlace {
			got = x.ColRange(0, n)
		}
		pairs := map[string][2]device.Tensor{"q": {got, want.ColRange(0, n)}, "k and v": {gotKV, wantKV}}
		var gate device.Tensor
		if c.gated {
			gate = b.typed(tensor.BF16, c.rows, 2*n, 1).ColRange(0, n)
			wantGate, mixed := b.typed(tensor.BF16, c.rows, n, 1), b.typed(tensor.BF16, c.rows, 2*n+2*kv+8, 3)
			for h := range c.heads {
				lo, hi := h*c.d, (h+1)*c.d
				b.s.Copy(mixed.ColRange(2*lo, lo+hi), x.ColRange(lo, hi))
				b.s.Copy(wantGate.ColRange(lo, hi), mixed.ColRange(lo+hi, 2*hi))
			}
			b.s.Copy(mixed.ColRange(2*n, 2*n+2*kv), x.ColRange(n, n+2*kv))
			x = mixed.ColRange(0, 2*n+2*kv)
			pairs["gates"] = [2]device.Tensor{gate, wantGate}
		}
		to := gotKV
		if !c.placed {
			to = gotKV.RowRange(2, 2+c.rows)
		}
		if !b.s.FinishHeads(got, gate, to, places, x, qNorm, kNorm, 1e-5, r) {
			t.Errorf("%+v: the device has no such operation", c)
		}
		for name, pair := range pairs {
			g, w := make([]float32, pair[0].Rows*pair[0].Cols), make([]float32, pair[0].Rows*pair[0].Cols)
			for v, from := range map[*[]float32]device.Tensor{&g: pair[0], &w: pair[1]} {
				if err := b.s.Download(*v, from); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(g, w) {
				t.Errorf("%+v: %s differs", c, name)
			}
		}
	}
}

// numbers uploads n of them.
func (b *few) numbers(n int, of func(i int) int) device.Tensor {
	t, all := b.d.Alloc("numbers", device.Batch, tensor.I32, n, 1), make([]int32, n)
	for i := range all {
		all[i] = int32(of(i))
	}
	b.s.UploadInts(t, all)
	return t
}
