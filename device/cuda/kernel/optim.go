package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// paramPiece is the elements of a parameter that one thread block takes.
const paramPiece = 16384

// Threads of a thread block of optim.cu, and blocks of optim_adamw that share a piece.
const (
	optimThreads = 256
	optimFinish  = 1024
	optimParts   = paramPiece / (8 * optimThreads)
)

// Trainable is a parameter: master weights W, gradient G and moments M and V, float32 of one shape, and Copy, the
// bfloat16 matrix that products read, or the zero Mat. The elements of each stand side by side, from an address that is
// a multiple of 16.
type Trainable struct {
	W, G, M, V, Copy Mat
	Decay            bool
}

// ParamPiece is an element of the table of parameters in device memory, struct Piece of optim.cu.
type ParamPiece struct {
	W, G, M, V, Copy uint64
	N, Decay         uint32
}

// ParamPieces returns the table that Verdict and AdamW work through: the parameters in order, cut into pieces of 16,384
// elements. The order of the pieces is the order in which the gradient norm is summed.
func ParamPieces(params []Trainable) []ParamPiece {
	var table []ParamPiece
	for _, p := range params {
		n := p.W.Rows * p.W.Cols
		for _, m := range []Mat{p.W, p.G, p.M, p.V} {
			needDense(m, n, tensor.F32)
		}
		if !p.Copy.IsZero() {
			needDense(p.Copy, n, tensor.BF16)
		}
		for lo := 0; lo < n; lo += paramPiece {
			off := uint64(4 * lo)
			piece := ParamPiece{
				W: p.W.Ptr + off, G: p.G.Ptr + off, M: p.M.Ptr + off, V: p.V.Ptr + off,
				N: uint32(min(paramPiece, n-lo)),
			}
			if !p.Copy.IsZero() {
				piece.Copy = p.Copy.Ptr + off/2
			}
			if p.Decay {
				piece.Decay = 1
			}
			table = append(table, piece)
		}
	}
	return table
}

func needDense(m Mat, n int, d tensor.DType) {
	if m.Rows*m.Cols != n || m.Type != d || m.Ptr%16 != 0 || m.Rows > 1 && m.Stride != m.Cols {
		panic("kernel: a parameter's tensors differ in shape, or have gaps")
	}
}

// normArgs is struct NormArgs of optim.cu.
type normArgs struct {
	pieces, sums, record uint64
	n                    int64
}

// Verdict computes Loss = CEWeight·(CE·InvN) + DWeight·(D·InvN), ‖g‖₂ over the table of n pieces at pieces and
// Scale = min(1, MaxNorm/(‖g‖₂+1e-6)), 1 where MaxNorm is 0, into the record. Finite says whether Σ CE, Σ D and the norm
// are, and that no Fault was noted; Diverged that they are, and Loss > MaxLoss > 0.
// Squares are added in float64 in an order that depends on the table alone. It reads 4 bytes per parameter.
func Verdict(q Queue, pieces uint64, n int) { VerdictOver(q, pieces, n, nil) }

// VerdictOver is Verdict with something between the sums of squares of the n pieces, float64 at sums, and their sum.
func VerdictOver(q Queue, pieces uint64, n int, between func(sums uint64)) {
	a := &normArgs{pieces: pieces, sums: q.Scratch(max(8, 8*n)), record: q.Record(), n: int64(n)}
	if n > 0 {
		q.Launch(Launch{Module: "optim", Kernel: "optim_norm", Grid: [3]int{n, 1, 1}, Block: optimThreads, Args: unsafe.Pointer(a)})
	}
	if between != nil {
		between(a.sums)
	}
	q.Launch(Launch{Module: "optim", Kernel: "optim_verdict", Grid: [3]int{1, 1, 1}, Block: optimFinish, Args: unsafe.Pointer(a)})
}

// adamWArgs is struct AdamWArgs of optim.cu.
type adamWArgs struct {
	pieces, factors, record        uint64
	beta1, beta2, eps, weightDecay float64
}

// The sizes of structs Piece, NormArgs and AdamWArgs.
var (
	_ [48]byte = [unsafe.Sizeof(ParamPiece{})]byte{}
	_ [32]byte = [unsafe.Sizeof(normArgs{})]byte{}
	_ [56]byte = [unsafe.Sizeof(adamWArgs{})]byte{}
)

// factorsBytes is the size of struct Factors of optim.cu.
const factorsBytes = 9*4 + 4

// AdamW updates the parameters of the table of n pieces at pieces as the record says: formulas of device.AdamW, every
// operation rounded to float32 in the order of the CPU device. Weights, moments and copies stay as they are if the
// record's Finite is 0 or its Diverged is not. It moves 28 bytes per parameter, 30 with a bfloat16 copy.
func AdamW(q Queue, pieces uint64, n int, a device.AdamW) {
	if n == 0 {
		return
	}
	args := &adamWArgs{
		pieces: pieces, factors: q.Scratch(factorsBytes), record: q.Record(),
		beta1: a.Beta1, beta2: a.Beta2, eps: a.Eps, weightDecay: a.WeightDecay,
	}
	q.Launch(Launch{Module: "optim", Kernel: "optim_factors", Grid: [3]int{1, 1, 1}, Block: 32, Args: unsafe.Pointer(args)})
	q.Launch(Launch{Module: "optim", Kernel: "optim_adamw", Grid: [3]int{n * optimParts, 1, 1}, Block: optimThreads, Args: unsafe.Pointer(args)})
}
