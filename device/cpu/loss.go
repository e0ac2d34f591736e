package cpu

import (
	"math"

	"apr/device"
	"apr/device/cpu/vec"
)

// lossOp is the distillation loss by rows. The sums of a row are kept and added up in ascending order afterwards.
type lossOp struct {
	s          *Stream
	grad, z, t mat
	targets    []int32
	drawn      []int32 // of a teacher of draws, as many of each row; else empty, and so is t where there is no teacher
	spec       device.LossSpec
	kind       device.Divergence // spec.Divergence, with the limits of JSD taken
	mix        vec.Mix
	rows       []rowLoss
	run        func(worker, lo, hi int)
}

// rowLoss is what one position adds to the record.
type rowLoss struct {
	ce, d, entropy float64
	agree          bool
}

// lossGrain is the rows of one task.
const lossGrain = 4

// Loss adds the sums over the rows to the record and, if grad is not zero, writes InvN·∂/∂z of the loss to grad.
//
// With m the maximum of a row, S_t = Σe^{(t−m_t)/T}, S_T = Σe^{(z−m_z)/T}, S_1 = Σe^{z−m_z} and
// A = Σe^{(t−m_t)/T}[(t−m_t)−(z−m_z)]: KL(p‖Q) = A/(T·S_t) + ln S_T − ln S_t and CE = m_z + ln S_1 − z_y, so that a
// constant added to t or z cancels before anything is rounded. t is left as it is.
func (s *Stream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	device.CheckLoss(grad, z, t, targets, spec)
	if !s.begin() {
		return
	}
	o := &s.ops.loss
	o.grad, o.z, o.t, o.targets, o.drawn, o.spec = optional(grad), floats(z), optional(t), ints(targets), nil, spec
	if !s.inRange("Loss", o.targets, o.z.cols) {
		return
	}
	o.choose()
	s.sumLoss(o)
	s.end(device.OpLoss, 0)
}

// sumLoss computes the rows of o and adds their sums to the record.
func (s *Stream) sumLoss(o *lossOp) {
	if cap(o.rows) < o.z.rows {
		o.rows = make([]rowLoss, o.z.rows)
	}
	o.rows = o.rows[:o.z.rows]
	s.split(o.z.rows, lossGrain, o.run)
	for i := range o.rows {
		r := &o.rows[i]
		s.scalars.CE += r.ce
		s.scalars.D += r.d
		s.scalars.Entropy += r.entropy
		if r.agree {
			s.scalars.Agree++
		}
	}
	s.scalars.Positions += int64(o.z.rows)
}

// choose sets the divergence to compute and the coefficients of its mixture.
func (o *lossOp) choose() {
	o.kind = o.spec.Divergence
	beta := o.spec.Beta
	switch {
	case o.kind == device.JSD && beta == 0:
		o.kind = device.ForwardKL
	case o.kind == device.JSD && beta == 1:
		o.kind = device.ReverseKL
	}
	b, rest := float32(beta), float32(1-beta)
	switch o.kind {
	case device.JSD:
		o.mix = vec.Mix{Beta: b, DP: b, DQ: rest, HLog: rest}
	case device.SkewForward:
		o.mix = vec.Mix{Beta: b, DP: 1, HP: -rest}
	case device.SkewReverse:
		o.mix = vec.Mix{Beta: rest, DQ: 1, HLog: 1, HQ: -b}
	}
}

func (o *lossOp) piece(worker, lo, hi int) {
	l, capped := &o.s.local[worker], o.spec.Cap > 0 && o.grad.cols > 0
	for r := lo; r < hi; r++ {
		if capped { // z may be the gradient's place
			l.capped = grow(l.capped, o.z.cols)
			copy(l.capped, o.z.row(r))
		}
		switch {
		case len(o.drawn) > 0:
			o.rows[r] = o.ofDraws(r)
		case o.t.cols == 0:
			o.rows[r] = o.plain(r)
		default:
			o.rows[r] = o.distil(worker, r)
		}
		if capped {
			o.s.isa.CapGrad(o.grad.row(r), l.capped, float32(o.spec.Cap))
		}
	}
}

// plain is a row without teacher: cross-entropy alone.
func (o *lossOp) plain(r int) (out rowLoss) {
	isa, z, y := o.s.isa, o.z.row(r), int(o.targets[r])
	top := isa.Max(z)
	zy := float64(z[y])
	sum := isa.LossSums(z, z, top, top, 1).Z1
	out.ce = float64(top) + math.Log(sum) - zy
	if o.grad.cols > 0 {
		w := (1 - o.spec.Alpha) * o.s.scalars.InvN
		grad := o.grad.row(r)
		isa.LossGrad(grad, z, z, top, top, 1, float32(w/sum), 0, 0)
		grad[y] -= float32(w)
	}
	return out
}

// distil is a row with teacher.
func (o *lossOp) distil(worker, r int) (out rowLoss) {
	isa, z, t, y := o.s.isa, o.z.row(r), o.t.row(r), int(o.targets[r])
	mz, mt := isa.Max(z), isa.Max(t)
	zy := float64(z[y])
	temp := o.spec.Temperature
	invT := float32(1 / temp)
	sums := isa.LossSums(z, t, mz, mt, invT)
	lnT, lnZ := math.Log(sums.T), math.Log(sums.ZT)
	out.ce = float64(mz) + math.Log(sums.Z1) - zy
	out.entropy = lnT - sums.E/(temp*sums.T)
	if i := isa.Index(z, mz); i >= 0 && t[i] == mt {
		out.agree = isa.Index(t[:i+1], mt) == i
	}
	invN, alpha := o.s.scalars.InvN, o.spec.Alpha
	a := (1 - alpha) * invN
	if o.kind == device.ForwardKL {
		out.d = sums.A/(temp*sums.T) + lnZ - lnT
		if o.grad.cols > 0 {
			w := alpha * temp * invN
			isa.LossGrad(o.grad.row(r), z, t, mz, mt, invT, float32(a/sums.Z1), float32(w/sums.ZT), float32(w/sums.T))
			o.grad.row(r)[y] -= float32(a)
		}
		return out
	}
	c := vec.Centre{
		MZ: mz, MT: mt, InvT: invT, InvSumZ: float32(1 / sums.ZT), InvSumT: float32(1 / sums.T), LogRatio: float32(lnZ - lnT),
	}
	l := &o.s.local[worker]
	l.row = grow(l.row, len(z))
	d, sumH := o.terms(l.row, z, t, &c)
	out.d = d
	if o.grad.cols > 0 {
		isa.DivGrad(o.grad.row(r), z, l.row, &c, float32(a/sums.Z1), float32(alpha*temp*invN), float32(sumH))
		o.grad.row(r)[y] -= float32(a)
	}
	return out
}

// terms writes hᵢ of the divergence to h and returns D and Σh.
func (o *lossOp) terms(h, z, t []float32, c *vec.Centre) (d, sumH float64) {
	isa := o.s.isa
	switch o.kind {
	case device.ReverseKL:
		return isa.ReverseTerms(h, z, t, c)
	case device.TVD:
		return isa.TVDTerms(h, z, t, c)
	case device.JSD, device.SkewForward, device.SkewReverse:
		return isa.MixTerms(h, z, t, c, &o.mix)
	}
	panic("cpu: Loss: unknown divergence")
}
