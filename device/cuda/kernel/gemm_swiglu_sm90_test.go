package kernel

import (
	"slices"
	"testing"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// TestGemmGLULaunch: what is asked of the tensor memory unit and of the grid. The numbers are tested where there is a
// device that can run the kernel.
func TestGemmGLULaunch(t *testing.T) {
	const ptr = 1 << 20
	mat := func(at uint64, rows, cols, stride int) Mat { return Mat{at * ptr, rows, cols, stride, tensor.BF16} }
	m, gu, x, w := mat(1, 300, 200, 208), mat(2, 300, 400, 400), mat(3, 300, 136, 136), mat(4, 400, 136, 136)
	gate, up := gu, gu
	gate.Cols, up.Cols, up.Ptr = 200, 200, gu.Ptr+400
	for _, c := range []struct {
		act    device.Activation
		keep   bool
		kernel string
		maps   []TensorMap
	}{
		{device.SiLU, false, "gemm_swiglu", []TensorMap{{x, 128}, {w, 128}, {m, 64}}},
		{device.SiLU, true, "gemm_swiglu_keep", []TensorMap{{x, 128}, {w, 128}, {m, 64}, {gate, 64}, {up, 64}}},
		{device.GELUTanh, false, "gemm_geglu", []TensorMap{{x, 128}, {w, 128}, {m, 64}}},
		{device.GELUTanh, true, "gemm_geglu_keep", []TensorMap{{x, 128}, {w, 128}, {m, 64}, {gate, 64}, {up, 64}}},
	} {
		var r recorder
		GemmGLU(&r, m, gu, x, w, c.act, c.keep)
		if len(r.launches) != 1 {
			t.Fatalf("%d launches", len(r.launches))
		}
		l := r.launches[0]
		if l.Kernel != c.kernel || l.Module != GemmGLUModule(c.act) || !hasKernel(t, l.Module, l.Kernel) || l.Cluster != 2 || l.Grid[0]%2 != 0 || l.Grid[0] > 8 || !slices.Equal(l.Maps, c.maps) {
			t.Errorf("keep %v: %+v", c.keep, l)
		}
		if a := (*gemmSwiGLUArgs)(l.Args); a.rows != 300 || a.f != 200 || a.k != 136 || a.lead > 3 {
			t.Errorf("keep %v: %d %d %d %d", c.keep, a.rows, a.f, a.k, a.lead)
		}
		checkLaunches(t, "GemmGLU", func(q Queue) { GemmGLU(q, m, gu, x, w, c.act, c.keep) })
	}
	var r recorder
	if GemmGLU(&r, m.rows(0, 0), gu.rows(0, 0), x.rows(0, 0), w, device.SiLU, true); len(r.launches) != 0 {
		t.Errorf("%d launches for no rows", len(r.launches))
	}
	if n := unsafe.Sizeof(gemmSwiGLUArgs{}); n != 704 {
		t.Errorf("%d bytes of arguments, the kernel has 704", n)
	}
}

func TestGemmGLUServes(t *testing.T) {
	good := func() [4]Mat {
		return [4]Mat{
			{16, 9, 24, 32, tensor.BF16}, {32, 9, 48, 48, tensor.BF16}, {48, 9, 5, 8, tensor.BF16}, {64, 48, 5, 8, tensor.BF16},
		}
	}
	for act, serves := range map[device.Activation]bool{device.SiLU: true, device.GELUTanh: true, device.Sigmoid: false, device.OSS: false} {
		if a := good(); GemmGLUServes(a[0], a[1], a[2], a[3], act) != serves {
			t.Errorf("%v: served %v", act, !serves)
		}
	}
	for i, name := range []string{"m", "gu", "x", "w"} {
		for what, change := range map[string]func(*Mat){
			"pointer": func(m *Mat) { m.Ptr += 8 }, "stride": func(m *Mat) { m.Stride += 4 }, "type": func(m *Mat) { m.Type = tensor.F32 },
		} {
			a := good()
			change(&a[i])
			if GemmGLUServes(a[0], a[1], a[2], a[3], device.SiLU) {
				t.Errorf("%s of %s is not seen", what, name)
			}
		}
	}
	a := good()
	a[0].Cols, a[1].Cols = 20, 40 // u would begin between two units
	if GemmGLUServes(a[0], a[1], a[2], a[3], device.SiLU) {
		t.Error("20 columns are not seen")
	}
}
