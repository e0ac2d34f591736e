//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/kernel"
	"apr/device/devicetest"
	"apr/tensor"
)

// backwardBench is a product under SwiGLU's backward: dy [n,h] is its x, w [h,f]; m is dgu of the kernel, other that of
// MatMulInputGrad and SwiGLUBackward.
type backwardBench struct {
	gatedBench
	dprod, kept, whole device.Tensor // kept is gate and up; whole is dgu with the columns between its rows
}

// newBackwardBench makes operands whose rows are gap elements apart, a multiple of 8 as are h and f.
func newBackwardBench(t *testing.T, d *Device, n, h, f, gap int) *backwardBench {
	t.Helper()
	b := &backwardBench{gatedBench: gatedBench{t: t, s: d.NewStream().(*Stream)}}
	temp := func(rows, cols int) device.Tensor {
		return b.s.Temp("gated", device.Activations, tensor.BF16, rows, cols+gap)
	}
	b.x, b.w, b.dprod = temp(n, h).ColRange(0, h), temp(h, f).ColRange(0, f), temp(n, f).ColRange(0, f)
	b.kept, b.other = temp(n, 2*f).ColRange(0, 2*f), temp(n, 2*f).ColRange(0, 2*f)
	b.whole = temp(n, 2*f)
	b.m = b.whole.ColRange(0, 2*f)
	b.fill(b.kept, 1.5, 3)
	if d.gemm != nil {
		shape := blas.Shape{
			Op: blas.NN, M: n, N: f, K: h, LDA: b.x.Stride, LDB: b.w.Stride, LDC: b.dprod.Stride, In: tensor.BF16, Out: tensor.BF16, Aligned: true,
		}
		if err := d.prewarm(nil, []blas.Shape{shape}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *backwardBench) release() { b.s.Release(b.x, b.w, b.whole, b.other, b.dprod, b.kept) }

// integers uploads integers of at most 3, of either sign: sums of their products are exact in any order.
func (b *backwardBench) integers(to device.Tensor, seed uint64) {
	state := seed * 0x9e3779b97f4a7c15
	for lo := 0; lo < to.Rows; lo += 1024 {
		rows := to.RowRange(lo, min(lo+1024, to.Rows))
		v := make([]float32, rows.Rows*rows.Cols)
		for i := range v {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			v[i] = float32(int(state>>33%7) - 3)
		}
		b.s.Upload(rows, v)
	}
}

// fused runs the kernel, with its constants or with another group and help.
func (b *backwardBench) fused(dgu, gu device.Tensor, constants ...int32) {
	o := b.s.begin("MatMulSwiGLUBackward", dgu, b.x, gu, b.w)
	if o == nil {
		return
	}
	kernel.GemmSwiGLUBackward(o, mat(dgu), mat(b.x), mat(gu), mat(b.w))
	copy((*[77]int32)(o.steps[0].launch.Args)[75:], constants)
	o.end()
}

func (b *backwardBench) product() { b.s.MatMulInputGrad(b.dprod, b.x, &weight{t: b.w}, false) }

func (b *backwardBench) both() {
	b.product()
	b.s.SwiGLUBackward(b.other, b.dprod, b.kept)
}

// blank writes NaN over dgu and the columns between its rows.
func (b *backwardBench) blank() {
	for lo := 0; lo < b.whole.Rows; lo += 1024 {
		rows := b.whole.RowRange(lo, min(lo+1024, b.whole.Rows))
		b.s.Upload(rows, slices.Repeat([]float32{float32(math.NaN())}, rows.Rows*rows.Cols))
	}
}

// between fails if something was written between the rows of dgu.
func (b *backwardBench) between(what string) {
	b.t.Helper()
	if b.whole.Cols == b.m.Cols {
		return
	}
	for _, v := range b.get(b.whole.ColRange(b.m.Cols, b.whole.Cols)) {
		if v == v {
			b.t.Errorf("%s: %g was written between two rows of dgu", what, v)
			return
		}
	}
}

// check compares dgu with the other way: in all bits where the product is exact, within a tolerance where it is not.
func (b *backwardBench) check(name string) {
	b.t.Helper()
	equal := func(x, y float32) bool { return x == y }
	b.integers(b.x, 1)
	b.integers(b.w, 2)
	b.both()
	for help := range int32(2) {
		for _, group := range []int32{1, 8} {
			what := fmt.Sprintf("%s, exact products, help %d, group %d", name, help, group)
			b.blank()
			b.fused(b.m, b.kept, group, help)
			b.each(what, equal)
			b.between(what)
			b.s.Copy(b.m, b.kept)
			b.fused(b.m, b.m, group, help)
			b.each(what+", over gu", equal)
		}
	}
	b.fill(b.x, 1, 1)
	b.fill(b.w, 1/math.Sqrt(float64(b.x.Cols)), 2)
	b.both()
	b.blank()
	b.fused(b.m, b.kept)
	near := func(x, y float32) bool { return math.Abs(float64(x-y)) <= 0.02*(math.Abs(float64(y))+0.05) }
	b.each(name+": dgu is not near that of MatMulInputGrad and SwiGLUBackward", near)
	b.samples(name)
}

// samples compares elements of dgu, among them its corners, with float64; the product is rounded to bfloat16 there, too.
func (b *backwardBench) samples(name string) {
	b.t.Helper()
	some := func(n int) (at []int) {
		for i := range 16 {
			at = append(at, i*(n-1)/15)
		}
		return at
	}
	worst, f := 0.0, b.w.Cols
	judge := func(what string, i, j int, got float32, want float64) {
		diff := math.Abs(float64(got)-want) / (math.Abs(want) + 1e-2)
		worst = max(worst, diff)
		if !(diff <= 3*0x1p-8) { // of the product, of the gradient, and of cancellation in 1+g(1−σ(g))
			b.t.Errorf("%s: %s(%d,%d) = %g, want %g", name, what, i, j, got, want)
		}
	}
	for _, j := range some(f) {
		w := b.get(b.w.ColRange(j, j+1))
		for _, i := range some(b.x.Rows) {
			dy, d := b.get(b.x.RowRange(i, i+1)), 0.0
			for k := range dy {
				d += float64(dy[k]) * float64(w[k])
			}
			at := func(t device.Tensor, c int) float32 { return b.get(t.RowRange(i, i+1).ColRange(c, c+1))[0] }
			g, u := float64(at(b.kept, j)), float64(at(b.kept, f+j))
			s := 1 / (1 + math.Exp(-g))
			judge("dg", i, j, at(b.m, j), d*u*s*(1+g*(1-s)))
			judge("du", i, j, at(b.m, f+j), d*g*s)
		}
	}
	b.t.Logf("%s: largest relative error of dgu %.2g", name, worst)
}

// TestBackwardKernel: the numbers of the kernel at awkward sizes, and at those of a student and of a model of 7B.
func TestBackwardKernel(t *testing.T) {
	d := openHopper(t)
	for _, c := range [][3]int{
		{1, 8, 8}, {64, 16, 64}, {128, 64, 256}, {256, 64, 256}, {128, 512, 128}, {300, 136, 200}, {257, 3584, 136},
		{1000, 896, 1064}, {4096, 896, 4864}, {8192, 896, 4864}, {2048, 3584, 18944},
	} {
		b := newBackwardBench(t, d, c[0], c[1], c[2], 8)
		b.check(fmt.Sprintf("%d×%d×%d", c[0], c[2], c[1]))
		b.release()
		if t.Failed() {
			return // the first that fails says most
		}
	}
}

// TestBackwardRepeats: many runs, one after the other, give the same bits.
func TestBackwardRepeats(t *testing.T) {
	d := openHopper(t)
	b := newBackwardBench(t, d, 4096, 896, 4864, 0)
	defer b.release()
	b.fill(b.x, 1, 1)
	b.fill(b.w, 1/math.Sqrt(896), 2)
	b.fused(b.m, b.kept)
	b.s.Copy(b.other, b.m)
	for run := range 10 {
		for range 20 {
			b.s.Copy(b.m, b.kept)
			b.fused(b.m, b.m)
		}
		if b.each(fmt.Sprintf("after %d runs", 20*run), func(x, y float32) bool { return x == y }); t.Failed() {
			return
		}
	}
}

// TestBackwardConformance: the suite's cases of the operation, with the kernel in use.
func TestBackwardConformance(t *testing.T) {
	defer func(on bool) { fuseBackward = on }(fuseBackward)
	fuseBackward = true
	d, n := openHopper(t), 0
	for _, c := range devicetest.Cases() {
		if strings.HasPrefix(c.Name, "matmulswiglubackward/") || strings.HasPrefix(c.Name, "repeat") {
			n++
			if err := c.Check(d); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
	t.Logf("%d cases", n)
	if n == 0 {
		t.Error("no cases")
	}
}

// TestBackwardRates prints the time of the product under SwiGLU's backward on each way, five times each, in turn.
func TestBackwardRates(t *testing.T) {
	d := openHopper(t)
	for _, c := range []struct {
		name    string
		n, h, f int
		runs    int
	}{
		{"0.5B, 4096 rows", 4096, 896, 4864, 400}, {"0.5B, 8192 rows", 8192, 896, 4864, 200}, {"0.5B, 16384 rows", 16384, 896, 4864, 100},
		{"1.5B, 8192 rows", 8192, 1536, 8960, 100}, {"7B, 8192 rows", 8192, 3584, 18944, 20},
	} {
		b := newBackwardBench(t, d, c.n, c.h, c.f, 0)
		b.fill(b.x, 1, 1)
		b.fill(b.w, 1/math.Sqrt(float64(c.h)), 2)
		b.rates(c.name, c.runs)
		b.release()
	}
}

func (b *backwardBench) rates(name string, runs int) {
	const few = 8 // times over gu: gradients of gradients of gradients become zero
	type way struct {
		name string
		runs int
		run  func()
	}
	ways := []way{
		{"MatMulInputGrad alone", runs, b.product},
		{"SwiGLUBackward alone", runs, func() { b.s.SwiGLUBackward(b.m, b.dprod, b.kept) }},
		{"MatMulInputGrad, then SwiGLUBackward", runs, func() { b.product(); b.s.SwiGLUBackward(b.m, b.dprod, b.kept) }},
		{"MatMulInputGrad, then SwiGLUBackward, over gu", few, func() { b.product(); b.s.SwiGLUBackward(b.kept, b.dprod, b.kept) }},
		{"one kernel, over gu", few, func() { b.fused(b.kept, b.kept) }},
	}
	for help := range int32(2) {
		for _, group := range []int32{4, 8, 16} {
			ways = append(ways, way{
				fmt.Sprintf("one kernel, help %d, group %d", help, group), runs, func() { b.fused(b.m, b.kept, group, help) },
			})
		}
	}
	b.s.Copy(b.other, b.kept)
	times := make([][]float64, len(ways))
	for start := time.Now(); time.Since(start) < time.Second; {
		b.took(runs, ways[2].run)
	}
	for range 5 {
		for i, w := range ways {
			b.took(w.runs/8+1, w.run)
			b.s.Copy(b.kept, b.other)
			times[i] = append(times[i], b.took(w.runs, w.run))
			b.s.Copy(b.kept, b.other)
		}
	}
	for i, w := range ways {
		slices.Sort(times[i])
		flop := 2 * float64(b.x.Rows) * float64(b.w.Cols) * float64(b.x.Cols)
		b.t.Logf("%-17s %-46s median %.4f ms of %.4f, %4.0f TFLOP/s", name, w.name, times[i][2], times[i], flop/times[i][2]/1e9)
	}
}
