//go:build gpu

package cuda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda/kernel"
	"apr/internal/ref"
	"apr/tensor"
)

// attentionBench is attention with q, k, v as columns of one matrix, or of two where there are more keys than queries,
// and o inside a wider matrix.
type attentionBench struct {
	t          *testing.T
	s          *Stream
	a          device.Attn
	q, k, v    device.Tensor
	o, lse     device.Tensor
	gap        device.Tensor // columns beside o, NaN
	everything []device.Tensor
}

func newAttentionBench(t *testing.T, d *Device, a device.Attn, scale float64) *attentionBench {
	t.Helper()
	b := &attentionBench{t: t, s: d.NewStream().(*Stream), a: a}
	temp := func(dtype tensor.DType, rows, cols int) device.Tensor {
		x := b.s.Temp("attention", device.Activations, dtype, rows, cols)
		b.everything = append(b.everything, x)
		return x
	}
	queries, keys, q, kv := a.Batch*a.QLen, a.Batch*a.KStride, a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	rest := device.Tensor{}
	if queries == keys {
		all := temp(tensor.BF16, keys, q+2*kv)
		b.q, rest = all.ColRange(0, q), all.ColRange(q, q+2*kv)
	} else {
		b.q, rest = temp(tensor.BF16, queries, q+16).ColRange(8, 8+q), temp(tensor.BF16, keys, 2*kv)
	}
	b.k, b.v = rest.ColRange(0, kv), rest.ColRange(kv, 2*kv)
	o := temp(tensor.BF16, queries, q+24)
	b.o, b.gap, b.lse = o.ColRange(0, q), o.ColRange(q, q+24), temp(tensor.F32, queries, a.Heads)
	b.fill(b.q, scale, 1)
	b.fill(b.k, scale, 2)
	b.fill(b.v, 1, 3)
	return b
}

func (b *attentionBench) release() { b.s.Release(b.everything...) }

// fill uploads sums of four uniform numbers of about that standard deviation; rows of keys that are not there yet, NaN.
func (b *attentionBench) fill(to device.Tensor, scale float64, seed uint64) {
	state := seed * 0x9e3779b97f4a7c15
	const step = 256
	for lo := 0; lo < to.Rows; lo += step {
		rows := to.RowRange(lo, min(lo+step, to.Rows))
		v := make([]float32, rows.Rows*rows.Cols)
		for i := range v {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			sum := int(state&0xffff) + int(state>>16&0xffff) + int(state>>32&0xffff) + int(state>>48) - 2*0xffff
			v[i] = float32(scale * float64(sum) * math.Sqrt(3) / 0xffff)
			if seed > 1 && (lo+i/rows.Cols)%b.a.KStride >= b.a.KLen {
				v[i] = float32(math.NaN())
			}
		}
		b.s.Upload(rows, v)
	}
}

func (b *attentionBench) get(t device.Tensor) ref.Mat {
	b.t.Helper()
	v := make([]float32, t.Rows*t.Cols)
	if err := b.s.Download(v, t); err != nil {
		b.t.Fatal(err)
	}
	m := ref.New(t.Rows, t.Cols)
	for i, x := range v {
		m.V[i] = float64(x)
	}
	return m
}

// ways of attention.
const (
	wayPlain = iota // float32 products
	wayFlash        // products of warps
	waySM90         // products of warpgroups
)

// run queues attention on one way.
func (b *attentionBench) run(way int, lse device.Tensor) {
	plain, sm90 := kernel.PlainAttention, kernel.UseAttentionSM90
	defer func() { kernel.PlainAttention, kernel.UseAttentionSM90 = plain, sm90 }()
	kernel.PlainAttention, kernel.UseAttentionSM90 = way == wayPlain, way == waySM90
	if way == waySM90 && !kernel.AttentionSM90Serves(mat(b.o), mat(b.q), mat(b.k), mat(b.v), b.a, kernel.Mat{}) {
		b.t.Fatal("another kernel would run")
	}
	b.s.Attention(b.o, lse, b.q, b.k, b.v, b.a)
}

// results clears o and lse, runs, and returns them.
func (b *attentionBench) results(way int, withLSE bool) (o, lse ref.Mat) {
	b.t.Helper()
	for _, x := range []device.Tensor{b.o, b.gap, b.lse} {
		for lo := 0; lo < x.Rows; lo += 256 {
			r := x.RowRange(lo, min(lo+256, x.Rows))
			b.s.Upload(r, slices.Repeat([]float32{float32(math.NaN())}, r.Rows*r.Cols))
		}
	}
	to := b.lse
	if !withLSE {
		to = device.Tensor{}
	}
	b.run(way, to)
	o, lse = b.get(b.o), b.get(b.lse)
	for i, x := range b.get(b.gap).V {
		if !math.IsNaN(x) {
			b.t.Errorf("row %d: written beside o, %d columns after it", i/b.gap.Cols, i%b.gap.Cols)
			break
		}
	}
	return o, lse
}

// map of errors of one head: how many of rows×cols elements are wrong, for every such piece of rows [from,to).
func (b *attentionBench) pattern(wrong func(row, col int) bool, head, from, to, rows, cols int) string {
	var text strings.Builder
	for r := from; r < to; r += rows {
		fmt.Fprintf(&text, "\n  row %5d:", r-from/b.a.QLen*b.a.QLen)
		for c := 0; c < b.a.HeadDim; c += cols {
			n := 0
			for i := r; i < min(r+rows, to); i++ {
				for j := c; j < c+cols; j++ {
					if wrong(i, head*b.a.HeadDim+j) {
						n++
					}
				}
			}
			fmt.Fprintf(&text, "%5d", n)
		}
	}
	return text.String()
}

// compare reports how got, of attention's output, differs from want, and where.
func (b *attentionBench) compare(name string, got, want ref.Mat, tol float64) {
	b.t.Helper()
	squares := 0.0
	for _, x := range want.V {
		squares += x * x
	}
	rms := math.Sqrt(squares / float64(len(want.V)))
	rms = max(rms, 1e-4) // a query that sees one key has no gradient: float32 leaves 1e-7 of values about 1
	wrong := func(row, col int) bool {
		w := want.Row(row)[col]
		return !(math.Abs(got.Row(row)[col]-w) <= tol*(math.Abs(w)+rms))
	}
	worst, count, first := 0.0, 0, -1
	perHead := map[[2]int]int{}
	for i, w := range want.V {
		row, col := i/want.Cols, i%want.Cols
		worst = max(worst, math.Abs(got.V[i]-w)/(math.Abs(w)+rms))
		if wrong(row, col) {
			if first < 0 {
				first = i
			}
			count++
			perHead[[2]int{row / b.a.QLen, col / b.a.HeadDim}]++
		}
	}
	if count == 0 {
		b.t.Logf("%s: right, worst %.2g of %.2g", name, worst, tol)
		return
	}
	row, col := first/want.Cols, first%want.Cols
	batch, head := row/b.a.QLen, col/b.a.HeadDim
	b.t.Errorf("%s: %d of %d elements are wrong, worst %.3g of %.2g; first batch row %d, head %d, query %d, column %d: %g, not %g; wrong per (batch row, head): %v",
		name, count, len(want.V), worst, tol, batch, head, row%b.a.QLen, col%b.a.HeadDim, got.V[first], want.V[first], perHead)
	c := head * b.a.HeadDim
	b.t.Logf("got  %.3g\nwant %.3g", got.Row(row)[c:c+b.a.HeadDim], want.Row(row)[c:c+b.a.HeadDim])
	from := batch * b.a.QLen
	b.t.Logf("wrong of 64 rows × 8 columns, that head:%s", b.pattern(wrong, head, from, from+b.a.QLen, 64, 8))
	from = row / b.a.QLen * b.a.QLen
	from += (row - from) / 64 * 64
	b.t.Logf("wrong of 1 row × 8 columns, its 64 rows:%s", b.pattern(wrong, head, from, min(from+64, (batch+1)*b.a.QLen), 1, 8))
}

// compareLSE does the same for lse.
func (b *attentionBench) compareLSE(name string, got, want ref.Mat, tol float64) {
	b.t.Helper()
	worst, count, first := 0.0, 0, -1
	for i, w := range want.V {
		diff := math.Abs(got.V[i]-w) / (1 + math.Abs(w))
		worst = max(worst, diff)
		if !(diff <= tol) {
			if first < 0 {
				first = i
			}
			count++
		}
	}
	if count == 0 {
		b.t.Logf("%s: lse right, worst %.2g of %.2g", name, worst, tol)
		return
	}
	row, head := first/want.Cols, first%want.Cols
	var rows []int
	for i, w := range want.V {
		if i%want.Cols == head && i/want.Cols/b.a.QLen == row/b.a.QLen && !(math.Abs(got.V[i]-w)/(1+math.Abs(w)) <= tol) && len(rows) < 200 {
			rows = append(rows, i/want.Cols%b.a.QLen)
		}
	}
	b.t.Errorf("%s: lse: %d of %d are wrong, worst %.3g of %.2g; first batch row %d, head %d, query %d: %g, not %g; wrong queries there: %v",
		name, count, len(want.V), worst, tol, row/b.a.QLen, head, row%b.a.QLen, got.V[first], want.V[first], rows)
}

// check compares the way of warpgroups with float64, or with the plain kernels where that would take long.
func (b *attentionBench) check(name string, scale float64) {
	b.t.Helper()
	start := time.Now()
	o, lse := b.results(waySM90, true)
	wantO, wantL, oracle, roundings := ref.Mat{}, ref.Mat{}, "float64", 4.
	if b.a.Batch*b.a.Heads*b.a.QLen*b.a.KLen*b.a.HeadDim < 1<<28 {
		wantO, wantL = ref.Attention(b.get(b.q), b.get(b.k), b.get(b.v), b.a, nil, nil)
	} else {
		wantO, wantL = b.results(wayPlain, true)
		oracle, roundings = "plain", 8 // both sides are rounded
	}
	sums := (2 + 4*scale*scale) * (16 + 3*math.Sqrt(float64(b.a.HeadDim+b.a.KLen))) * 0x1p-24
	name = fmt.Sprintf("%s (%s)", name, oracle)
	b.compareLSE(name, lse, wantL, 16*0x1p-24+sums)
	b.compare(name, o, wantO, roundings*0x1p-8+sums)
	for i := range 3 {
		again, _ := b.results(waySM90, i > 0)
		for j, x := range o.V {
			if again.V[j] != x {
				b.t.Errorf("%s: run %d (lse %v) gives %g for row %d, column %d, not %g", name, i+2, i > 0, again.V[j], j/o.Cols, j%o.Cols, x)
				break
			}
		}
	}
	b.t.Logf("%s: %v", name, time.Since(start).Round(time.Millisecond))
}

// TestAttentionSM90 is about the numbers: lengths at and beside the edges of tiles, offsets, caches, groups, scores of
// all sizes.
func TestAttentionSM90(t *testing.T) {
	d := openHopper(t)
	whole := func(batch, n, heads, kv, dim int) device.Attn {
		return device.Attn{Batch: batch, QLen: n, KLen: n, KStride: n, Heads: heads, KVHeads: kv, HeadDim: dim}
	}
	for _, dim := range []int{128, 64} {
		for _, c := range []struct {
			a     device.Attn
			scale float64
		}{
			{whole(1, 64, 1, 1, dim), 1}, {whole(1, 128, 1, 1, dim), 1}, {whole(1, 256, 1, 1, dim), 1}, {whole(2, 65, 2, 1, dim), 1},
			{whole(1, 127, 2, 2, dim), 1}, {whole(1, 129, 2, 1, dim), 1}, {whole(2, 191, 4, 2, dim), 1}, {whole(1, 193, 7, 1, dim), 1},
			{whole(2, 255, 2, 1, dim), 1}, {whole(1, 257, 3, 3, dim), 1}, {whole(1, 384, 2, 1, dim), 1}, {whole(1, 511, 2, 1, dim), 1},
			{whole(1, 300, 2, 1, dim), 0}, {whole(1, 300, 2, 1, dim), 3}, {whole(1, 300, 2, 1, dim), 12},
			{device.Attn{Batch: 1, QLen: 64, KLen: 128, QOffset: 64, KStride: 128, Heads: 2, KVHeads: 1, HeadDim: dim}, 1},
			{device.Attn{Batch: 2, QLen: 70, KLen: 140, QOffset: 70, KStride: 160, Heads: 2, KVHeads: 2, HeadDim: dim}, 1},
			{device.Attn{Batch: 2, QLen: 130, KLen: 331, QOffset: 201, KStride: 512, Heads: 4, KVHeads: 2, HeadDim: dim}, 3},
			{device.Attn{Batch: 1, QLen: 100, KLen: 300, QOffset: 50, KStride: 300, Heads: 2, KVHeads: 1, HeadDim: dim}, 1},
			{whole(3, 1024, 14, 2, dim), 1}, {whole(2, 1023, 28, 4, dim), 1}, {whole(2, 1000, 28, 4, dim), 3}, {whole(1, 4097, 8, 2, dim), 1},
		} {
			a := c.a
			name := fmt.Sprintf("%d rows, %d queries from %d, %d keys of %d, heads %d:%d of %d, scale %g",
				a.Batch, a.QLen, a.QOffset, a.KLen, a.KStride, a.Heads, a.KVHeads, a.HeadDim, c.scale)
			t.Run(name, func(t *testing.T) {
				b := newAttentionBench(t, d, a, c.scale)
				defer b.release()
				b.check(name, c.scale)
			})
		}
	}
}

// TestAttentionSM90Extreme: scores of hundred thousands, where one key takes all, as for the kernels of warps.
func TestAttentionSM90Extreme(t *testing.T) {
	d := openHopper(t)
	for _, dim := range []int{128, 64} {
		b := newAttentionBench(t, d, device.Attn{Batch: 1, QLen: 700, KLen: 700, KStride: 700, Heads: 2, KVHeads: 1, HeadDim: dim}, 300)
		o, lse := b.results(waySM90, true)
		flashO, flashL := b.results(wayFlash, true)
		b.compareLSE(fmt.Sprintf("width %d", dim), lse, flashL, 1e-6)
		b.compare(fmt.Sprintf("width %d", dim), o, flashO, 1e-2)
		b.release()
	}
}

// took returns the milliseconds of one run on the device.
func (b *attentionBench) took(way, runs int) float64 {
	b.t.Helper()
	b.s.SetScalars(device.Scalars{})
	b.s.Phase(device.PhaseTeacher)
	for range runs {
		b.run(way, b.lse)
	}
	sc, err := b.s.Wait(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return sc.Phases[device.PhaseTeacher].Seconds() * 1e3 / float64(runs)
}

// rate prints the median time of a way, of five.
func (b *attentionBench) rate(name string, way int) {
	b.t.Helper()
	runs := max(5, int(10/b.took(way, 5)))
	var times []float64
	for range 5 {
		times = append(times, b.took(way, runs))
	}
	slices.Sort(times)
	flops := 2 * float64(b.a.Batch*b.a.Heads*b.a.HeadDim) * float64(b.a.QLen) * float64(b.a.KLen) // causal half of two products
	b.t.Logf("%-52s %8.4f ms (%.4f to %.4f)  %4.0f TFLOP/s", name, times[2], times[0], times[4], flops/times[2]/1e9)
}

// ratedAttention are sizes of published models.
var ratedAttention = []device.Attn{
	{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 28, KVHeads: 4, HeadDim: 128},
	{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 14, KVHeads: 2, HeadDim: 64},
	{Batch: 2, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 28, KVHeads: 4, HeadDim: 128},
	{Batch: 2, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 14, KVHeads: 2, HeadDim: 64},
	{Batch: 8, QLen: 512, KLen: 512, KStride: 512, Heads: 28, KVHeads: 4, HeadDim: 128},
}

// TestAttentionSM90Rates prints the time of the forward with products of warps and of warpgroups.
func TestAttentionSM90Rates(t *testing.T) {
	d := openHopper(t)
	for _, a := range ratedAttention {
		b := newAttentionBench(t, d, a, 1)
		name := fmt.Sprintf("%d×%d, heads %d:%d of %d", a.Batch, a.QLen, a.Heads, a.KVHeads, a.HeadDim)
		b.rate(name+", warps", wayFlash)
		b.rate(name+", warpgroups", waySM90)
		b.release()
	}
}
