package kernel

import (
	"fmt"
	"unsafe"

	"apr/tensor"
)

// GemmForm is the form of a matrix product.
type GemmForm uint8

// The three products of a linear layer y = x·Wᵀ with W [out, in].
const (
	GemmNT GemmForm = iota // c[M,N] = a[M,K]·b[N,K]ᵀ: y = x·Wᵀ
	GemmNN                 // c[M,N] = a[M,K]·b[K,N]: dx = dy·W
	GemmTN                 // c[M,N] = a[K,M]ᵀ·b[K,N]: dw = dyᵀ·x
)

// Bits of gemmArgs.flags.
const (
	gemmAdd = 1 << iota
	gemmFloat
	gemmVectorA
	gemmVectorB
	gemmPairs
)

// gemmArgs is struct GemmArgs of gemm.cuh.
type gemmArgs struct {
	a, b, c, bias uint64
	lda, ldb, ldc int64
	m, n, k       int32
	flags         uint32
}

// The tiles of c that a thread block computes, and what it needs.
const (
	gemmThreads = 128
	gemmShared  = 48 << 10 // of the tiles of 128×128: 3 stages of 16 KiB
	gemmSmall   = 32 << 10 // of the tiles of 64×64: 4 stages of 8 KiB
)

// Gemm computes c = op(a)·op(b), plus bias [1,N] (float32) for every row unless it is zero, plus c with add, where form
// says which of a and b are transposed. b may have more rows than take part: N of GemmNT, K of GemmNN. a and b are both
// bfloat16, or both float32; products of float32 are exact to a rounding each, or with tf32 of operands rounded to 10
// bits of mantissa. c is float32 or bfloat16.
//
// Every element is the sum in float32 of its products in order of the inner dimension (16 at a time for bfloat16, 8 for
// tf32), whatever the device and the extents: equal rows of a give equal bits.
//
// It serves where cublasLt is missing. bfloat16 rows that begin at multiples of 16 bytes are loaded fast.
func Gemm(q Queue, form GemmForm, c, a, b, bias Mat, add, tf32 bool) {
	args := newGemm(form, c, a, b, bias, add)
	if args.m == 0 || args.n == 0 {
		return
	}
	name := [...]string{"nt", "nn", "tn"}[form]
	launch := Launch{Module: "gemm_f32", Kernel: "gemm_f32_" + name, Block: gemmThreads, Args: unsafe.Pointer(args)}
	high, wide := 128, 64
	switch {
	case a.Type == tensor.F32 && tf32:
		launch.Kernel = "gemm_tf32_" + name
	case a.Type == tensor.F32:
	case tiles(c, 128, 128) >= q.Multiprocessors():
		launch.Module, launch.Kernel, launch.Shared = "gemm", "gemm_"+name+"_128", gemmShared
		high, wide = 128, 128
	default:
		launch.Module, launch.Kernel, launch.Shared = "gemm", "gemm_"+name+"_64", gemmSmall
		high, wide = 64, 64
	}
	launch.Grid = [3]int{tiles(c, high, wide), 1, 1}
	q.Launch(launch)
}

// tiles returns how many tiles cover c.
func tiles(c Mat, high, wide int) int {
	return (c.Rows + high - 1) / high * ((c.Cols + wide - 1) / wide)
}

func newGemm(form GemmForm, c, a, b, bias Mat, add bool) *gemmArgs {
	m, n, k := c.Rows, c.Cols, a.Cols
	var fits bool
	switch form {
	case GemmNT:
		fits = a.Rows == m && b.Rows >= n && b.Cols == k
	case GemmNN:
		fits = a.Rows == m && b.Rows >= k && b.Cols == n
	case GemmTN:
		k = a.Rows
		fits = a.Cols == m && b.Rows == k && b.Cols == n
	}
	if !fits || a.Type != b.Type || !bias.IsZero() && (bias.Cols != n || bias.Type != tensor.F32) {
		panic(fmt.Sprintf("kernel: no product of form %d: c %+v, a %+v, b %+v, bias %+v", form, c, a, b, bias))
	}
	args := &gemmArgs{
		a: a.Ptr, b: b.Ptr, c: c.Ptr, bias: bias.Ptr, lda: int64(a.Stride), ldb: int64(b.Stride), ldc: int64(c.Stride),
		m: int32(m), n: int32(n), k: int32(k),
	}
	for bit, on := range map[uint32]bool{
		gemmAdd: add, gemmFloat: c.Type == tensor.F32, gemmVectorA: rowsAt(a, 16), gemmVectorB: rowsAt(b, 16),
		gemmPairs: rowsAt(c, 2*c.Type.BlockBytes()),
	} {
		if on {
			args.flags |= bit
		}
	}
	return args
}

// rowsAt reports whether all rows of m begin at multiples of n bytes.
func rowsAt(m Mat, n int) bool {
	return m.Ptr%uint64(n) == 0 && m.Stride*m.Type.BlockBytes()%n == 0
}
