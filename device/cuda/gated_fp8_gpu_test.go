//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// fp8Bench is a gatedBench whose matrix is also there in 8-bit floats, and so are its activations.
type fp8Bench struct {
	*gatedBench
	matrix *weight
	x8     kernel.Bytes
	sx, sw device.Tensor // scales of x and of the matrix
	bytes  []device.Tensor
}

// newFP8Bench makes operands without gaps; h is a multiple of 16, f of 8.
func newFP8Bench(t *testing.T, d *Device, n, h, f int) *fp8Bench {
	t.Helper()
	s := d.NewStream().(*Stream)
	temp := func(d tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("gated", device.Activations, d, rows, cols)
	}
	b := &fp8Bench{gatedBench: &gatedBench{
		t: t, s: s, x: temp(tensor.BF16, n, h), w: temp(tensor.BF16, 2*f, h), m: temp(tensor.BF16, n, f), gu: temp(tensor.BF16, n, 2*f),
		other: temp(tensor.BF16, n, f), otherGU: temp(tensor.BF16, n, 2*f),
	}}
	b.sx, b.sw = temp(tensor.F32, n, 1), temp(tensor.F32, 2*f, 1)
	b.bytes = []device.Tensor{temp(tensor.U8, n, h), temp(tensor.U8, 2*f, h)}
	if err := d.growExpansion(fp8Rows); err != nil {
		t.Fatal(err)
	}
	as := func(t device.Tensor) kernel.Bytes {
		return kernel.Bytes{Ptr: mat(t).Ptr, Rows: t.Rows, Cols: h, Stride: h}
	}
	b.x8 = as(b.bytes[0])
	b.matrix = &weight{t: b.w, fp8: &fp8Matrix{bytes: as(b.bytes[1]), scale: mat(b.sw)}}
	return b
}

func (b *fp8Bench) release() {
	b.gatedBench.release()
	b.s.Release(append(b.bytes, b.sx, b.sw)...)
}

// round makes x and the matrix 8-bit floats.
func (b *fp8Bench) round() {
	if o := b.s.begin("round", b.x, b.w); o != nil {
		kernel.QuantizeRows(o, b.x8, mat(b.sx), mat(b.x))
		kernel.QuantizeRows(o, b.matrix.fp8.bytes, mat(b.sw), mat(b.w))
		o.end()
	}
}

// plan has the product of MatMul planned.
func (b *fp8Bench) plan(d *Device) {
	b.t.Helper()
	shape := fp8Shape(b.x.Rows, b.gu.Cols, b.x.Cols, b.gu.Stride, tensor.BF16, false, false)
	if err := d.prewarm(nil, []blas.Shape{shape}); err != nil {
		b.t.Fatal(err)
	}
}

// kernel runs the kernel alone, with its constants or with another group and lead.
func (b *fp8Bench) kernel(constants ...int32) {
	if o := b.s.begin("GemmSwiGLUE4M3", b.m); o != nil {
		kernel.GemmSwiGLUE4M3(o, mat(b.m), b.x8, mat(b.sx), b.matrix.fp8.bytes, mat(b.sw))
		copy((*[109]int32)(o.steps[0].launch.Args)[107:], constants)
		o.end()
	}
}

func (b *fp8Bench) product() { b.s.MatMul(b.otherGU, b.x, b.matrix, device.Tensor{}, false) }

// integers uploads numbers of {−1, 0, 1}, three of four 0, and a 7 in column `seven`, which makes the scale of each row a
// power of 2 that changes none of them.
func (b *fp8Bench) integers(to device.Tensor, seven int, r *rand.Rand) []float32 {
	v := make([]float32, to.Rows*to.Cols)
	for i := range v {
		switch r.IntN(8) {
		case 0:
			v[i] = 1
		case 1:
			v[i] = -1
		}
		if i%to.Cols == seven {
			v[i] = 7
		}
	}
	b.s.Upload(to, v)
	return v
}

// TestGatedFP8Exact: where every sum is exact, at sizes that fill no tile and no stage, every element has the bits
// that SwiGLU gives of the exact product with its scales.
func TestGatedFP8Exact(t *testing.T) {
	d := openHopper(t)
	for _, c := range [][3]int{{1, 16, 8}, {64, 128, 64}, {256, 256, 128}, {130, 400, 72}, {300, 144, 200}, {520, 912, 328}, {700, 1536, 264}} {
		n, h, f := c[0], c[1], c[2]
		b, r := newFP8Bench(t, d, n, h, f), rand.New(rand.NewPCG(1, uint64(n)))
		x, w := b.integers(b.x, 0, r), b.integers(b.w, 1, r)
		b.round()
		scales := func(to device.Tensor) []float32 {
			v := make([]float32, to.Rows)
			for i := range v {
				v[i] = (r.Float32() + 0.5) / 128 // of numbers that are 64 times what was rounded
			}
			b.s.Upload(to, v)
			return v
		}
		sx, sw, gu := scales(b.sx), scales(b.sw), make([]float32, n*2*f)
		for i := range n {
			for j := range 2 * f {
				sum := float32(0)
				for k, v := range x[i*h : i*h+h] {
					sum += v * w[j*h+k]
				}
				gu[i*2*f+j] = float32(4096*sum*sx[i]) * sw[j]
			}
		}
		b.s.Upload(b.gu, gu)
		b.s.GLU(b.other, b.gu, device.SiLU)
		name := fmt.Sprintf("%d×%d×%d", n, 2*f, h)
		for lead := range int32(4) {
			b.s.Upload(b.m, slices.Repeat([]float32{float32(math.NaN())}, n*f))
			b.kernel(1<<lead, lead)
			b.each(fmt.Sprintf("%s, lead %d", name, lead), func(x, y float32) bool { return x == y })
		}
		b.release()
	}
}

// TestGatedFP8: MatMulSwiGLU in 8-bit floats is near MatMul and SwiGLU of the same operands, and the same every time.
func TestGatedFP8(t *testing.T) {
	d := openHopper(t)
	for _, c := range [][3]int{{64, 896, 4864}, {1000, 896, 1064}, {257, 3584, 136}, {4096, 1536, 8960}, {8192, 3584, 18944}} {
		b := newFP8Bench(t, d, c[0], c[1], c[2])
		b.plan(d)
		name := fmt.Sprintf("%d×%d×%d", c[0], 2*c[2], c[1])
		b.fill(b.x, 1, 1)
		b.fill(b.w, 1/math.Sqrt(float64(c[1])), 2)
		b.round()
		if !d.fusesFP8(mat(b.m), b.x.Cols, false, d.expansion.Load().bytes) {
			t.Errorf("%s: not one kernel", name)
		}
		b.s.MatMulGLU(b.m, b.gu, b.x, b.matrix, device.SiLU, false)
		b.product()
		b.s.GLU(b.other, b.otherGU, device.SiLU)
		near := func(x, y float32) bool { return math.Abs(float64(x-y)) <= 0.03*(math.Abs(float64(y))+0.05) }
		b.each(name+": m is not near that of MatMul and SwiGLU", near)
		b.s.Zero(b.other)
		b.s.MatMulGLU(b.other, b.gu, b.x, b.matrix, device.SiLU, false)
		b.each(name+": again", func(x, y float32) bool { return x == y })
		b.s.MatMulGLU(b.other, b.gu, b.x, b.matrix, device.SiLU, true) // by MatMul and SwiGLU
		b.each(name+": kept", near)
		b.release()
	}
}

// TestGatedFP8Rates prints the time of MatMulSwiGLU in 8-bit floats on each way, five times each, in turn.
func TestGatedFP8Rates(t *testing.T) {
	d := openHopper(t)
	for _, c := range []struct {
		name    string
		n, h, f int
		runs    int
	}{{"7B", 8192, 3584, 18944, 40}, {"1.5B", 8192, 1536, 8960, 150}, {"7B, 512 rows", 512, 3584, 18944, 200}} {
		b := newFP8Bench(t, d, c.n, c.h, c.f)
		b.plan(d)
		b.fill(b.x, 1, 1)
		b.fill(b.w, 1/math.Sqrt(float64(c.h)), 2)
		b.round()
		b.rates(c.name, c.runs)
		b.release()
	}
}

func (b *fp8Bench) rates(name string, runs int) {
	type way struct {
		name string
		run  func()
	}
	ways := []way{
		{"rounding and MatMul", b.product},
		{"rounding, MatMul, SwiGLU", func() { b.product(); b.s.GLU(b.other, b.otherGU, device.SiLU) }},
		{"rounding and the one kernel", func() { b.s.MatMulGLU(b.m, b.gu, b.x, b.matrix, device.SiLU, false) }},
	}
	for _, group := range []int32{8, 16} {
		for lead := range int32(4) {
			ways = append(ways, way{fmt.Sprintf("one kernel, group %d, lead %d", group, lead), func() { b.kernel(group, lead) }})
		}
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
		b.t.Logf("%-12s %-30s median %.4f ms of %.4f, %4.0f TFLOP/s", name, w.name, times[i][2], times[i], flop/times[i][2]/1e9)
	}
}
