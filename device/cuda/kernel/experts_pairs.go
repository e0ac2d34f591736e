package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// pairsModule has the products of few slots with matrices in blocks of the types of pairTypes.
const pairsModule = "experts_pairs"

// pairType is what package kernel knows of a type's struct PairOf… in experts_pairs.cuh.
type pairType struct {
	piece int                // columns of a row that are on their way together
	x     func(cols int) int // bytes of a row of x in shared memory
}

func chunksOfX(cols int) int { return ceil(cols, rowsChunk) * rowsX }

var pairTypes = map[tensor.DType]pairType{
	tensor.Q4_K: {rowsChunk, chunksOfX}, tensor.Q5_K: {rowsChunk, chunksOfX}, tensor.Q6_K: {rowsChunk, chunksOfX},
	tensor.Q8_0:  {rowsChunk, chunksOfX},
	tensor.MXFP4: {2 * rowsChunk, func(cols int) int { return ceil(cols/32*68, 16) * 16 }},
}

// What speed alone depends on: as rowsWarps and so on, of pairs of rows.
const (
	pairWarps  = 16
	pairStages = 4
	pairBlocks = 2       // of a multiprocessor
	pairSums   = 4 << 10 // bytes of a thread block's sums of slots at most
)

// expertPairsArgs is struct ExpertPairsArgs of experts_pairs.cuh.
type expertPairsArgs struct {
	y, x, w, up, bias, upBias, chosen, slots, starts      uint64
	yStride, xStride, wRow, upRow, wStep, upStep, biasRow int64
	experts, rows, cols, active                           uint32
	act, each                                             uint32
	stages, pitch, floats                                 uint32
}

// expertMixedArgs is struct ExpertMixedArgs of experts_pairs.cuh.
type expertMixedArgs struct {
	y, x, w, bias, weights, chosen, slots                 uint64
	yStride, xStride, weightsStride, wRow, wStep, biasRow int64
	experts, h, cols, active                              uint32
	each, stages, pitch, add                              uint32
}

// pairShape is how a product of pairs is cut; bits do not depend on it.
type pairShape struct{ warps, stages, pitch, each, blocks, shared int }

// shapePairs cuts `rows` columns of y, of `copies` slots or tokens, whose thread blocks have xs rows of x and, of a column, sums floats:
// all multiprocessors have pairBlocks thread blocks, or more. There is no shape (of no warps) where x leaves too little room.
func shapePairs(d tensor.DType, cols, rows, copies, xs, sums, multiprocessors int) pairShape {
	t := pairTypes[d]
	s := pairShape{warps: pairWarps, stages: pairStages, pitch: ceil(int(d.RowBytes(min(cols, t.piece))), 16)*16 + 16}
	s.each = ceil(ceil(rows, ceil(pairBlocks*max(1, multiprocessors), max(1, copies))), 2) * 2
	if sums > 0 {
		s.each = min(s.each, pairSums/(4*sums)/2*2)
	}
	s.blocks = ceil(rows, s.each)
	shared := func() int { return xs*t.x(cols) + 2*s.warps*s.stages*s.pitch + 4*sums*s.each }
	for s.stages > 2 && shared() > rowsShared {
		s.stages--
	}
	for s.warps > 4 && shared() > rowsShared {
		s.warps -= 2
	}
	if s.shared = shared(); s.shared > rowsShared {
		return pairShape{}
	}
	return s
}

// pairsServe reports whether products of pairs take matrices w beside xs rows of x.
func pairsServe(w Experts, xs int) bool {
	if !w.Plain.IsZero() {
		return false
	}
	_, ok := pairTypes[w.Blocks.Type]
	return ok && DequantizeServes(w.Blocks) && shapePairs(w.Blocks.Type, w.Blocks.Cols, 1, 1, xs, xs, 1).warps > 0
}

// expertProducts is expertRows by pairs.
func expertProducts(q Queue, y, x Mat, w Experts, bias Mat, r Routing) {
	out, in := w.shape(r.Experts)
	s := shapePairs(w.Blocks.Type, in, out, y.Rows, 1, 0, q.Multiprocessors())
	a := &expertPairsArgs{
		y: y.Ptr, x: x.Ptr, bias: bias.Ptr, starts: r.Starts.Ptr, yStride: int64(y.Stride), xStride: int64(x.Stride), biasRow: int64(bias.Stride),
		experts: uint32(r.Experts), rows: uint32(out), cols: uint32(in), each: uint32(s.each), stages: uint32(s.stages), pitch: uint32(s.pitch),
		floats: uint32(flag(y.Type == tensor.F32)),
	}
	a.w, a.wRow, a.wStep, _ = w.row(r.Experts)
	q.Launch(Launch{
		Module: pairsModule, Kernel: "experts_products_" + w.Blocks.Type.String(), Grid: [3]int{s.blocks, y.Rows, 1}, Block: 32 * s.warps,
		Shared: s.shared, Args: unsafe.Pointer(a),
	})
}

// expertsGatedPairs is ExpertsGatedRows by pairs of a row of gate and one of up.
func expertsGatedPairs(q Queue, y, x Mat, gate, up Experts, gateBias, upBias Mat, act device.Activation, r Routing) {
	f, cols := gate.shape(r.Experts)
	s := shapePairs(gate.Blocks.Type, cols, f, y.Rows, 1, 0, q.Multiprocessors())
	a := &expertPairsArgs{
		y: y.Ptr, x: x.Ptr, bias: gateBias.Ptr, upBias: upBias.Ptr, chosen: r.Chosen.Ptr, slots: r.Slots.Ptr, yStride: int64(y.Stride),
		xStride: int64(x.Stride), biasRow: int64(gateBias.Stride), experts: uint32(r.Experts), rows: uint32(f), cols: uint32(cols),
		active: uint32(r.Active), act: expertActs[act], each: uint32(s.each), stages: uint32(s.stages), pitch: uint32(s.pitch),
	}
	a.w, a.wRow, a.wStep, _ = gate.row(r.Experts)
	a.up, a.upRow, a.upStep, _ = up.row(r.Experts)
	q.Launch(Launch{
		Module: pairsModule, Kernel: "experts_gated_" + gate.Blocks.Type.String(), Grid: [3]int{s.blocks, y.Rows, 1}, Block: 32 * s.warps,
		Shared: s.shared, Args: unsafe.Pointer(a),
	})
}

// expertsMixPairs is ExpertsMixRows by pairs of neighbouring rows.
func expertsMixPairs(q Queue, y, x Mat, w Experts, bias, weights Mat, r Routing, add bool) {
	h, cols := w.shape(r.Experts)
	s := shapePairs(w.Blocks.Type, cols, h, y.Rows, r.Active, r.Active, q.Multiprocessors())
	a := &expertMixedArgs{
		y: y.Ptr, x: x.Ptr, bias: bias.Ptr, weights: weights.Ptr, chosen: r.Chosen.Ptr, slots: r.Slots.Ptr, yStride: int64(y.Stride),
		xStride: int64(x.Stride), weightsStride: int64(weights.Stride), biasRow: int64(bias.Stride), experts: uint32(r.Experts), h: uint32(h),
		cols: uint32(cols), active: uint32(r.Active), each: uint32(s.each), stages: uint32(s.stages),
		pitch: uint32(s.pitch), add: uint32(flag(add)),
	}
	a.w, a.wRow, a.wStep, _ = w.row(r.Experts)
	q.Launch(Launch{
		Module: pairsModule, Kernel: "experts_mix_" + w.Blocks.Type.String(), Grid: [3]int{s.blocks, y.Rows, 1}, Block: 32 * s.warps,
		Shared: s.shared, Args: unsafe.Pointer(a),
	})
}
