package vulkan

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"time"

	"apr/device"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
	"apr/tensor"
)

// probe lets the device compute what is known: nested loops, shared memory, barriers, bit operations, exponentials of
// numbers far below zero, and products. A device that errs is refused before a weight is loaded.
func (d *Device) probe() error {
	s := newStream(d)
	const groups, lanes = 3, 64
	x := make([]float32, groups*lanes)
	for i := range x {
		x[i] = float32(i*7%lanes + i/lanes)
	}
	in, out := s.Temp("probe", device.Scratch, tensor.F32, groups, lanes), s.Temp("probe", device.Scratch,
		tensor.F32, groups*lanes, 8)
	defer s.Release(in, out)
	s.Upload(in, x)
	s.Launch(kernel.Launch{Kernel: "probe", Bind: []kernel.Mat{mat(out), mat(in)}, Args: []uint32{lanes},
		Groups: groups})
	got := make([]float32, groups*lanes*8)
	if err := s.Download(got, out); err != nil {
		return err
	}
	names := [...]string{"nested loops", "shared memory", "a sum over lanes", "a maximum over lanes",
		"bit operations", "exponentials", "logarithms", "finiteness"}
	for i, want := range answers(x) {
		if g := float64(got[i]); !(math.Abs(g-want) <= 1e-5*math.Max(1, math.Abs(want))) {
			return d.refuse("the kernel of known answers", fmt.Sprintf("%s give %g instead of %g", names[i%8], g, want))
		}
	}
	return d.probeProducts(s)
}

// refuse is the fault of a device that computes wrongly.
func (d *Device) refuse(what, how string) error {
	return fault.New(fault.Unavailable, "%s errs in %s: %s", d.adapter.Name, what, how).WithID("E-VULKAN-009").
		WithHint("a newer driver may help (this is %s %s); --backend cpu works everywhere", d.adapter.Driver,
			d.adapter.DriverInfo)
}

// answers are what probe.wgsl writes of x, groups of 64.
func answers(x []float32) (want []float64) {
	for i, v := range x {
		group := x[i/64*64:][:64]
		sum, most := 0.0, 0.0
		for _, u := range group {
			sum, most = sum+float64(u), math.Max(most, float64(u))
		}
		word := uint32(int32(v)*257 - 5)
		known := float64(int32(word<<16)>>20) + float64(bits.OnesCount32(word&0xf0f0))
		u := float64(v)
		want = append(want, 10*u, float64(group[63-i%64]), sum, most, known, math.Exp(u*-0.125)+math.Exp(-u*1000-200),
			math.Log(u+1)+math.Tanh(u), 3)
	}
	return want
}

// probeProducts multiplies small integers, whose products are exact, by every way that float32 goes: tiles that are not
// full, of sums in parts, of both gradients, and one row. They are the kernels that the device takes: wide tiles on a
// card.
func (d *Device) probeProducts(s *Stream) error {
	const m, n, k = 70, 67, 516 // columns enough that 128 lanes of a card share one row
	temp := func(rows, cols int) device.Tensor { return s.Temp("probe", device.Scratch, tensor.F32, rows, cols) }
	x, w, y, dx, dw, row := temp(m, k), temp(n, k), temp(m, n), temp(m, k), temp(n, k), temp(1, n)
	defer s.Release(x, w, y, dx, dw, row)
	xs, ws, ys := make([]float32, m*k), make([]float32, n*k), make([]float32, m*n)
	for i := range xs {
		xs[i] = float32(i*5%11 - 5)
	}
	for i := range ws {
		ws[i] = float32(i*3%13 - 6)
	}
	s.Upload(x, xs)
	s.Upload(w, ws)
	s.MatMul(y, x, d.Frozen(w), device.Tensor{}, false)
	s.MatMulInputGrad(dx, y, d.Frozen(w), false)
	s.Zero(dw)
	s.MatMulWeightGrad(dw, device.Tensor{}, y, x)
	s.MatMul(row, x.RowRange(1, 2), d.Frozen(w), device.Tensor{}, false)

	for i := range ys {
		for c := range k {
			ys[i] += xs[i/n*k+c] * ws[i%n*k+c]
		}
	}
	dxs, dws := make([]float32, m*k), make([]float32, n*k)
	for i, v := range ys {
		for c := range k {
			dxs[i/n*k+c] += v * ws[i%n*k+c]
			dws[i%n*k+c] += v * xs[i/n*k+c]
		}
	}
	for _, p := range []struct {
		name string
		got  device.Tensor
		want []float32
	}{{"a product of tiles", y, ys}, {"the gradient of inputs", dx, dxs}, {"the gradient of weights", dw, dws},
		{"a product of one row", row, ys[n : 2*n]}} {
		got := make([]float32, len(p.want))
		if err := s.Download(got, p.got); err != nil {
			return err
		}
		for i, g := range got {
			if g != p.want[i] {
				return d.refuse(p.name, fmt.Sprintf("element (%d,%d) is %g instead of %g", i/p.got.Cols, i%p.got.Cols, g,
					p.want[i]))
			}
		}
	}
	return d.probeRate(s)
}

// probeRate measures products on hardware, and with them how much work is submitted at once. There are several, since
// the way to the device and back takes as long as one.
func (d *Device) probeRate(s *Stream) error {
	if d.adapter.ByName {
		return nil
	}
	const n, times = 512, 16
	x, y := s.Temp("probe", device.Scratch, tensor.F32, n, n), s.Temp("probe", device.Scratch, tensor.F32, n, n)
	defer s.Release(x, y)
	s.Zero(x)
	var took time.Duration
	for range 2 { // the first time is one of compiling too
		start := time.Now()
		for range times {
			s.MatMul(y, x, d.Frozen(x), device.Tensor{}, false)
		}
		if _, err := s.Wait(context.Background()); err != nil {
			return err
		}
		took = time.Since(start)
	}
	d.most = max(1, int64(times*n*n*n*submission.Seconds()/took.Seconds()))
	return nil
}
