package kernel

import (
	"unsafe"

	"apr/tensor"
)

// gemmSwiGLUE4M3Args is struct GemmSwigluE4M3Args of gemm_swiglu_fp8_sm90.cu.
type gemmSwiGLUE4M3Args struct {
	maps             [3][128]byte // Launch.Maps
	xScale, wScale   uint64
	xStride, wStride int64 // from one scale to the next
	rows, f, k       int32
	group, lead      int32
	_                [12]byte // a multiple of 64 bytes
}

// GemmSwiGLUE4M3Serves reports whether GemmSwiGLUE4M3 serves these operands, on a device of compute capability 9.0.
func GemmSwiGLUE4M3Serves(m Mat, x Bytes, xScale Mat, w Bytes, wScale Mat) bool {
	for _, b := range []Bytes{x, w} {
		if b.Ptr%16 != 0 || b.Stride%16 != 0 {
			return false
		}
	}
	return m.Type == tensor.BF16 && rowsAt(m, 16) && xScale.Type == tensor.F32 && wScale.Type == tensor.F32 && x.Cols > 0
}

// GemmSwiGLUE4M3 computes m = silu(g)·u on compute capability 9.0, with [g|u] rounded to bfloat16 of
//
//	[g|u][i,j] = xScale[i]·wScale[j]·Σ_k x[i,k]·w[j,k]
//
// x e4m3 [n,k] and w e4m3 [2f,k] with the rows of g before those of u, scales float32 [n,1] and [2f,1], m bfloat16 [n,f].
// Rows of x, w and m begin at multiples of 16 bytes: see GemmSwiGLUE4M3Serves.
//
// Sums are those of the tensor cores, 32 products at a time in order of the inner dimension, of which about 14 bits are kept;
// they are multiplied first by the scale of x, then by that of w. m is in the bits that SwiGLU gives of g and u; they do
// not depend on the number of multiprocessors.
//
// Bytes moved per element of m: 2, and x and w.
func GemmSwiGLUE4M3(q Queue, m Mat, x Bytes, xScale Mat, w Bytes, wScale Mat) {
	f := m.Cols
	need(GemmSwiGLUE4M3Serves(m, x, xScale, w, wScale), "GemmSwiGLUE4M3", "operands it does not serve")
	need(m.Rows == x.Rows && w.Rows == 2*f && w.Cols == x.Cols, "GemmSwiGLUE4M3", "shapes differ")
	need(xScale.Rows == x.Rows && xScale.Cols == 1 && wScale.Rows == w.Rows && wScale.Cols == 1, "GemmSwiGLUE4M3", "scales")
	pairs := ceil(m.Rows, 256) * ceil(f, 128) // of blocks
	if pairs == 0 {
		return
	}
	q.Launch(Launch{
		Module: "gemm_swiglu_fp8_sm90", Kernel: "gemm_swiglu_e4m3", Grid: [3]int{2 * min(pairs, max(1, q.Multiprocessors()/2)), 1, 1},
		Block: 384, Cluster: 2, Shared: gemmSwiGLUShared, Maps: []TensorMap{{x.mat(), 128}, {w.mat(), 128}, {m, 64}},
		Args: unsafe.Pointer(&gemmSwiGLUE4M3Args{
			xScale: xScale.Ptr, wScale: wScale.Ptr, xStride: int64(xScale.Stride), wStride: int64(wScale.Stride),
			rows: int32(m.Rows), f: int32(f), k: int32(x.Cols), group: gemmSwiGLUGroup, lead: gemmSwiGLULead,
		}),
	})
}

// mat returns b as a matrix of type U8.
func (b Bytes) mat() Mat { return Mat{b.Ptr, b.Rows, b.Cols, b.Stride, tensor.U8} }
