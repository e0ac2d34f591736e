package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// TensorMap describes a matrix of bfloat16 or of bytes (type U8) to the tensor memory unit of compute capability 9.0, which
// moves boxes of BoxRows rows of 64 columns, of bytes 128, between it and shared memory; there a row is 128 bytes, whose
// 16-byte units are permuted by its number modulo 8. What a box reaches beyond the matrix reads as zero and is not
// written. Pointer and stride are multiples of 16 bytes.
type TensorMap struct {
	Mat     Mat
	BoxRows int
}

// gemmSwiGLUArgs is struct GemmSwigluArgs of gemm_swiglu_bf16.cuh.
type gemmSwiGLUArgs struct {
	maps        [5][128]byte // Launch.Maps
	rows, f, k  int32
	group, lead int32
	_           [44]byte // a multiple of 64 bytes
}

const (
	// gemmSwiGLUGroup is how many tiles of 256 rows are walked column by column: their part of x stays in L2 while all
	// of W passes. On an H200 8 and 16 are equally fast at the shapes of models of 7B, 4 and 32 are slower.
	gemmSwiGLUGroup = 8
	// gemmSwiGLULead is how many stages the first half of a thread block is ahead of the second, without keep. On an
	// H200 one stage takes 5 % off the student's product (4864×896) and nothing off that of 7B; with keep it does harm.
	gemmSwiGLULead = 1
	// gemmSwiGLUShared is what stages, pieces of results, barriers and their alignment take: 4 stages of 48 KiB and 4
	// pieces of 8 KiB, or with keep 3 and 10.
	gemmSwiGLUShared = 224<<10 + 1<<10 + 128
)

// gemmGLUs are the modules of GemmGLU; their kernels are called so without the suffix.
var gemmGLUs = map[device.Activation]string{device.SiLU: "gemm_swiglu", device.GELUTanh: "gemm_geglu"}

// GemmGLUModule returns the module of GemmGLU with an activation; none: there is no such kernel.
func GemmGLUModule(act device.Activation) string {
	if name, ok := gemmGLUs[act]; ok {
		return name + "_sm90"
	}
	return ""
}

// GemmGLUServes reports whether GemmGLU serves these operands and this activation, on a device of compute capability 9.0.
func GemmGLUServes(m, gu, x, w Mat, act device.Activation) bool {
	if gemmGLUs[act] == "" {
		return false
	}
	for _, a := range []Mat{m, gu, x, w} {
		if a.Type != tensor.BF16 || !rowsAt(a, 16) {
			return false
		}
	}
	return m.Cols%8 == 0 && x.Cols > 0
}

// GemmGLU computes m = act(g)·u with [g|u] = x·wᵀ rounded to bfloat16, x [n,k], w [2f,k] with the rows of g before
// those of u, m [n,f], on compute capability 9.0; with keep also gu [n,2f] = [g|u]. All are bfloat16, their rows begin at
// multiples of 16 bytes, f is a multiple of 8: see GemmGLUServes.
//
// Every element of g and u is the sum in float32 of its products in order of the inner dimension, 16 at a time; m is in
// the bits that GLU gives of gu. Both are the same with and without keep, on any number of multiprocessors.
//
// Bytes moved per element of m: 2, with keep 6, and x and w.
func GemmGLU(q Queue, m, gu, x, w Mat, act device.Activation, keep bool) {
	f := m.Cols
	need(GemmGLUServes(m, gu, x, w, act), "GemmGLU", "operands it does not serve")
	need(m.Rows == x.Rows && gu.Rows == x.Rows && gu.Cols == 2*f && w.Rows == 2*f && w.Cols == x.Cols, "GemmGLU", "shapes differ")
	pairs := (m.Rows + 255) / 256 * ((f + 127) / 128) // of blocks
	if pairs == 0 {
		return
	}
	l := Launch{
		Module: GemmGLUModule(act), Kernel: gemmGLUs[act], Grid: [3]int{2 * min(pairs, max(1, q.Multiprocessors()/2)), 1, 1},
		Block: 384, Cluster: 2, Shared: gemmSwiGLUShared, Maps: []TensorMap{{x, 128}, {w, 128}, {m, 64}},
		Args: unsafe.Pointer(&gemmSwiGLUArgs{
			rows: int32(m.Rows), f: int32(f), k: int32(x.Cols), group: gemmSwiGLUGroup, lead: gemmSwiGLULead,
		}),
	}
	if keep {
		(*gemmSwiGLUArgs)(l.Args).lead = 0
		l.Kernel += "_keep"
		l.Maps = append(l.Maps, TensorMap{gu.cols(0, f), 64}, TensorMap{gu.cols(f, 2*f), 64})
	}
	q.Launch(l)
}

// cols returns columns [lo,hi) of m.
func (m Mat) cols(lo, hi int) Mat {
	m.Ptr += uint64(lo * m.Type.BlockBytes())
	m.Cols = hi - lo
	return m
}
