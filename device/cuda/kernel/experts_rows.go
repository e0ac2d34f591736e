package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// expertGatedArgs is struct ExpertGatedArgs of experts_rows.cu.
type expertGatedArgs struct {
	y, x, gate, up, gateBias, upBias, starts, rows           uint64
	yStride, xStride, gateRow, upRow, gateStep, upStep, bias int64
	experts, f, cols, act, gateType, upType                  uint32
}

// expertMixArgs is struct ExpertMixArgs of experts_rows.cu.
type expertMixArgs struct {
	y, x, w, bias, weights, starts, slots          uint64
	yStride, xStride, weightsStride, wStride, step int64
	biasStride                                     int64
	experts, h, cols, active, dtype, add           uint32
}

// expertActs are the activations of experts_gated_rows.
var expertActs = map[device.Activation]uint32{device.SiLU: 0, device.GELUTanh: 1, device.OSS: 2}

// ExpertsFewServes reports whether ExpertsGatedRows and ExpertsMixRows compute the experts of tokens y [n, h] with
// matrices gate, up [f, h] and down [h, f]. Matrices of which one kernel has other sums than that of their single product are declined.
func ExpertsFewServes(dst, y, glu Mat, gate, up, down Experts, act device.Activation, r Routing) bool {
	_, known := expertActs[act]
	return known && y.Rows > 0 && y.Rows <= ExpertRowTokens && r.Active <= warpsOfBlock && y.Type == tensor.BF16 && dst.Type == tensor.BF16 &&
		expertsRowsServe(y, gate) && expertsRowsServe(y, up) && expertsRowsServe(glu, down) &&
		(gate.Blocks.Type == up.Blocks.Type || !pairsServe(gate, 1) && !pairsServe(up, 1)) && pairsServe(down, 1) == pairsServe(down, r.Active)
}

// row returns address, row, step and type of matrices in products of few slots.
func (w Experts) row(experts int) (ptr uint64, stride, step int64, dtype uint32) {
	out, _ := w.shape(experts)
	if w.Plain.IsZero() {
		need(ExpertsServe(w.Blocks.Type) && DequantizeServes(w.Blocks), "Experts", "type or alignment")
		ptr, stride, dtype = w.Blocks.Ptr, int64(w.Blocks.RowBytes), expertTypes[w.Blocks.Type]
	} else {
		need(w.Plain.Type == tensor.BF16, "Experts", "types differ")
		ptr, stride, dtype = w.Plain.Ptr, int64(w.Plain.Stride*w.Plain.Type.BlockBytes()), plainExperts
	}
	return ptr, stride, int64(out) * stride, dtype
}

// ExpertsGatedRows computes y[j] = act(g)·u, g = Gate_e·x[t] (+ bias), u = Up_e·x[t] (+ bias), of the slots j of few
// tokens t. The bits are those of Gather, ExpertsNT twice and GLU. Bytes moved: the matrices of the chosen experts,
// once for each slot.
func ExpertsGatedRows(q Queue, y, x Mat, gate, up Experts, gateBias, upBias Mat, act device.Activation, r Routing) {
	f, cols := gate.shape(r.Experts)
	f2, cols2 := up.shape(r.Experts)
	need(f == f2 && cols == cols2 && x.Cols == cols && y.Cols == f && y.Rows == x.Rows*r.Active, "Experts", "shapes differ")
	need(gateBias.IsZero() == upBias.IsZero() && gateBias.Stride == upBias.Stride, "Experts", "biases differ")
	if pairsServe(gate, 1) {
		need(gate.Blocks.Type == up.Blocks.Type, "Experts", "types differ")
		expertsGatedPairs(q, y, x, gate, up, gateBias, upBias, act, r)
		return
	}
	a := &expertGatedArgs{
		y: y.Ptr, x: x.Ptr, gateBias: gateBias.Ptr, upBias: upBias.Ptr, starts: r.Starts.Ptr, rows: r.Rows.Ptr, yStride: int64(y.Stride),
		xStride: int64(x.Stride), bias: int64(gateBias.Stride), experts: uint32(r.Experts), f: uint32(f), cols: uint32(cols), act: expertActs[act],
	}
	a.gate, a.gateRow, a.gateStep, a.gateType = gate.row(r.Experts)
	a.up, a.upRow, a.upStep, a.upType = up.row(r.Experts)
	q.Launch(Launch{
		Module: expertsRows, Kernel: "experts_gated_rows", Grid: [3]int{ceil(f, warpsOfBlock), y.Rows, 1}, Block: 256, Args: unsafe.Pointer(a),
	})
}

// ExpertsMixRows computes y[t] = Σ_s weights[t,s]·(W_e·x[j] (+ bias)), j = Slots[t·Active+s], of few tokens;
// with add the sum is added to y[t]. The bits are those of ExpertsNT followed by Combine. Bytes moved: the matrices of
// the chosen experts, once for each slot.
func ExpertsMixRows(q Queue, y, x Mat, w Experts, bias, weights Mat, r Routing, add bool) {
	h, cols := w.shape(r.Experts)
	need(x.Cols == cols && y.Cols == h && x.Rows == y.Rows*r.Active && r.Active <= warpsOfBlock, "Experts", "shapes differ")
	if pairsServe(w, r.Active) {
		expertsMixPairs(q, y, x, w, bias, weights, r, add)
		return
	}
	a := &expertMixArgs{
		y: y.Ptr, x: x.Ptr, bias: bias.Ptr, weights: weights.Ptr, starts: r.Starts.Ptr, slots: r.Slots.Ptr, yStride: int64(y.Stride),
		xStride: int64(x.Stride), weightsStride: int64(weights.Stride), biasStride: int64(bias.Stride),
		experts: uint32(r.Experts), h: uint32(h), cols: uint32(cols), active: uint32(r.Active), add: uint32(flag(add)),
	}
	a.w, a.wStride, a.step, a.dtype = w.row(r.Experts)
	q.Launch(Launch{Module: expertsRows, Kernel: "experts_mix_rows", Grid: [3]int{h, y.Rows, 1}, Block: 32 * r.Active, Args: unsafe.Pointer(a)})
}
