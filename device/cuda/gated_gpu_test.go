//go:build gpu

package cuda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/tensor"
)

// gatedBench is a product with a gated activation: x [n,h], w [2f,h], and what comes of it on each way.
type gatedBench struct {
	t              *testing.T
	s              *Stream
	act            device.Activation
	x, w           device.Tensor
	m, gu          device.Tensor // of the kernel
	other, otherGU device.Tensor // of MatMul and GLU
}

func openHopper(t *testing.T) *Device {
	t.Helper()
	d, err := Open(Options{TuningDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if d.target() != manifest.Hopper {
		t.Fatalf("%s is not of compute capability 9.0", d.desc.Name)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// newGatedBench makes operands whose rows are gap elements apart, a multiple of 8 as are h and f.
func newGatedBench(t *testing.T, d *Device, n, h, f, gap int) *gatedBench {
	t.Helper()
	b := &gatedBench{t: t, s: d.NewStream().(*Stream)}
	temp := func(rows, cols int) device.Tensor {
		return b.s.Temp("gated", device.Activations, tensor.BF16, rows, cols+gap).ColRange(0, cols)
	}
	b.x, b.w = temp(n, h), temp(2*f, h)
	b.m, b.gu, b.other, b.otherGU = temp(n, f), temp(n, 2*f), temp(n, f), temp(n, 2*f)
	b.fill(b.x, 1, 1)
	b.fill(b.w, 1/math.Sqrt(float64(h)), 2)
	if d.gemm != nil {
		shape := blas.Shape{
			Op: blas.NT, M: n, N: 2 * f, K: h, LDA: b.x.Stride, LDB: b.w.Stride, LDC: b.otherGU.Stride, In: tensor.BF16, Out: tensor.BF16, Aligned: true,
		}
		if err := d.prewarm(nil, []blas.Shape{shape}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *gatedBench) release() { b.s.Release(b.x, b.w, b.m, b.gu, b.other, b.otherGU) }

// fill uploads sums of four uniform numbers of about that standard deviation.
func (b *gatedBench) fill(to device.Tensor, scale float64, seed uint64) {
	state := seed * 0x9e3779b97f4a7c15
	for lo := 0; lo < to.Rows; lo += 1024 {
		rows := to.RowRange(lo, min(lo+1024, to.Rows))
		v := make([]float32, rows.Rows*rows.Cols)
		for i := range v {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			sum := int(state&0xffff) + int(state>>16&0xffff) + int(state>>32&0xffff) + int(state>>48) - 2*0xffff
			v[i] = float32(scale * float64(sum) * math.Sqrt(3) / 0xffff)
		}
		b.s.Upload(rows, v)
	}
}

func (b *gatedBench) get(t device.Tensor) []float32 {
	b.t.Helper()
	v := make([]float32, t.Rows*t.Cols)
	if err := b.s.Download(v, t); err != nil {
		b.t.Fatal(err)
	}
	return v
}

// fused runs the kernel, with its constants or with another group and lead.
func (b *gatedBench) fused(keep bool, constants ...int32) {
	o := b.s.begin("MatMulGLU", b.m, b.gu, b.x, b.w)
	if o == nil {
		return
	}
	kernel.GemmGLU(o, mat(b.m), mat(b.gu), mat(b.x), mat(b.w), b.act, keep)
	copy((*[165]int32)(o.steps[0].launch.Args)[163:], constants)
	o.end()
}

func (b *gatedBench) product() {
	b.s.MatMul(b.otherGU, b.x, &weight{t: b.w}, device.Tensor{}, false)
}

// check compares gu with float64 at some places, all of m with the other way, and the bits of m with GLU of gu.
func (b *gatedBench) check(name string) {
	b.t.Helper()
	b.s.Upload(b.gu.RowRange(0, 1), slices.Repeat([]float32{float32(math.NaN())}, b.gu.Cols))
	b.fused(true)
	b.samples(name)
	b.product()
	b.s.GLU(b.other, b.otherGU, b.act)
	near := func(x, y float32) bool { return math.Abs(float64(x-y)) <= 0.03*(math.Abs(float64(y))+0.05) }
	b.each(name+": m is not near that of MatMul and GLU", near)
	b.s.GLU(b.other, b.gu, b.act)
	equal := func(x, y float32) bool { return x == y }
	b.each(name+": m is not GLU of gu", equal)
	for keep, most := range map[bool]int32{false: 4, true: 3} {
		if b.m.Rows*b.m.Cols > 1<<23 {
			most = 0
		}
		for lead := range most + 1 {
			b.s.Zero(b.m)
			b.fused(keep, 16, lead)
			b.each(fmt.Sprintf("%s: keep %v, lead %d", name, keep, lead), equal)
		}
	}
}

// each compares all elements of m and other.
func (b *gatedBench) each(what string, same func(x, y float32) bool) {
	b.t.Helper()
	for lo := 0; lo < b.m.Rows; lo += 512 {
		hi := min(lo+512, b.m.Rows)
		x, y := b.get(b.m.RowRange(lo, hi)), b.get(b.other.RowRange(lo, hi))
		for i := range x {
			if !same(x[i], y[i]) {
				b.t.Errorf("%s: (%d,%d) is %g, not %g", what, lo+i/b.m.Cols, i%b.m.Cols, x[i], y[i])
				return
			}
		}
	}
}

// samples compares elements of gu, among them its corners, with float64.
func (b *gatedBench) samples(name string) {
	b.t.Helper()
	some := func(n int) (at []int) {
		for i := range 24 {
			at = append(at, i*(n-1)/23)
		}
		return at
	}
	worst, rows := 0.0, some(b.x.Rows)
	for _, j := range some(b.w.Rows) {
		w := b.get(b.w.RowRange(j, j+1))
		for _, i := range rows {
			x, want := b.get(b.x.RowRange(i, i+1)), 0.0
			for k := range x {
				want += float64(x[k]) * float64(w[k])
			}
			got := float64(b.get(b.gu.RowRange(i, i+1).ColRange(j, j+1))[0])
			diff := math.Abs(got-want) / (math.Abs(want) + 1e-3)
			worst = max(worst, diff)
			if !(diff <= 0x1p-8) {
				b.t.Errorf("%s: gu(%d,%d) = %g, want %g", name, i, j, got, want)
				return
			}
		}
	}
	b.t.Logf("%s: largest relative error of gu %.2g", name, worst)
}

// took returns the time of one run on the device.
func (b *gatedBench) took(runs int, run func()) float64 {
	b.t.Helper()
	b.s.SetScalars(device.Scalars{})
	b.s.Phase(device.PhaseTeacher)
	for range runs {
		run()
	}
	sc, err := b.s.Wait(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return sc.Phases[device.PhaseTeacher].Seconds() * 1e3 / float64(runs)
}

// TestGatedKernel: the numbers of the kernel at awkward sizes, and at those of a model of 7B.
func TestGatedKernel(t *testing.T) {
	d := openHopper(t)
	for _, c := range [][3]int{
		{1, 8, 8}, {256, 64, 128}, {128, 512, 128}, {300, 136, 200}, {1000, 896, 1064}, {257, 3584, 136}, {4096, 896, 4864}, {8192, 3584, 18944},
	} {
		b := newGatedBench(t, d, c[0], c[1], c[2], 8)
		for _, b.act = range []device.Activation{device.SiLU, device.GELUTanh} {
			b.check(fmt.Sprintf("%v, %d×%d×%d", b.act, c[0], 2*c[2], c[1]))
		}
		b.release()
	}
}

// TestTensorMapCost prints what a tensor map costs the host.
func TestTensorMapCost(t *testing.T) {
	d := openHopper(t)
	b := newGatedBench(t, d, 256, 64, 128, 8)
	defer b.release()
	at, out := mat(b.x).Ptr, new(driver.TensorMap)
	if err := d.ctx.Do(func(th *driver.Thread) error {
		const n = 10000
		start := time.Now()
		for range n {
			if err := th.EncodeTensorMap(out, driver.Matrix{Ptr: at, Rows: 256, Cols: 64, Stride: 144, BoxRows: 128}); err != nil {
				return err
			}
		}
		t.Logf("%v a tensor map", time.Since(start)/n)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := unsafe.Sizeof(*out); n != 128 {
		t.Errorf("a tensor map has %d bytes", n)
	}
}

// TestGatedRates prints the time of the product with its activation on each way, five times each, in turn.
func TestGatedRates(t *testing.T) {
	d := openHopper(t)
	for _, c := range []struct {
		name    string
		n, h, f int
		runs    int
		act     device.Activation
	}{
		{"7B, a row", 1, 3584, 18944, 100, device.SiLU}, {"7B, 32 rows", 32, 3584, 18944, 100, device.SiLU}, {"7B, 64 rows", 64, 3584, 18944, 100, device.SiLU},
		{"7B, 128 rows", 128, 3584, 18944, 100, device.SiLU}, {"7B, 512 rows", 512, 3584, 18944, 100, device.SiLU}, {"7B", 8192, 3584, 18944, 40, device.SiLU},
		{"0.5B, 4096 rows", 4096, 896, 4864, 400, device.SiLU}, {"0.5B", 8192, 896, 4864, 200, device.SiLU},
		{"Gemma 3 12B", 8192, 3840, 15360, 40, device.GELUTanh},
	} {
		b := newGatedBench(t, d, c.n, c.h, c.f, 0)
		b.act = c.act
		b.rates(c.name, c.runs)
		b.release()
	}
}

func (b *gatedBench) rates(name string, runs int) {
	type way struct {
		name string
		run  func()
	}
	ways := []way{
		{"MatMul alone", b.product},
		{"MatMul, then GLU", func() { b.product(); b.s.GLU(b.other, b.otherGU, b.act) }},
	}
	for _, keep := range []bool{false, true} {
		for lead := range int32(4) {
			ways = append(ways, way{fmt.Sprintf("one kernel, keep %v, lead %d", keep, lead), func() { b.fused(keep, 8, lead) }})
		}
		ways = append(ways, way{fmt.Sprintf("one kernel, keep %v, lead 1, group 16", keep), func() { b.fused(keep, 16, 1) }})
	}
	times := make([][]float64, len(ways))
	for start := time.Now(); time.Since(start) < time.Second; {
		b.took(runs, ways[1].run)
	}
	for range 5 {
		for i, w := range ways {
			b.took(runs/8+1, w.run)
			times[i] = append(times[i], b.took(runs, w.run))
		}
	}
	for i, w := range ways {
		slices.Sort(times[i])
		flop := 2 * float64(b.x.Rows) * float64(b.w.Rows) * float64(b.x.Cols)
		b.t.Logf("%-16s %-42s median %.4f ms of %.4f, %4.0f TFLOP/s", name, w.name, times[i][2], times[i], flop/times[i][2]/1e9)
	}
}
