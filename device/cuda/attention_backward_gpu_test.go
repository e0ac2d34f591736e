//go:build gpu

package cuda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda/kernel"
	"apr/internal/ref"
	"apr/tensor"
)

// attentionGradients is attention with its gradients: dq, dk and dv as columns of one matrix, or of two where there are more
// keys than queries.
type attentionGradients struct {
	*attentionBench
	do, dq, dk, dv device.Tensor
}

func newAttentionGradients(t *testing.T, d *Device, a device.Attn, scale float64) *attentionGradients {
	t.Helper()
	b := &attentionGradients{attentionBench: newAttentionBench(t, d, a, scale)}
	temp := func(rows, cols int) device.Tensor {
		x := b.s.Temp("attention", device.Activations, tensor.BF16, rows, cols)
		b.everything = append(b.everything, x)
		return x
	}
	queries, keys, q, kv := a.Batch*a.QLen, a.Batch*a.KStride, a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	rest := device.Tensor{}
	if queries == keys {
		all := temp(keys, q+2*kv)
		b.dq, rest = all.ColRange(0, q), all.ColRange(q, q+2*kv)
	} else {
		b.dq, rest = temp(queries, q+16).ColRange(8, 8+q), temp(keys, 2*kv)
	}
	b.dk, b.dv = rest.ColRange(0, kv), rest.ColRange(kv, 2*kv)
	b.do = temp(queries, q+8).ColRange(0, q)
	b.fill(b.do, 1, 1) // of seed 1, for no row is left out
	b.attentionBench.run(wayFlash, b.lse)
	return b
}

// run queues the backward on one way.
func (b *attentionGradients) run(way int) {
	plain, sm90 := kernel.PlainAttention, kernel.UseAttentionBackwardSM90
	defer func() {
		kernel.PlainAttention, kernel.UseAttentionBackwardSM90 = plain, sm90
	}()
	kernel.PlainAttention, kernel.UseAttentionBackwardSM90 = way == wayPlain, way == waySM90
	if way == waySM90 && !kernel.AttentionBackwardSM90Serves(mat(b.dq), mat(b.dk), mat(b.dv), mat(b.do), mat(b.o), mat(b.q), mat(b.k), mat(b.v), b.a, kernel.Mat{}) {
		b.t.Fatal("another kernel would run")
	}
	b.s.AttentionBackward(b.dq, b.dk, b.dv, b.do, b.o, b.lse, b.q, b.k, b.v, b.a)
}

// results fills the gradients with NaN, runs, and returns them.
func (b *attentionGradients) results(way int) (dq, dk, dv ref.Mat) {
	b.t.Helper()
	for _, x := range []device.Tensor{b.dq, b.dk, b.dv} {
		for lo := 0; lo < x.Rows; lo += 256 {
			r := x.RowRange(lo, min(lo+256, x.Rows))
			b.s.Upload(r, slices.Repeat([]float32{float32(math.NaN())}, r.Rows*r.Cols))
		}
	}
	b.run(way)
	return b.get(b.dq), b.get(b.dk), b.get(b.dv)
}

// sight is a bench for compare, whose rows are queries or keys: n of a batch row.
func (b *attentionGradients) sight(n int) *attentionBench {
	x := *b.attentionBench
	x.a.QLen = n
	return &x
}

// present returns the rows of m, of keys, that are there, and reports others that were written.
func (b *attentionGradients) present(name string, m ref.Mat) ref.Mat {
	b.t.Helper()
	out := ref.New(b.a.Batch*b.a.KLen, m.Cols)
	for r := range m.Rows {
		if j := r % b.a.KStride; j < b.a.KLen {
			copy(out.Row(r/b.a.KStride*b.a.KLen+j), m.Row(r))
		} else if !math.IsNaN(m.Row(r)[0]) {
			b.t.Errorf("%s: row %d, beyond the keys, was written", name, r)
			return out
		}
	}
	return out
}

// zeroAbsent returns m with 0 for keys that are not there, which are NaN.
func (b *attentionGradients) zeroAbsent(m ref.Mat) ref.Mat {
	for r := range m.Rows {
		if r%b.a.KStride >= b.a.KLen {
			clear(m.Row(r))
		}
	}
	return m
}

// check compares the way of warpgroups with float64, or with the plain kernels where that would take long.
func (b *attentionGradients) check(name string, scale float64) {
	b.t.Helper()
	start := time.Now()
	dq, dk, dv := b.results(waySM90)
	// Probabilities and their gradients are rounded to bfloat16 before they are summed, and results after it.
	tol, oracle := 8*0x1p-8, "float64"
	var wantQ, wantK, wantV ref.Mat
	if b.a.Batch*b.a.Heads*b.a.QLen*b.a.KLen*b.a.HeadDim < 1<<27 {
		wantQ, wantK, wantV = ref.AttentionBackward(b.get(b.do), b.get(b.o), b.get(b.q), b.zeroAbsent(b.get(b.k)), b.zeroAbsent(b.get(b.v)), b.a, nil, nil)
	} else {
		wantQ, wantK, wantV = b.results(wayPlain)
		tol, oracle = 2*tol, "plain"
	}
	tol += (2 + 4*scale*scale) * (16 + 3*math.Sqrt(float64(b.a.HeadDim+b.a.KLen))) * 0x1p-24
	name = fmt.Sprintf("%s (%s)", name, oracle)
	b.compare(name+": dq", dq, wantQ, tol)
	keys := b.sight(b.a.KLen)
	if oracle == "float64" {
		for r := range wantK.Rows {
			if r%b.a.KStride >= b.a.KLen { // as the kernels leave them
				wantK.Row(r)[0], wantV.Row(r)[0] = math.NaN(), math.NaN()
			}
		}
	}
	keys.compare(name+": dk", b.present("dk", dk), b.present("dk wanted", wantK), tol)
	keys.compare(name+": dv", b.present("dv", dv), b.present("dv wanted", wantV), tol)
	for i := range 4 {
		q, k, v := b.results(waySM90)
		for j, pair := range [][2]ref.Mat{{q, dq}, {b.present("dk", k), b.present("dk", dk)}, {b.present("dv", v), b.present("dv", dv)}} {
			for n, x := range pair[1].V {
				if pair[0].V[n] != x {
					b.t.Errorf("%s: run %d gives %g for row %d, column %d of %s, not %g", name, i+2,
						pair[0].V[n], n/pair[1].Cols, n%pair[1].Cols, []string{"dq", "dk", "dv"}[j], x)
					break
				}
			}
		}
	}
	b.t.Logf("%s: %v", name, time.Since(start).Round(time.Millisecond))
}

// TestAttentionBackwardSM90 is about the numbers: lengths at and beside the edges of tiles, offsets, caches, groups,
// scores of all sizes.
func TestAttentionBackwardSM90(t *testing.T) {
	d := openHopper(t)
	whole := func(batch, n, heads, kv, dim int) device.Attn {
		return device.Attn{Batch: batch, QLen: n, KLen: n, KStride: n, Heads: heads, KVHeads: kv, HeadDim: dim}
	}
	for _, dim := range []int{64, 128} {
		for _, c := range []struct {
			a     device.Attn
			scale float64
		}{
			{whole(1, 64, 1, 1, dim), 1}, {whole(1, 128, 1, 1, dim), 1}, {whole(1, 256, 1, 1, dim), 1}, {whole(2, 65, 2, 1, dim), 1},
			{whole(1, 127, 2, 2, dim), 1}, {whole(1, 129, 2, 1, dim), 1}, {whole(2, 191, 4, 2, dim), 1}, {whole(1, 193, 7, 1, dim), 1},
			{whole(2, 255, 2, 1, dim), 1}, {whole(1, 257, 3, 3, dim), 1}, {whole(1, 384, 2, 1, dim), 1}, {whole(1, 511, 2, 1, dim), 1},
			{whole(1, 300, 2, 1, dim), 0}, {whole(1, 300, 2, 1, dim), 3},
			{device.Attn{Batch: 1, QLen: 64, KLen: 128, QOffset: 64, KStride: 128, Heads: 2, KVHeads: 1, HeadDim: dim}, 1},
			{device.Attn{Batch: 2, QLen: 70, KLen: 140, QOffset: 70, KStride: 160, Heads: 2, KVHeads: 2, HeadDim: dim}, 1},
			{device.Attn{Batch: 2, QLen: 130, KLen: 331, QOffset: 201, KStride: 512, Heads: 4, KVHeads: 2, HeadDim: dim}, 3},
			{device.Attn{Batch: 1, QLen: 100, KLen: 300, QOffset: 50, KStride: 300, Heads: 2, KVHeads: 1, HeadDim: dim}, 1},
			{device.Attn{Batch: 1, QLen: 100, KLen: 700, QOffset: 3, KStride: 700, Heads: 7, KVHeads: 1, HeadDim: dim}, 1},
			{whole(3, 1024, 14, 2, dim), 1}, {whole(2, 1023, 28, 4, dim), 1}, {whole(2, 1000, 28, 4, dim), 3}, {whole(1, 4097, 8, 2, dim), 1},
		} {
			a := c.a
			name := fmt.Sprintf("%d rows, %d queries from %d, %d keys of %d, heads %d:%d of %d, scale %g",
				a.Batch, a.QLen, a.QOffset, a.KLen, a.KStride, a.Heads, a.KVHeads, a.HeadDim, c.scale)
			t.Run(name, func(t *testing.T) {
				b := newAttentionGradients(t, d, a, c.scale)
				defer b.release()
				b.check(name, c.scale)
			})
		}
	}
}

// TestAttentionBackwardSM90Extreme: scores of hundred thousands, where one key takes all, as for the kernels of warps.
func TestAttentionBackwardSM90Extreme(t *testing.T) {
	d := openHopper(t)
	for _, dim := range []int{64, 128} {
		for _, scale := range []float64{12, 300} {
			b := newAttentionGradients(t, d, device.Attn{Batch: 1, QLen: 700, KLen: 700, KStride: 700, Heads: 2, KVHeads: 1, HeadDim: dim}, scale)
			q, k, v := b.results(waySM90)
			wantQ, wantK, wantV := b.results(wayFlash)
			name := fmt.Sprintf("width %d, scale %g", dim, scale)
			// A score is off by some units in its last place, a probability by the exponential of that.
			top := 0.0
			for _, x := range b.get(b.lse).V {
				top = max(top, math.Abs(x))
			}
			tol := 4e-2 + 16*0x1p-24*top
			b.compare(name+": dq", q, wantQ, tol)
			b.compare(name+": dk", k, wantK, tol)
			b.compare(name+": dv", v, wantV, tol)
			b.release()
		}
	}
}

// took returns the milliseconds of one run on the device.
func (b *attentionGradients) took(way int, runs int) float64 {
	b.t.Helper()
	b.s.SetScalars(device.Scalars{})
	b.s.Phase(device.PhaseTeacher)
	for range runs {
		b.run(way)
	}
	sc, err := b.s.Wait(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return sc.Phases[device.PhaseTeacher].Seconds() * 1e3 / float64(runs)
}

// rate prints the median time of a way, of five.
func (b *attentionGradients) rate(name string, way int) {
	b.t.Helper()
	runs := max(5, int(10/b.took(way, 5)))
	var times []float64
	for range 5 {
		times = append(times, b.took(way, runs))
	}
	slices.Sort(times)
	flops := 5 * float64(b.a.Batch*b.a.Heads*b.a.HeadDim) * float64(b.a.QLen) * float64(b.a.KLen) // causal half of five products
	b.t.Logf("%-56s %8.4f ms (%.4f to %.4f)  %4.0f TFLOP/s", name, times[2], times[0], times[4], flops/times[2]/1e9)
}

// TestAttentionBackwardSM90Rates prints the time of the backward with products of warps and of warpgroups.
func TestAttentionBackwardSM90Rates(t *testing.T) {
	d := openHopper(t)
	more := []device.Attn{
		{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 12, KVHeads: 2, HeadDim: 128},
		{Batch: 16, QLen: 512, KLen: 512, KStride: 512, Heads: 14, KVHeads: 2, HeadDim: 64},
	}
	for _, a := range slices.Concat(ratedAttention, more) {
		b := newAttentionGradients(t, d, a, 1)
		name := fmt.Sprintf("backward %d×%d, heads %d:%d of %d", a.Batch, a.QLen, a.Heads, a.KVHeads, a.HeadDim)
		b.rate(name+", warps", wayFlash)
		b.rate(name+", warpgroups", waySM90)
		b.release()
	}
}
