package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/device/dry"
	"apr/tensor"
)

// Grouped products of many slots in bfloat16 have kernels of their own on compute capability 9.0. Blocks are expanded to bfloat16 before, of as
// many experts at a time as fit the memory that products share for that.

// serveSlots reports whether the kernels for many slots take experts' matrices [out, in].
func (d *Device) serveSlots(out, in, experts int) bool {
	w := kernel.Mat{Rows: out * experts, Cols: in, Stride: in, Type: d.act}
	x := kernel.Mat{Cols: out, Stride: out, Type: d.act}
	return d.capability() == manifest.Hopper && kernel.ExpertsSM90Serves(x, w, w, experts)
}

// narrowed returns what operation.narrow makes of t, but for its place.
func (d *Device) narrowed(t device.Tensor) kernel.Mat {
	if t.DType == d.act {
		return mat(t)
	}
	return kernel.Mat{Rows: t.Rows, Cols: t.Cols, Stride: t.Cols, Type: d.act}
}

// slotsFrom returns from how many slots on the kernels for many compute products. In 8-bit floats they are not those
// of the fewer: what 8-bit floats change is judged over short texts, too, so that only products of hardly any slots
// read the blocks as they are.
func slotsFrom(fp8 bool, experts int) int {
	if fp8 {
		return experts
	}
	return kernel.ExpertsSM90Slots(experts)
}

// manySlots reports whether the kernels for many slots compute y of x and w, or dx of dy and w.
func (d *Device) manySlots(y, x device.Tensor, w *weight, r device.Routing) bool {
	matrices := kernel.Mat{Cols: w.t.Cols, Stride: w.t.Cols, Type: d.act} // as they are expanded
	if w.parts == nil {
		matrices = mat(w.t)
	}
	return d.serveSlots(w.t.Rows/r.Experts, w.t.Cols, r.Experts) && x.Rows >= slotsFrom(w.fp8 != nil, r.Experts) &&
		y.DType == tensor.BF16 && kernel.ExpertsSM90Serves(mat(y), d.narrowed(x), matrices, r.Experts)
}

// manySlotsGrad is manySlots of a gradient of matrices.
func (d *Device) manySlotsGrad(dw, dy, x device.Tensor, r device.Routing) bool {
	return d.serveSlots(dy.Cols, x.Cols, r.Experts) && dy.Rows >= kernel.ExpertsSM90Slots(r.Experts) &&
		kernel.ExpertsSM90Serves(mat(dw), d.narrowed(dy), d.narrowed(x), r.Experts)
}

// manySlotsPlanned is manySlots, or manySlotsGrad, of a recorded product, whose operands are taken to be aligned and x of a weight's gradient
// to have no gaps.
func (d *Device) manySlotsPlanned(o dry.Op) bool {
	slots, out, in, want := o.M, o.N, o.K, tensor.BF16
	switch o.Kind {
	case device.OpGroupedInputGrad:
		out, in = o.K, o.N
	case device.OpGroupedWeightGrad:
		slots, out, in, want = o.K, o.M, o.N, tensor.F32
	}
	rows := o.OutStride%8 == 0 && (o.In != d.act || o.InStride%8 == 0)
	return d.serveSlots(out, in, o.Experts) && slots >= slotsFrom(o.FP8, o.Experts) && o.Out == want && rows &&
		(o.Expands || o.Weight == d.act.String() || o.Kind == device.OpGroupedWeightGrad)
}

// groupedMany multiplies the slots of each expert with its matrix.
func (s *Stream) groupedMany(
	name string, form kernel.GemmForm, y, x device.Tensor, w *weight, bias device.Tensor, add bool, r device.Routing,
) {
	if w.parts != nil && !s.expandsHere(w) {
		return
	}
	s.eachNarrow(x, func(lo, hi int) {
		y, x := y.RowRange(lo, hi), x.RowRange(lo, hi)
		if o := s.begin(name, y, x, w.t, bias, r.Starts); o != nil {
			o.sized(x.Rows, y.Cols, x.Cols, r.Experts)
			o.expertsMany(form, y, o.narrow(x), kernel.Mat{}, w, bias, add, r, lo)
			o.end()
		}
	})
}

// expertsMany adds to the operation the products of slots, from number `first` on, with the experts' matrices w, as
// many of them at a time as can be expanded. For rows see kernel.ExpertsSM90.
func (o *operation) expertsMany(
	form kernel.GemmForm, y device.Tensor, x, rows kernel.Mat, w *weight, bias device.Tensor, add bool, r device.Routing,
	first int,
) {
	step, out := r.Experts, w.t.Rows/r.Experts
	if w.parts != nil {
		step = slabExperts(r.Experts, int64(out)*o.dev.act.RowBytes(w.t.Cols), o.dev.expansion.Load().bytes)
	}
	for e := 0; e < r.Experts; e += step {
		end := min(e+step, r.Experts)
		matrices := mat(w.t)
		if w.parts != nil {
			matrices = o.expand(w, e*out, end*out)
		}
		o.dev.counts.products.Add(1)
		part := routing(r).Part(e, end)
		kernel.ExpertsSM90(o, form, mat(y), x, rows, matrices, biasOf(mat(bias), e, end), add, part, first)
	}
}

// groupedFP8 is GroupedMatMul of many slots in 8-bit floats, to which blocks of experts are expanded; round makes rows
// of `in` of them from rows [lo,hi) of x.
func (s *Stream) groupedFP8(
	y, x device.Tensor, in int, w *weight, bias device.Tensor, r device.Routing,
	round func(o *operation, lo, hi int) (kernel.Bytes, kernel.Mat),
) {
	if !s.expandsHere(w) {
		return
	}
	piece := fp8Piece(x.Rows, in)
	for lo := 0; lo < x.Rows; lo += piece {
		hi := min(lo+piece, x.Rows)
		o := s.begin("GroupedMatMul", y, x, w.t, bias, r.Starts)
		if o == nil {
			return
		}
		o.sized(hi-lo, y.Cols, in, r.Experts)
		x8, sx := round(o, lo, hi)
		o.expertsFP8(y.RowRange(lo, hi), x8, sx, kernel.Mat{}, w, bias, r, lo)
		o.end()
	}
}

// expertsFP8 is expertsMany of GroupedMatMul in 8-bit floats.
func (o *operation) expertsFP8(
	y device.Tensor, x kernel.Bytes, scale, rows kernel.Mat, w *weight, bias device.Tensor, r device.Routing, first int,
) {
	out := w.t.Rows / r.Experts
	step := slabExperts(r.Experts, int64(out)*int64(w.t.Cols), o.dev.expansion.Load().bytes-fp8Rows)
	for e := 0; e < r.Experts; e += step {
		end := min(e+step, r.Experts)
		w8, sw := o.expandFP8(w, e*out, end*out), rowsOf(w.fp8.scale, e*out, end*out)
		o.dev.counts.products.Add(1)
		kernel.ExpertsE4M3(o, mat(y), x, scale, rows, w8, sw, biasOf(mat(bias), e, end), routing(r).Part(e, end), first)
	}
}

var _ device.ExpertRunner = (*Stream)(nil)

// RunExperts takes rows of tokens on their way to the products of many slots, where gate and up are multiplied in the
// same way; where down is multiplied in 8-bit floats, too, act(g)·u is never anything else: see device.ExpertRunner.
func (s *Stream) RunExperts(ys, glu, gateUp, y device.Tensor, e device.ExpertNets, r device.Routing) bool {
	device.CheckRunExperts(ys, glu, gateUp, y, e, r)
	if !s.gateExperts(glu.Cols, gateUp, y, e, r) {
		return false
	}
	down := e.Down.(*weight)
	if down.fp8 == nil || !s.dev.manySlots(ys, glu, down, r) || gateUp.DType != tensor.BF16 {
		s.GLU(glu, gateUp, e.Act)
		s.GroupedMatMul(ys, glu, down, e.DownBias, r)
		return true
	}
	s.groupedFP8(ys, gateUp, glu.Cols, down, e.DownBias, r, func(o *operation, lo, hi int) (kernel.Bytes, kernel.Mat) {
		return o.roundGLU(gateUp.RowRange(lo, hi), e.Act)
	})
	return true
}

// gateExperts computes gateUp = [g|u] of f columns each, or reports false.
func (s *Stream) gateExperts(f int, gateUp, y device.Tensor, e device.ExpertNets, r device.Routing) bool {
	slots := y
	slots.Rows = gateUp.Rows
	gate, up := e.Gate.(*weight), e.Up.(*weight)
	low := gate.fp8 != nil
	for _, m := range []*weight{gate, up} {
		served := y.DType == tensor.BF16 && m.host == nil && s.dev.manySlots(gateUp.ColRange(0, f), slots, m, r)
		served = served && (m.fp8 != nil) == low && (!low || fp8Piece(y.Rows, y.Cols) >= y.Rows)
		if !served || m.parts != nil && !s.expandsHere(m) {
			return false
		}
	}
	o := s.begin("GateExperts", gateUp, y, gate.t, up.t, e.GateBias, e.UpBias, r.Rows, r.Starts)
	if o == nil {
		return true // nothing is done after an error
	}
	o.sized(gateUp.Rows, 2*f, y.Cols, r.Experts)
	var x8 kernel.Bytes
	var scale kernel.Mat
	if low {
		x8, scale = o.roundRows(y)
	}
	for i, m := range []*weight{gate, up} {
		half, bias := gateUp.ColRange(i*f, (i+1)*f), []device.Tensor{e.GateBias, e.UpBias}[i]
		if low {
			o.expertsFP8(half, x8, scale, mat(r.Rows), m, bias, r, 0)
		} else {
			o.expertsMany(kernel.GemmNT, half, mat(y), mat(r.Rows), m, bias, false, r, 0)
		}
	}
	o.end()
	return true
}

// slabExperts returns of how many experts the matrices, of so many bytes each, are expanded at a time into size bytes: all, or about equal shares.
func slabExperts(experts int, each, size int64) int {
	most := max(1, int(size/max(1, each)))
	slabs := (experts + most - 1) / most
	return (experts + slabs - 1) / slabs
}

// biasOf returns rows [lo,hi) of m, which may be none.
func biasOf(m kernel.Mat, lo, hi int) kernel.Mat {
	if !m.IsZero() {
		m.Ptr += uint64(lo * m.Stride * m.Type.BlockBytes())
		m.Rows = hi - lo
	}
	return m
}
