package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// ConvModule has the kernels of Conv and ConvBackward.
const ConvModule = "conv"

const (
	convThreads = 128
	convRows    = 64 // of a thread block
)

// convArgs is struct ConvArgs of conv.cu.
type convArgs struct {
	x, y, w, from, to, first                     uint64
	xStride, yStride, wStride, fromStride, toStr int64
	len, channels, taps, rows                    uint32
}

// convBackwardArgs is struct ConvBackwardArgs of conv.cu.
type convBackwardArgs struct {
	x, dy, dx, w, part, first            uint64
	xStride, dyStride, dxStride, wStride int64
	len, channels, taps, rows            uint32
}

// convWeightsArgs is struct ConvWeightsArgs of conv.cu.
type convWeightsArgs struct {
	dw, part               uint64
	dwStride               int64
	channels, taps, groups uint32
}

// Conv: y_t = silu(Σ_j w_j·x_{t−K+1+j}) of each channel along each sequence, x [n,C] bfloat16 or float32, w [C,K] float32 with
// K ≤ device.MaxTaps, K = 4 in bfloat16 being the fast one; from, to [Batch·(K−1), C] of x's type, or zero, and first as device.Sequences has them. to may be from.
//
// Bytes moved per element in bfloat16: 4, and 1/16 for the rows before a thread block's.
func Conv(q Queue, y, x, w, from, to, first Mat, c device.Sequences) {
	need(w.Cols <= device.MaxTaps, "Conv", "too many taps")
	if x.Cols == 0 || c.Batch == 0 {
		return
	}
	rows := convRows
	if !from.IsZero() && from.Ptr == to.Ptr && c.Len > convRows { // the last block writes what the first one reads
		if n := from.Rows * from.Cols * from.Type.BlockBytes(); n <= MaxScratch/2 {
			before := Mat{Ptr: q.Scratch(n), Rows: from.Rows, Cols: from.Cols, Stride: from.Cols, Type: from.Type}
			Copy(q, before, from)
			from = before
		} else { // of many sequences
			rows = c.Len
		}
	}
	pieces := max(1, ceil(c.Len, rows))
	a := &convArgs{
		x: x.Ptr, y: y.Ptr, w: w.Ptr, from: from.Ptr, to: to.Ptr, first: first.Ptr, xStride: int64(x.Stride), yStride: int64(y.Stride),
		wStride: int64(w.Stride), fromStride: int64(from.Stride), toStr: int64(to.Stride), len: uint32(c.Len), channels: uint32(x.Cols),
		taps: uint32(w.Cols), rows: uint32(rows),
	}
	launchConv(q, "conv_", x, convByPairs(w, x, y), pieces*c.Batch, unsafe.Pointer(a))
}

// ConvBackward writes dx and adds dw: with z the sum of Conv and dz = dy·silu'(z), dx_s = Σ_j w_j·dz_{s+K−1−j} and
// dw_j += Σ_t dz_t·x_{t−K+1+j}. Sums are float32; those of dw run over 64 rows of a sequence, then over these groups.
//
// Bytes moved per element in bfloat16: 6, and K/8 for dw.
func ConvBackward(q Queue, dx, dw, dy, x, w, first Mat, c device.Sequences) {
	need(w.Cols <= device.MaxTaps, "ConvBackward", "too many taps")
	if x.Cols == 0 || x.Rows == 0 {
		return
	}
	size := 4 * w.Cols * x.Cols                                       // of a thread block's partial sums
	rows := convRows * ceil(ceil(c.Len, convRows)*size, MaxScratch/2) // those of a sequence find room
	pieces := ceil(c.Len, rows)
	some := min(c.Batch, max(1, MaxScratch/2/(pieces*size))) // sequences at a time
	part := q.Scratch(some * pieces * size)
	for b := 0; b < c.Batch; b += some {
		n := min(some, c.Batch-b)
		lo, hi := b*c.Len, (b+n)*c.Len
		dx, dy, x, first := dx.rows(lo, hi), dy.rows(lo, hi), x.rows(lo, hi), first.rows(lo, hi)
		launchConv(q, "conv_backward_", x, convByPairs(w, x, dy, dx), pieces*n, unsafe.Pointer(&convBackwardArgs{
			x: x.Ptr, dy: dy.Ptr, dx: dx.Ptr, w: w.Ptr, part: part, first: first.Ptr, xStride: int64(x.Stride), dyStride: int64(dy.Stride),
			dxStride: int64(dx.Stride), wStride: int64(w.Stride), len: uint32(c.Len), channels: uint32(x.Cols), taps: uint32(w.Cols), rows: uint32(rows),
		}))
		launch(q, ConvModule, "conv_weights", w.Cols*x.Cols, 256, 256, unsafe.Pointer(&convWeightsArgs{
			dw: dw.Ptr, part: part, dwStride: int64(dw.Stride), channels: uint32(x.Cols), taps: uint32(w.Cols), groups: uint32(pieces * n),
		}))
	}
}

// convByPairs reports whether a thread may take two channels of all of m at once: of four taps and bfloat16, as all models have them.
func convByPairs(w Mat, m ...Mat) bool {
	for _, m := range m {
		if m.Type != tensor.BF16 || m.Cols%2 > 0 || m.Stride%2 > 0 || m.Ptr%4 > 0 {
			return false
		}
	}
	return w.Cols == 4
}

func launchConv(q Queue, name string, x Mat, pairs bool, groups int, args unsafe.Pointer) {
	need(groups <= mostGroups, "Conv", "too many rows")
	name, threads := name+typeName(x.Type), x.Cols
	if pairs {
		name, threads = name+"_four", x.Cols/2
	}
	q.Launch(Launch{Module: ConvModule, Kernel: name, Grid: [3]int{ceil(threads, convThreads), groups, 1}, Block: convThreads, Args: args})
}

// mostGroups is the most blocks of a grid in its second direction.
const mostGroups = 65535

// vectorOf returns the address of ids without gaps, or zero.
func vectorOf(ids Mat) uint64 {
	need(ids.IsZero() || ids.Type == tensor.I32 && ids.dense(), "ids", "no int32 vector without gaps")
	return ids.Ptr
}
