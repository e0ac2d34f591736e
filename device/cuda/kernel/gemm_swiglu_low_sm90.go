package kernel

import (
	"unsafe"

	"apr/device"
)

// SwiGLULowModule has the product of a gated layer with what adapters add to it.
const SwiGLULowModule = "gemm_swiglu_low_sm90"

// gemmSwiGLULowArgs is struct GemmSwigluLowArgs of gemm_swiglu_low_sm90.cu.
type gemmSwiGLULowArgs struct {
	maps        [7][128]byte // Launch.Maps
	rows, f, k  int32
	group, lead int32
	low         int32
	_           [40]byte // a multiple of 64 bytes
}

// GemmSwiGLULowServes reports whether GemmSwiGLULow serves these, on a device of compute capability 9.0.
func GemmSwiGLULowServes(m, gu, x, w, u Mat, parts []ThinPart) bool {
	return GemmGLUServes(m, gu, x, w, device.SiLU) && ThinGLUServes(m, gu, u, parts, device.SiLU) &&
		2*m.Cols*thinColumns(u) <= MaxScratch/4
}

// thinColumns are the columns of the factor's rows in scratch: they begin at multiples of 128 bytes.
func thinColumns(u Mat) int { return ceil(u.Cols, 64) * 64 }

// GemmSwiGLULow computes gu = x·wᵀ + Σ Scale·u[:, From:To]·Bᵀ of parts, each in its columns [Lo,Hi), rounded to
// bfloat16 once, and m = silu(g)·u' of gu = [g|u'] as stored, on compute capability 9.0. Shapes are those of GemmGLU
// and ThinGLU.
//
// One factor F [2f, R] in scratch has Scale·B where a part is, rounded to bfloat16, else zeros: x·wᵀ + u·Fᵀ
// is one product whose inner dimension goes on in other matrices. Where all B are zero the bits are those of GemmGLU.
//
// Bytes moved per element of m: 6, and x, w, u and F.
func GemmSwiGLULow(q Queue, m, gu, x, w, u Mat, parts []ThinPart) {
	f := m.Cols
	need(GemmSwiGLULowServes(m, gu, x, w, u, parts), "GemmSwiGLULow", "operands it does not serve")
	need(m.Rows == x.Rows && gu.Rows == x.Rows && u.Rows == x.Rows && gu.Cols == 2*f && w.Rows == 2*f && w.Cols == x.Cols,
		"GemmSwiGLULow", "shapes differ")
	pairs := ceil(m.Rows, 256) * ceil(f, 128) // of blocks
	if pairs == 0 {
		return
	}
	factor := Mat{Rows: 2 * f, Cols: u.Cols, Stride: thinColumns(u), Type: u.Type}
	factor.Ptr = q.Scratch(factor.Rows * factor.Stride * u.Type.BlockBytes())
	whole := factor
	whole.Cols = factor.Stride
	Zero(q, whole)
	for _, p := range parts {
		Scale(q, factor.rows(p.Lo, p.Hi).cols(p.From, p.To), p.W.rows(0, p.Hi-p.Lo), p.Scale)
	}
	q.Launch(Launch{
		Module: SwiGLULowModule, Kernel: "gemm_swiglu_low", Grid: [3]int{2 * min(pairs, max(1, q.Multiprocessors()/2)), 1, 1},
		Block: 384, Cluster: 2, Shared: gemmSwiGLUShared,
		Maps: []TensorMap{{x, 128}, {w, 128}, {m, 64}, {gu.cols(0, f), 64}, {gu.cols(f, 2*f), 64}, {u, 128}, {factor, 128}},
		Args: unsafe.Pointer(&gemmSwiGLULowArgs{
			rows: int32(m.Rows), f: int32(f), k: int32(x.Cols), group: gemmSwiGLUGroup, low: int32(u.Cols),
		}),
	})
}
