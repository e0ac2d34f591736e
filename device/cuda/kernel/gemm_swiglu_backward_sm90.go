package kernel

import (
	"unsafe"

	"apr/tensor"
)

// gemmSwiGLUBackwardArgs is struct GemmSwigluBackwardArgs of gemm_swiglu_backward_sm90.cu.
type gemmSwiGLUBackwardArgs struct {
	maps                [2][128]byte // Launch.Maps
	gu, dgu             uint64
	guStride, dguStride int64
	rows, f, k          int32
	group, help         int32
	_                   [12]byte // a multiple of 64 bytes
}

const (
	// gemmSwiGLUBackwardGroup is how many tiles of 256 rows are walked column by column.
	gemmSwiGLUBackwardGroup = 8
	// gemmSwiGLUBackwardHelp is 1 if those who multiply take part in the gradients of a block's last tile.
	gemmSwiGLUBackwardHelp = 1
	// gemmSwiGLUBackwardShared is what 3 stages of 48 KiB, dprod, barriers and their alignment take.
	gemmSwiGLUBackwardShared = 208<<10 + 1<<10 + 128
)

// GemmSwiGLUBackwardServes reports whether GemmSwiGLUBackward serves these operands, on a device of compute capability
// 9.0.
func GemmSwiGLUBackwardServes(dgu, dy, gu, w Mat) bool {
	for _, a := range []Mat{dgu, dy, gu, w} {
		if a.Type != tensor.BF16 || !rowsAt(a, 16) {
			return false
		}
	}
	return w.Cols%8 == 0 && dy.Cols > 0
}

// GemmSwiGLUBackward writes dgu: dg = d·u·σ(g)(1+g(1−σ(g))), du = d·g·σ(g) with d = dy·w rounded to bfloat16 and
// [g|u] = gu, dy [n,k], w [k,f], gu and dgu [n,2f], on compute capability 9.0; dgu may be gu itself. All are bfloat16,
// their rows begin at multiples of 16 bytes, f is a multiple of 8: see GemmSwiGLUBackwardServes.
//
// Every element of d is the sum in float32 of its products in order of the inner dimension, 16 at a time; dgu is in the
// bits that SwiGLUBackward gives of d, on any number of multiprocessors.
//
// Bytes moved per element of d: 8, and dy and w.
func GemmSwiGLUBackward(q Queue, dgu, dy, gu, w Mat) {
	f := w.Cols
	need(GemmSwiGLUBackwardServes(dgu, dy, gu, w), "GemmSwiGLUBackward", "operands it does not serve")
	need(gu.Rows == dy.Rows && dgu.Rows == dy.Rows && gu.Cols == 2*f && dgu.Cols == 2*f && w.Rows == dy.Cols,
		"GemmSwiGLUBackward", "shapes differ")
	pairs := (dy.Rows + 255) / 256 * ((f + 255) / 256) // of blocks
	if pairs == 0 {
		return
	}
	q.Launch(Launch{
		Module: "gemm_swiglu_backward_sm90", Kernel: "gemm_swiglu_backward",
		Grid: [3]int{2 * min(pairs, max(1, q.Multiprocessors()/2)), 1, 1}, Block: 384, Cluster: 2,
		Shared: gemmSwiGLUBackwardShared, Maps: []TensorMap{{dy, 128}, {w, 64}},
		Args: unsafe.Pointer(&gemmSwiGLUBackwardArgs{
			gu: gu.Ptr, dgu: dgu.Ptr, guStride: int64(gu.Stride), dguStride: int64(dgu.Stride), rows: int32(dy.Rows),
			f: int32(f), k: int32(dy.Cols), group: gemmSwiGLUBackwardGroup, help: gemmSwiGLUBackwardHelp,
		}),
	})
}
