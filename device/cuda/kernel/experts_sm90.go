package kernel

import (
	"unsafe"

	"apr/tensor"
)

// ExpertsSM90Module has the products of experts for compute capability 9.0.
const ExpertsSM90Module = "experts_sm90"

const (
	expertsSM90High, expertsSM90Wide = 128, 256 // a tile of c
	expertsSM90Threads               = 384
	// expertsSM90Shared is what stages, their alignment, barriers and scales of columns take: 4 stages of 48 KiB.
	expertsSM90Shared = 4*48<<10 + 1<<10 + 64 + 2*4*expertsSM90Wide
)

// ExpertsSM90Slots returns from how many slots of all experts on the products of compute capability 9.0 are the faster
// ones: a tile of 128 rows that has fewer than 64 is half empty. From there on they are faster, too, where blocks
// are expanded to bfloat16 first, as measured at the shapes of Qwen3-30B-A3B and gpt-oss 20b.
func ExpertsSM90Slots(experts int) int { return 64 * experts }

// ExpertsSM90Serves reports whether ExpertsSM90 serves these operands, or with c of float32 ExpertsWeightGradSM90 of a and b, on a device of
// compute capability 9.0. Of the matrices of a stack only rows and columns of one need be known.
func ExpertsSM90Serves(c, a, b Mat, experts int) bool {
	for _, m := range []Mat{c, a, b} {
		if !rowsAt(m, 16) || m.Cols == 0 || m.Cols%8 != 0 {
			return false
		}
	}
	return a.Type == tensor.BF16 && b.Type == tensor.BF16 && experts > 0
}

// ExpertsSM90 computes c[j] = W_e·a[j] (+ bias[e]) (GemmNT) or c[j] (+)= W_eᵀ·a[j] (GemmNN) for the slots j of
// each expert e on compute capability 9.0: as ExpertsNT and ExpertsNN, of bfloat16 alone, with the matrices w
// [Experts·out, in] one below the other. With rows (GemmNT only) a has rows of tokens, and slot j takes a[rows[j]].
// See ExpertsSM90Serves.
//
// Every element is the sum in float32 of its products in order of the inner dimension, 16 at a time: the same on any number of
// multiprocessors, whatever other slots there are.
//
// Bytes moved per element of c: 2, with add 4; a, and the matrices of experts that have slots. From the second cache to shared memory go,
// for each 128 slots of an expert and 256 columns of c, all columns of both operands.
func ExpertsSM90(q Queue, form GemmForm, c, a, rows, w, bias Mat, add bool, r Routing, first int) {
	out, in := w.Rows/max(1, r.Experts), w.Cols
	n, k, name := out, in, "experts_sm90_nt"
	if form == GemmNN {
		n, k, name = in, out, "experts_sm90_nn"
	}
	need(ExpertsSM90Serves(c, a, w, r.Experts) && c.Type == tensor.BF16, "ExpertsSM90", "operands it does not serve")
	need(a.Cols == k && c.Cols == n && takes(c, a.Rows, rows), "ExpertsSM90", "shapes differ")
	need(form == GemmNT && !add || form == GemmNN && bias.IsZero() && rows.IsZero(), "ExpertsSM90", "no such form")
	if c.Rows == 0 {
		return
	}
	x := &expertsSM90Args{rows: rows.Ptr, experts: expertArgs{
		gemm: gemmArgs{
			a: a.Ptr, b: w.Ptr, c: c.Ptr, bias: bias.Ptr, lda: int64(a.Stride), ldb: int64(w.Stride), ldc: int64(c.Stride),
			m: int32(c.Rows), n: int32(n), k: int32(k), flags: gemmFlags(c, a, w, add),
		},
		starts: r.Starts.Ptr, step: 2 * int64(out) * int64(w.Stride), biasStride: int64(bias.Stride),
		experts: int32(r.Experts), first: int32(first), end: int32(first + c.Rows),
	}}
	x.launch(q, name, worstTiles(c.Rows, r.Experts, expertsSM90High)*ceil(n, expertsSM90Wide))
}

// ExpertsWeightGradSM90 is ExpertsWeightGrad on compute capability 9.0, of bfloat16 alone. Sums are in the order of slots, 16 at a time from the
// expert's first in the window on.
//
// Bytes moved per element of dw: 4, with add 8.
func ExpertsWeightGradSM90(q Queue, dw, a, b Mat, add bool, r Routing, first int) {
	out, in := a.Cols, b.Cols
	need(ExpertsSM90Serves(dw, a, b, r.Experts) && dw.Type == tensor.F32, "ExpertsWeightGradSM90", "operands it does not serve")
	need(dw.Rows == r.Experts*out && dw.Cols == in && a.Rows == b.Rows, "ExpertsWeightGradSM90", "shapes differ")
	if add && a.Rows == 0 {
		return
	}
	x := &expertsSM90Args{experts: expertArgs{
		gemm: gemmArgs{
			a: a.Ptr, b: b.Ptr, c: dw.Ptr, lda: int64(a.Stride), ldb: int64(b.Stride), ldc: int64(dw.Stride), m: int32(out), n: int32(in),
			flags: gemmFlags(dw, a, b, add),
		},
		starts: r.Starts.Ptr, step: 4 * int64(out) * int64(dw.Stride), experts: int32(r.Experts), first: int32(first), end: int32(first + a.Rows),
	}}
	x.launch(q, "experts_sm90_tn", r.Experts*ceil(out, expertsSM90High)*ceil(in, expertsSM90Wide))
}

// takes reports whether the slots of c take a row each of so many, by rows or in order.
func takes(c Mat, have int, rows Mat) bool {
	if rows.IsZero() {
		return have == c.Rows
	}
	return rows.Type == tensor.I32 && rows.Rows*rows.Cols == c.Rows && rows.Stride == rows.Cols
}

// expertsSM90Args is struct ExpertsSm90Args of experts_sm90.cu.
type expertsSM90Args struct {
	experts              expertArgs
	rows, aScale, bScale uint64
}

// launch launches as many blocks as run at once.
func (x *expertsSM90Args) launch(q Queue, kernel string, tiles int) {
	q.Launch(Launch{
		Module: ExpertsSM90Module, Kernel: kernel, Grid: [3]int{min(tiles, max(1, q.Multiprocessors())), 1, 1}, Block: expertsSM90Threads,
		Shared: expertsSM90Shared, Args: unsafe.Pointer(x),
	})
}

// Part is the routing to experts [lo,hi) alone.
func (r Routing) Part(lo, hi int) Routing {
	r.Starts.Ptr += uint64(4 * lo)
	r.Starts.Rows, r.Experts = hi-lo+1, hi-lo
	return r
}

// ExpertsE4M3Serves reports whether ExpertsE4M3 serves matrices [out, in].
func ExpertsE4M3Serves(out, in int) bool { return out > 0 && in > 0 && out%8 == 0 && in%16 == 0 }

// ExpertsE4M3 computes c[j] = aScale[j]·(W_e·a[j])∘wScale[e] (+ bias[e]) for the slots j of each expert e on
// compute capability 9.0, with a and w of e4m3 numbers, w [Experts·out, in] one below the other, scales of their rows
// [n,1] of float32, and c of bfloat16. For rows see ExpertsSM90.
//
// Every element is the sum of its products in order of the inner dimension, 32 at a time, as exact as tensor cores sum
// e4m3 numbers.
//
// Bytes moved per element of c: 2; a, and the matrices of experts that have slots, 1 an element.
func ExpertsE4M3(q Queue, c Mat, a Bytes, aScale, rows Mat, w Bytes, wScale, bias Mat, r Routing, first int) {
	out, in := w.Rows/max(1, r.Experts), w.Cols
	need(ExpertsE4M3Serves(out, in) && c.Type == tensor.BF16 && rowsAt(c, 16), "ExpertsE4M3", "operands it does not serve")
	shapes := a.Cols == in && c.Cols == out && takes(c, a.Rows, rows) && w.Rows == r.Experts*out
	need(shapes, "ExpertsE4M3", "shapes differ")
	for _, b := range []Bytes{a, w} {
		need(b.Ptr%16 == 0 && b.Stride%16 == 0, "ExpertsE4M3", "alignment")
	}
	for _, s := range []struct {
		m    Mat
		rows int
	}{{aScale, a.Rows}, {wScale, w.Rows}} {
		need(s.m.Type == tensor.F32 && s.m.Rows == s.rows && s.m.Cols == 1 && s.m.Stride == 1, "ExpertsE4M3", "scales")
	}
	if c.Rows == 0 {
		return
	}
	x := &expertsSM90Args{
		experts: expertArgs{
			gemm: gemmArgs{
				a: a.Ptr, b: w.Ptr, c: c.Ptr, bias: bias.Ptr, lda: int64(a.Stride), ldb: int64(w.Stride), ldc: int64(c.Stride),
				m: int32(c.Rows), n: int32(out), k: int32(in),
			},
			starts: r.Starts.Ptr, step: int64(out) * int64(w.Stride), biasStride: int64(bias.Stride),
			experts: int32(r.Experts), first: int32(first), end: int32(first + c.Rows),
		},
		rows: rows.Ptr, aScale: aScale.Ptr, bScale: wScale.Ptr,
	}
	x.launch(q, "experts_sm90_e4m3", worstTiles(c.Rows, r.Experts, expertsSM90High)*ceil(out, expertsSM90Wide))
}
