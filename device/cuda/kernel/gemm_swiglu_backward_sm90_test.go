package kernel

import (
	"slices"
	"testing"
	"unsafe"

	"apr/tensor"
)

// TestGemmSwiGLUBackwardLaunch: what is asked of the tensor memory unit and of the grid. The numbers are tested where
// there is a device that can run the kernel.
func TestGemmSwiGLUBackwardLaunch(t *testing.T) {
	const ptr = 1 << 20
	mat := func(at uint64, rows, cols, stride int) Mat { return Mat{at * ptr, rows, cols, stride, tensor.BF16} }
	dgu, dy, gu, w := mat(1, 300, 400, 408), mat(2, 300, 136, 144), mat(3, 300, 400, 400), mat(4, 136, 200, 208)
	var r recorder
	GemmSwiGLUBackward(&r, dgu, dy, gu, w)
	if len(r.launches) != 1 {
		t.Fatalf("%d launches", len(r.launches))
	}
	l := r.launches[0]
	if l.Cluster != 2 || l.Grid != [3]int{4, 1, 1} || !slices.Equal(l.Maps, []TensorMap{{dy, 128}, {w, 64}}) {
		t.Errorf("%+v", l)
	}
	got := *(*gemmSwiGLUBackwardArgs)(l.Args)
	want := gemmSwiGLUBackwardArgs{
		gu: 3 * ptr, dgu: ptr, guStride: 400, dguStride: 408, rows: 300, f: 200, k: 136,
		group: gemmSwiGLUBackwardGroup, help: gemmSwiGLUBackwardHelp,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	checkLaunches(t, "GemmSwiGLUBackward", func(q Queue) { GemmSwiGLUBackward(q, gu, dy, gu, w) })
	r = recorder{}
	if GemmSwiGLUBackward(&r, dgu.rows(0, 0), dy.rows(0, 0), gu.rows(0, 0), w); len(r.launches) != 0 {
		t.Errorf("%d launches for no rows", len(r.launches))
	}
	if n := unsafe.Sizeof(gemmSwiGLUBackwardArgs{}); n != 320 {
		t.Errorf("%d bytes of arguments, the kernel has 320", n)
	}
}

func TestGemmSwiGLUBackwardServes(t *testing.T) {
	good := func() [4]Mat {
		return [4]Mat{
			{16, 9, 48, 48, tensor.BF16}, {32, 9, 5, 8, tensor.BF16}, {48, 9, 48, 56, tensor.BF16}, {64, 5, 24, 24, tensor.BF16},
		}
	}
	if a := good(); !GemmSwiGLUBackwardServes(a[0], a[1], a[2], a[3]) {
		t.Error("declined")
	}
	for i, name := range []string{"dgu", "dy", "gu", "w"} {
		for what, change := range map[string]func(*Mat){
			"pointer": func(m *Mat) { m.Ptr += 8 }, "stride": func(m *Mat) { m.Stride += 4 }, "type": func(m *Mat) { m.Type = tensor.F32 },
		} {
			a := good()
			change(&a[i])
			if GemmSwiGLUBackwardServes(a[0], a[1], a[2], a[3]) {
				t.Errorf("%s of %s is not seen", what, name)
			}
		}
	}
	a := good()
	a[0].Cols, a[2].Cols, a[3].Cols = 40, 40, 20 // u would begin between two units
	if GemmSwiGLUBackwardServes(a[0], a[1], a[2], a[3]) {
		t.Error("20 columns are not seen")
	}
}
