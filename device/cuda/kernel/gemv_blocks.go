package kernel

import (
	"fmt"
	"slices"
	"unsafe"

	"apr/tensor"
)

const (
	rowsModule = "gemv_blocks"
	rowsParts  = 4         // of one launch
	rowsTokens = 4         // rows of x of one launch at most
	rowsChunk  = 2048      // CHUNK of gemv_blocks.cuh
	rowsX      = 5504      // CHUNK_X, bytes
	rowsSums   = 16 << 10  // bytes of a thread block's sums at most
	rowsShared = 110 << 10 // bytes of a thread block at most
	rowsNormed = 8 << 10   // columns of a norm that is made on the way, for which thread blocks have warps enough
)

// What speed alone depends on. The blocks of a launch fill all multiprocessors, equally: had they room to spare, the blocks
// of a launch that begins early would be put where another launch's have ended first, two here and none there.
const (
	rowsWarps  = 16 // of a thread block at most
	rowsStages = 4  // chunks of a warp in shared memory at most, 2 … 4
	rowsBlocks = 2  // of a multiprocessor
)

// rowsPart is struct RowsPart of gemv_blocks.cuh.
type rowsPart struct {
	w            uint64
	stride       int64
	rows, each   uint32
	first, dtype uint32
}

// rowsArgs is struct RowsArgs of gemv_blocks.cuh.
type rowsArgs struct {
	y, x, bias, product uint64
	yStride, xStride    int64 // elements
	productStride       int64
	part                [rowsParts]rowsPart
	norm                rowNorm
	cols, tokens        uint32
	flags, stages       uint32 // gemvAdd, gemvFloat, gemvDrop
	pitch, parts        uint32
}

// gemvDrop is the bit of rowsArgs.flags by which y is not kept.
const gemvDrop = 4

// rowsTypes are the numbers of types in mixed launches.
var rowsTypes = map[tensor.DType]uint32{tensor.Q4_K: 0, tensor.Q5_K: 1, tensor.Q6_K: 2}

// GemvParts is Gemv with W the rows of parts, one after the other, each in blocks of its own type, and x of bfloat16. One
// row of x takes one launch for up to four parts of one type or of Q4_K, Q5_K and Q6_K.
func GemvParts(q Queue, y, x Mat, parts []Blocks, bias Mat, add bool) {
	gemvParts(q, y, x, parts, bias, add, rowNorm{})
}

// NormGemvParts is GemvParts of norm.Y, which it makes and writes as RMSNorm does, if NormGemvPartsServes says so.
func NormGemvParts(q Queue, y Mat, norm Normed, parts []Blocks, bias Mat) {
	need(NormGemvPartsServes(norm), "Gemv", "norm")
	gemvParts(q, y, norm.Y, parts, bias, false, norm.row())
}

// NormGemvPartsServes reports whether NormGemvParts makes a norm.
func NormGemvPartsServes(norm Normed) bool {
	return norm.serves(32*rowsWarps) && norm.X.Cols <= rowsNormed
}

func gemvParts(q Queue, y, x Mat, parts []Blocks, bias Mat, add bool, norm rowNorm) {
	rows := 0
	for _, w := range parts {
		need(x.Cols == w.Cols && DequantizeServes(w), "Gemv", "type, alignment or columns")
		rows += w.Rows
	}
	need(y.Rows == x.Rows && y.Cols == rows, "Gemv", "shapes differ")
	need(bias.IsZero() || bias.Cols == y.Cols && bias.Type == tensor.F32, "Gemv", "bias")
	first := 0
	for len(parts) > 0 {
		n := 1
		for n < min(len(parts), rowsParts) && (parts[n].Type == parts[0].Type || x.Rows == 1 && mixes(parts[:n+1])) {
			n++
		}
		eachTokens(x, func(lo, hi int) {
			a := newRows(y.rows(lo, hi), x.rows(lo, hi), bias, add)
			a.norm = norm
			a.launch(q, parts[:n], first)
		})
		norm = rowNorm{} // it is there
		for _, w := range parts[:n] {
			first += w.Rows
		}
		parts = parts[n:]
	}
}

// GemvSwiGLU computes gu = x·Wᵀ and m = silu(g)·u of gu as stored, for few rows of x of bfloat16: W is gate, then up, of one
// type and shape. Without keep gu is not written. The bits are those of Gemv, then SwiGLU.
//
// Bytes moved: those of the blocks, once.
func GemvSwiGLU(q Queue, m, gu, x Mat, gate, up Blocks, keep bool) {
	gemvSwiGLU(q, m, gu, x, gate, up, keep, rowNorm{})
}

// NormGemvSwiGLU is GemvSwiGLU of norm.Y, which it makes and writes as RMSNorm does, if NormGemvPartsServes says so.
func NormGemvSwiGLU(q Queue, m, gu Mat, norm Normed, gate, up Blocks, keep bool) {
	need(NormGemvPartsServes(norm), "GemvSwiGLU", "norm")
	gemvSwiGLU(q, m, gu, norm.Y, gate, up, keep, norm.row())
}

func gemvSwiGLU(q Queue, m, gu, x Mat, gate, up Blocks, keep bool, norm rowNorm) {
	need(GemvSwiGLUServes(gu, gate, up) && DequantizeServes(gate) && DequantizeServes(up), "GemvSwiGLU", "types or shapes")
	need(x.Cols == gate.Cols && gu.Cols == 2*gate.Rows && m.Cols == gate.Rows && m.Rows == x.Rows && gu.Rows == x.Rows, "GemvSwiGLU", "shapes differ")
	need(x.Type == tensor.BF16 && m.Type == tensor.BF16, "GemvSwiGLU", "type")
	eachTokens(x, func(lo, hi int) {
		a := newRows(gu.rows(lo, hi), x.rows(lo, hi), Mat{}, false)
		a.product, a.productStride, a.norm = m.rows(lo, hi).Ptr, int64(m.Stride), norm
		if !keep {
			a.flags |= gemvDrop
		}
		a.launch(q, []Blocks{gate, up}, 0)
	})
}

// GemvSwiGLUServes reports whether GemvSwiGLU takes these.
func GemvSwiGLUServes(gu Mat, gate, up Blocks) bool {
	return gu.Type == tensor.BF16 && gate.Type == up.Type && gate.Rows == up.Rows && gate.Cols == up.Cols
}

// mixes reports whether one kernel serves parts of these types.
func mixes(parts []Blocks) bool {
	for _, w := range parts {
		if _, ok := rowsTypes[w.Type]; !ok {
			return false
		}
	}
	return true
}

// eachTokens calls f for the rows of x of each launch: rowsTokens of them, or one if shared memory does not hold that
// many.
func eachTokens(x Mat, f func(lo, hi int)) {
	need(x.Rows <= GemvRows, "Gemv", "too many rows")
	n := rowsTokens
	if n*ceil(x.Cols, rowsChunk)*rowsX > rowsShared/2 {
		n = 1
	}
	for lo := 0; lo < x.Rows; lo += n {
		f(lo, min(lo+n, x.Rows))
	}
}

func newRows(y, x, bias Mat, add bool) *rowsArgs {
	need(rowsAt(x, 16) && x.Type == tensor.BF16, "Gemv", "type or alignment")
	a := &rowsArgs{
		y: y.Ptr, x: x.Ptr, bias: bias.Ptr, yStride: int64(y.Stride), xStride: int64(x.Stride),
		cols: uint32(x.Cols), tokens: uint32(x.Rows),
	}
	if add {
		a.flags |= gemvAdd
	}
	if y.Type == tensor.F32 {
		a.flags |= gemvFloat
	}
	return a
}

// launch starts the kernel for parts, of which the first makes the columns of y from first on.
func (a *rowsArgs) launch(q Queue, parts []Blocks, first int) {
	most, name, tokens := 0, parts[0].Type.String(), 1
	var rows []int
	for _, w := range parts {
		rows = append(rows, w.Rows)
		most = max(most, min(w.RowBytes, int(w.Type.RowBytes(rowsChunk))))
		if w.Type != parts[0].Type {
			name = "mixed"
		}
	}
	if a.tokens > 1 {
		tokens = rowsTokens
	}
	s := shapeRows(int(a.cols), rows, tokens, most, q.Multiprocessors())
	if s.blocks == 0 || a.cols == 0 {
		return
	}
	for i, w := range parts {
		a.part[i] = rowsPart{w.Ptr, int64(w.RowBytes), uint32(w.Rows), uint32(ceil(w.Rows, s.blocks)), uint32(first), rowsTypes[w.Type]}
		first += w.Rows
	}
	a.parts, a.stages, a.pitch = uint32(len(parts)), uint32(s.stages), uint32(s.pitch)
	q.Launch(Launch{
		Module: rowsModule, Kernel: fmt.Sprintf("gemv_%s_rows_%d", name, tokens), Grid: [3]int{s.blocks, 1, 1}, Block: 32 * s.warps,
		Shared: s.shared, Args: unsafe.Pointer(a),
	})
}

// rowsShape is how a product is cut; bits do not depend on it.
type rowsShape struct{ warps, stages, blocks, pitch, shared int }

// shapeRows cuts parts of `rows` rows: each multiprocessor has an equal number of each, or more blocks where sums would
// take too much room; stages, then warps, are as many as fit beside x. most is the bytes of a chunk at most.
func shapeRows(cols int, rows []int, tokens, most, multiprocessors int) rowsShape {
	chunks := ceil(cols, rowsChunk)
	x, sum := tokens*chunks*rowsX, ceil(chunks, 2)*tokens*4
	s := rowsShape{warps: rowsWarps, stages: rowsStages, pitch: ceil(most, 16)*16 + 16}
	sums := func(blocks int) (n int) {
		for _, r := range rows {
			n += ceil(r, max(1, blocks)) * sum
		}
		return n
	}
	s.blocks = min(slices.Max(rows), rowsBlocks*max(1, multiprocessors))
	for s.blocks > 0 && s.blocks < slices.Max(rows) && sums(s.blocks) > rowsSums {
		s.blocks *= 2
	}
	shared := func() int { return x + s.warps*s.stages*s.pitch + sums(s.blocks) }
	for s.stages > 2 && shared() > rowsShared {
		s.stages--
	}
	for s.warps > 1 && shared() > rowsShared {
		s.warps /= 2
	}
	s.shared = shared()
	return s
}
