package cpu

import (
	"math"

	"apr/device"
	"apr/device/cpu/vec"
)

// paramBlock is how many elements of a parameter one task takes; part of the summation order of Verdict.
const paramBlock = 8192

// paramPiece is elements [lo, hi) of a parameter.
type paramPiece struct {
	p      *device.Param
	lo, hi int
}

// paramsOp works on blocks of all parameters.
type paramsOp struct {
	s             *Stream
	pieces        []paramPiece
	sums          []float64
	decayed, bare vec.AdamW
	norm, adam    func(worker, lo, hi int)
}

// cut lists the blocks of params.
func (o *paramsOp) cut(params []*device.Param) {
	o.pieces = o.pieces[:0]
	for _, p := range params {
		n := p.Rows * p.Cols
		for lo := 0; lo < n; lo += paramBlock {
			o.pieces = append(o.pieces, paramPiece{p, lo, min(n, lo+paramBlock)})
		}
	}
}

// Verdict computes the step's loss, the gradient norm over all params and the clip scale into the record, and whether the
// step is refused. Squares are summed in float64 over blocks of 8192 elements, and the blocks in order.
func (s *Stream) Verdict(params []*device.Param) {
	device.CheckVerdict(params)
	if !s.begin() {
		return
	}
	o := &s.ops.params
	o.cut(params)
	if cap(o.sums) < len(o.pieces) {
		o.sums = make([]float64, len(o.pieces))
	}
	o.sums = o.sums[:len(o.pieces)]
	s.split(len(o.pieces), 1, o.norm)
	total := 0.0
	for _, sum := range o.sums {
		total += sum
	}
	sc := &s.scalars
	sc.GradNorm = math.Sqrt(total)
	sc.Scale = 1
	if sc.MaxNorm > 0 {
		sc.Scale = min(1, sc.MaxNorm/(sc.GradNorm+1e-6))
	}
	sc.Loss = sc.CEWeight*(sc.CE*sc.InvN) + sc.DWeight*(sc.D*sc.InvN)
	sc.Finite = finite(sc.CE) && finite(sc.D) && finite(sc.GradNorm)
	for i, w := range sc.Weights {
		if w != 0 {
			sc.Loss += w * (sc.Sums[i] * sc.InvN)
		}
		sc.Finite = sc.Finite && finite(sc.Sums[i])
	}
	sc.Diverged = sc.Finite && sc.MaxLoss > 0 && sc.Loss > sc.MaxLoss
	s.end(device.OpVerdict, 0)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func (o *paramsOp) squares(_, lo, _ int) {
	p := &o.pieces[lo]
	m := floats(p.p.Grad)
	o.sums[lo] = o.s.isa.SumSquares(m.flat()[p.lo:p.hi])
}

// AdamW updates params as the record says, and leaves all untouched if the verdict refused the step.
func (s *Stream) AdamW(params []*device.Param, a device.AdamW) {
	device.CheckAdamW(params)
	if !s.begin() {
		return
	}
	sc := &s.scalars
	if !sc.Refused() {
		o := &s.ops.params
		o.cut(params)
		o.bare = vec.AdamW{
			Decay: 1,
			Beta1: float32(a.Beta1), Rest1: float32(1 - a.Beta1), Beta2: float32(a.Beta2), Rest2: float32(1 - a.Beta2),
			Scale: float32(sc.Scale), Step: float32(sc.LR / sc.BiasCorr1), InvBias: float32(1 / math.Sqrt(sc.BiasCorr2)),
			Eps: float32(a.Eps),
		}
		o.decayed = o.bare
		o.decayed.Decay = float32(1 - sc.LR*a.WeightDecay)
		s.split(len(o.pieces), 1, o.adam)
	}
	s.end(device.OpAdamW, 0)
}

func (o *paramsOp) update(_, i, _ int) {
	p := &o.pieces[i]
	w, g, m, v := floats(p.p.Value), floats(p.p.Grad), floats(p.p.M), floats(p.p.V)
	c := &o.bare
	if p.p.Decay {
		c = &o.decayed
	}
	lo, hi := p.lo, p.hi
	o.s.isa.AdamW(w.flat()[lo:hi], g.flat()[lo:hi], m.flat()[lo:hi], v.flat()[lo:hi], c)
}
