package device

import (
	"math"

	"apr/tensor"
)

// The preconditions of every operation stand here once: each Check function panics with a Misuse if a call is not what the
// comment of the operation promises, and every device calls it first. A device adds only what is a limit of its own (an
// element type that it has no kernel for) and says so. The functions allocate nothing.

// Misuse is what a Check function panics with: a call that breaks a precondition is a mistake of the program.
type Misuse struct {
	Op     Op
	What   string
	Tensor string // the memory that cannot be used so, if it is about one
}

// Error names the operation and what is wrong with the call.
func (m Misuse) Error() string {
	s := "device: " + m.Op.String() + ": " + m.What
	if m.Tensor != "" {
		s += ": " + m.Tensor
	}
	return s
}

// What more than one operation refuses.
const (
	wrongShapes = "shapes differ"
	wrongTypes  = "types differ"
	noTensor    = "a tensor is missing"
	noWeight    = "the weight is missing"
	noFloats    = "a tensor is neither float32 nor bfloat16"
	noFloat32   = "a tensor that must be float32 is not"
	noIDs       = "ids are not an int32 vector without gaps"
	noLength    = "length differs from the tensor's"
	noVector    = "a vector has not one row of the right length"
	noView      = "a tensor is no view of its memory"
	noPositions = "there are no such positions"
	noRate      = "the rate is not in [0, 1)"
	noFactor    = "a factor is not finite"
	gone        = "a tensor is used after it was given back"
)

func need(ok bool, op Op, what string) {
	if !ok {
		panic(Misuse{Op: op, What: what})
	}
}

// needOf is need for what t's memory must be.
func needOf(t Tensor, ok bool, op Op, what string) {
	if !ok {
		panic(Misuse{op, what, t.Buf.Name()})
	}
}

// views demands tensors that are there, lie in their memory, and whose memory was not given back.
func views(op Op, ts ...Tensor) {
	for _, t := range ts {
		need(!t.IsZero(), op, noTensor)
		view(op, t)
	}
}

// optional is views for tensors that may be zero.
func optional(op Op, ts ...Tensor) {
	for _, t := range ts {
		if !t.IsZero() {
			view(op, t)
		}
	}
}

func view(op Op, t Tensor) {
	needOf(t, t.Buf.State() != Gone, op, gone)
	needOf(t, t.Rows >= 0 && t.Cols >= 0 && t.Off >= 0 && t.Stride >= 0 && (t.Rows < 2 || t.Stride >= t.Cols), op, noView)
	if t.Rows > 0 && t.Cols > 0 {
		end := int64(t.Off) + int64(t.Rows-1)*int64(t.Stride) + int64(t.Cols)
		needOf(t, t.DType.BlockLen() == 1 && end*int64(t.DType.BlockBytes()) <= t.Buf.Bytes(), op, noView)
	}
}

// typed demands that tensors that are not zero have type d.
func typed(op Op, d tensor.DType, what string, ts ...Tensor) {
	for _, t := range ts {
		need(t.IsZero() || t.DType == d, op, what)
	}
}

// floats demands that tensors that are not zero are of a type in which activations are kept.
func floats(op Op, ts ...Tensor) {
	for _, t := range ts {
		need(t.IsZero() || t.DType == tensor.F32 || t.DType == tensor.BF16, op, noFloats)
	}
}

// shaped demands that tensors that are not zero have rows and cols.
func shaped(op Op, rows, cols int, ts ...Tensor) {
	for _, t := range ts {
		need(t.IsZero() || t.Rows == rows && t.Cols == cols, op, wrongShapes)
	}
}

// vectors demands that tensors that are not zero are [1, n].
func vectors(op Op, n int, ts ...Tensor) {
	for _, t := range ts {
		need(t.IsZero() || t.Rows == 1 && t.Cols == n, op, noVector)
	}
}

// ids demands an int32 vector of n elements, [n,1] or [1,n], without gaps.
func ids(op Op, t Tensor, n int) {
	views(op, t)
	need(t.DType == tensor.I32 && (t.Cols == 1 || t.Rows == 1) && (t.Rows <= 1 || t.Stride == 1), op, noIDs)
	need(t.Rows*t.Cols == n, op, wrongShapes)
}

// Dense reports whether the rows of t have no gaps between them.
func (t Tensor) Dense() bool { return t.Stride == t.Cols || t.Rows <= 1 }

// TensorBytes returns the bytes of a dense tensor, for Temp and Alloc. No size below 0, no blocks, and no number of bytes
// that is anywhere near the end of int64 is accepted.
func TensorBytes(op Op, d tensor.DType, rows, cols int) int64 {
	need(rows >= 0 && cols >= 0 && d.BlockLen() == 1, op, "there is no tensor of such a shape or type")
	row := d.RowBytes(cols)
	need(rows == 0 || row <= math.MaxInt64/4/int64(rows), op, "a tensor of that many rows and columns is too large")
	return int64(rows) * row
}

// Whole returns the dense tensor that begins with b.
func Whole(b Buffer, d tensor.DType, rows, cols int) Tensor {
	return Tensor{Buf: b, Rows: rows, Cols: cols, Stride: cols, DType: d}
}

// CheckRelease checks one tensor of Release; zero ones are ignored.
func CheckRelease(t Tensor) {
	needOf(t, t.IsZero() || t.Buf.State() == Temporary, OpRelease, "a tensor is no temp in use")
}

// CheckFree checks one tensor of Free.
func CheckFree(t Tensor) {
	need(!t.IsZero(), OpFree, noTensor)
	needOf(t, t.Buf.State() == Lasting, OpFree, "a tensor is a temp or was freed before")
}

// CheckFrozen checks the operand of Device.Frozen.
func CheckFrozen(t Tensor) {
	views(OpFrozen, t)
	typed(OpFrozen, tensor.F32, noFloat32, t)
}

// CheckUpload checks a call of Upload.
func CheckUpload(t Tensor, src []float32) {
	views(OpUpload, t)
	floats(OpUpload, t)
	need(len(src) == t.Rows*t.Cols, OpUpload, noLength)
}

// CheckUploadStored checks a call of UploadStored.
func CheckUploadStored(t Tensor, src []byte) {
	views(OpUpload, t)
	floats(OpUpload, t)
	need(len(src) == t.Rows*t.Cols*t.DType.BlockBytes(), OpUpload, noLength)
}

// CheckUploadInts checks a call of UploadInts.
func CheckUploadInts(t Tensor, src []int32) {
	views(OpUploadInts, t)
	need(t.DType == tensor.I32, OpUploadInts, "a tensor is not int32")
	need(len(src) == t.Rows*t.Cols, OpUploadInts, noLength)
}

// CheckDownload checks a call of Download.
func CheckDownload(dst []float32, t Tensor) {
	views(OpDownload, t)
	floats(OpDownload, t)
	need(len(dst) == t.Rows*t.Cols, OpDownload, noLength)
}

// CheckDownloadStored checks a call of DownloadStored.
func CheckDownloadStored(dst []byte, t Tensor) {
	views(OpDownload, t)
	floats(OpDownload, t)
	need(len(dst) == t.Rows*t.Cols*t.DType.BlockBytes(), OpDownload, noLength)
}

// CheckFetch checks a call of Fetcher.Fetch.
func CheckFetch(t Tensor) {
	views(OpFetch, t)
	typed(OpFetch, tensor.F32, noFloat32, t)
	need(t.Dense(), OpFetch, "a tensor has gaps between its rows")
}

// CheckFetched checks a call of what Fetch returned, for n values.
func CheckFetched(dst []float32, n int) { need(len(dst) == n, OpFetch, noLength) }

// CheckRefreshWeight checks a call of RefreshWeight.
func CheckRefreshWeight(p *Param) {
	need(p != nil && p.Weight != nil, OpRefreshWeight, noWeight)
	t := p.Staging(OfValue)
	views(OpRefreshWeight, t)
	shaped(OpRefreshWeight, p.Weight.Rows(), p.Weight.Cols(), t)
}

// CheckZero checks a call of Zero.
func CheckZero(t Tensor) { views(OpZero, t) }

// CheckCopy checks a call of Copy.
func CheckCopy(dst, src Tensor) {
	views(OpCopy, dst, src)
	shaped(OpCopy, dst.Rows, dst.Cols, src)
	typed(OpCopy, dst.DType, wrongTypes, src)
}

// CheckEmbed checks a call of Embed, but for the values of the ids.
func CheckEmbed(dst Tensor, w Weight, rows Tensor) {
	need(w != nil, OpEmbed, noWeight)
	views(OpEmbed, dst)
	floats(OpEmbed, dst)
	ids(OpEmbed, rows, dst.Rows)
	shaped(OpEmbed, dst.Rows, w.Cols(), dst)
}

// CheckEmbedBackward checks a call of EmbedBackward, but for the values of the ids.
func CheckEmbedBackward(grad, rows, dx Tensor) {
	views(OpEmbedBackward, grad, dx)
	typed(OpEmbedBackward, tensor.F32, noFloat32, grad)
	floats(OpEmbedBackward, dx)
	ids(OpEmbedBackward, rows, dx.Rows)
	shaped(OpEmbedBackward, dx.Rows, grad.Cols, dx)
}

// CheckGather checks a call of Gather, but for the values of rows.
func CheckGather(dst, src, rows Tensor) {
	views(OpGather, dst, src)
	floats(OpGather, dst)
	typed(OpGather, dst.DType, wrongTypes, src)
	ids(OpGather, rows, dst.Rows)
	need(dst.Cols == src.Cols, OpGather, wrongShapes)
}

// CheckScatter checks a call of Scatter, but for the values of rows.
func CheckScatter(dst, src, rows Tensor) {
	views(OpScatter, dst, src)
	floats(OpScatter, dst)
	typed(OpScatter, dst.DType, wrongTypes, src)
	ids(OpScatter, rows, src.Rows)
	need(dst.Cols == src.Cols, OpScatter, wrongShapes)
}

// CheckPhase checks a call of Phase.
func CheckPhase(p Phase) { need(p >= 0 && p < NumPhases, OpPhase, "there is no such phase") }
