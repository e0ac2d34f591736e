package kernel

import (
	"slices"
	"testing"
	"unsafe"

	"apr/tensor"
)

// TestGemmSwiGLULowLaunch: the factor is cleared, then filled where parts are, and read behind w. The numbers are
// tested where there is a device that can run the kernel.
func TestGemmSwiGLULowLaunch(t *testing.T) {
	const ptr = 1 << 20
	mat := func(at uint64, rows, cols int) Mat { return Mat{at * ptr, rows, cols, cols, tensor.BF16} }
	m, gu, x, w, u := mat(1, 300, 200), mat(2, 300, 400), mat(3, 300, 136), mat(4, 400, 136), mat(5, 300, 40)
	parts := []ThinPart{
		{W: mat(6, 200, 8), Lo: 0, Hi: 200, From: 0, To: 8, Scale: 2},
		{W: mat(7, 200, 32), Lo: 200, Hi: 400, From: 8, To: 40, Scale: 3},
	}
	var r recorder
	GemmSwiGLULow(&r, m, gu, x, w, u, parts)
	if len(r.launches) != 4 || r.scratch != 2*400*64 {
		t.Fatalf("%d launches, %d bytes of scratch", len(r.launches), r.scratch)
	}
	l := r.launches[3]
	factor := l.Maps[6].Mat
	g, up := gu.cols(0, 200), gu.cols(200, 400)
	want := []TensorMap{{x, 128}, {w, 128}, {m, 64}, {g, 64}, {up, 64}, {u, 128}, {factor, 128}}
	if !hasKernel(t, l.Module, "gemm_swiglu_low") || l.Cluster != 2 || !slices.Equal(l.Maps, want) {
		t.Errorf("%+v", l)
	}
	if factor.Rows != 400 || factor.Cols != 40 || factor.Stride != 64 {
		t.Errorf("factor %+v", factor)
	}
	if a := (*gemmSwiGLULowArgs)(l.Args); a.rows != 300 || a.f != 200 || a.k != 136 || a.low != 40 || a.lead != 0 {
		t.Errorf("%d %d %d %d %d", a.rows, a.f, a.k, a.low, a.lead)
	}
	if n := unsafe.Sizeof(gemmSwiGLULowArgs{}); n != 960 {
		t.Errorf("%d bytes of arguments, the kernel has 960", n)
	}
	checkLaunches(t, "GemmSwiGLULow", func(q Queue) { GemmSwiGLULow(q, m, gu, x, w, u, parts) })
	for what, change := range map[string]func(){
		"a rank of 72":     func() { parts[1].To = 80 },
		"columns of 196":   func() { m.Cols, parts[0].Hi = 196, 196 },
		"u in other types": func() { u.Type = tensor.F32 },
	} {
		kept, km, ku := slices.Clone(parts), m, u
		change()
		if GemmSwiGLULowServes(m, gu, x, w, u, parts) {
			t.Errorf("%s: served", what)
		}
		parts, m, u = kept, km, ku
	}
}
