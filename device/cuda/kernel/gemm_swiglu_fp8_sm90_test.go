package kernel

import (
	"slices"
	"testing"
	"unsafe"

	"apr/tensor"
)

// gatedE4M3 are operands that GemmSwiGLUE4M3 serves.
type gatedE4M3 struct {
	m      Mat
	x      Bytes
	xScale Mat
	w      Bytes
	wScale Mat
}

func newGatedE4M3() gatedE4M3 {
	const ptr = 1 << 20
	scale := func(at uint64, rows, stride int) Mat { return Mat{at * ptr, rows, 1, stride, tensor.F32} }
	return gatedE4M3{
		Mat{ptr, 300, 200, 208, tensor.BF16}, Bytes{2 * ptr, 300, 144, 160}, scale(3, 300, 2), Bytes{4 * ptr, 400, 144, 144}, scale(5, 400, 1),
	}
}

// TestGemmSwiGLUE4M3Launch: as TestGemmSwiGLULaunch.
func TestGemmSwiGLUE4M3Launch(t *testing.T) {
	o := newGatedE4M3()
	var r recorder
	GemmSwiGLUE4M3(&r, o.m, o.x, o.xScale, o.w, o.wScale)
	if len(r.launches) != 1 {
		t.Fatalf("%d launches", len(r.launches))
	}
	l := r.launches[0]
	maps := []TensorMap{
		{Mat{o.x.Ptr, 300, 144, 160, tensor.U8}, 128}, {Mat{o.w.Ptr, 400, 144, 144, tensor.U8}, 128}, {o.m, 64},
	}
	if l.Kernel != "gemm_swiglu_e4m3" || l.Cluster != 2 || l.Grid[0]%2 != 0 || l.Grid[0] > 8 || !slices.Equal(l.Maps, maps) {
		t.Errorf("%+v", l)
	}
	a := (*gemmSwiGLUE4M3Args)(l.Args)
	if a.rows != 300 || a.f != 200 || a.k != 144 || a.lead > 3 || a.xStride != 2 || a.wStride != 1 || a.xScale != o.xScale.Ptr || a.wScale != o.wScale.Ptr {
		t.Errorf("%+v", a)
	}
	checkLaunches(t, "GemmSwiGLUE4M3", func(q Queue) { GemmSwiGLUE4M3(q, o.m, o.x, o.xScale, o.w, o.wScale) })
	r = recorder{}
	if GemmSwiGLUE4M3(&r, o.m.rows(0, 0), Bytes{o.x.Ptr, 0, 144, 160}, o.xScale.rows(0, 0), o.w, o.wScale); len(r.launches) != 0 {
		t.Errorf("%d launches for no rows", len(r.launches))
	}
	if n := unsafe.Sizeof(gemmSwiGLUE4M3Args{}); n != 448 {
		t.Errorf("%d bytes of arguments, the kernel has 448", n)
	}
}

func TestGemmSwiGLUE4M3Serves(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(o *gatedE4M3)
		want   bool
	}{
		{"as they are", func(*gatedE4M3) {}, true},
		{"pointer of m", func(o *gatedE4M3) { o.m.Ptr += 8 }, false},
		{"stride of m", func(o *gatedE4M3) { o.m.Stride += 4 }, false},
		{"type of m", func(o *gatedE4M3) { o.m.Type = tensor.F32 }, false},
		{"pointer of x", func(o *gatedE4M3) { o.x.Ptr += 8 }, false},
		{"stride of x", func(o *gatedE4M3) { o.x.Stride += 8 }, false},
		{"pointer of w", func(o *gatedE4M3) { o.w.Ptr += 8 }, false},
		{"stride of w", func(o *gatedE4M3) { o.w.Stride += 8 }, false},
		{"scales of x", func(o *gatedE4M3) { o.xScale.Type = tensor.BF16 }, false},
		{"scales of w", func(o *gatedE4M3) { o.wScale.Type = tensor.BF16 }, false},
		{"nothing to add", func(o *gatedE4M3) { o.x.Cols, o.w.Cols = 0, 0 }, false},
	} {
		o := newGatedE4M3()
		c.change(&o)
		if got := GemmSwiGLUE4M3Serves(o.m, o.x, o.xScale, o.w, o.wScale); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
