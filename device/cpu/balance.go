package cpu

import (
	"math"

	"apr/device"
)

// balanceOp adds the gradient that spreads tokens over experts. Probabilities are computed in float64 and rounded once.
type balanceOp struct {
	s        *Stream
	dz, z, c mat
	f        float64
	run      func(worker, lo, hi int)
}

// CountSlots: c[e] += the slots of expert e.
func (s *Stream) CountSlots(c device.Tensor, r device.Routing) {
	device.CheckCountSlots(c, r)
	if !s.begin() {
		return
	}
	m, starts := floats(c), ints(r.Starts)
	sum := m.row(0)
	for e := range sum {
		sum[e] += float32(starts[e+1] - starts[e])
	}
	s.end(device.OpCountSlots, 0)
}

// BalanceBackward: dz[t,e] += f·p[t,e]·(c[e] − Σ_j p[t,j]·c[j]), p[t] the softmax of z[t].
func (s *Stream) BalanceBackward(dz, z, c device.Tensor, f float64) {
	device.CheckBalanceBackward(dz, z, c, f)
	if !s.begin() {
		return
	}
	o := &s.ops.balance
	o.dz, o.z, o.c, o.f = floats(dz), floats(z), floats(c), f
	s.split(o.z.rows, rowGrain(o.z.cols), o.run)
	s.end(device.OpBalanceBackward, 0)
}

func (o *balanceOp) rows(_, lo, hi int) {
	c := o.c.row(0)
	for t := lo; t < hi; t++ {
		z, dz := o.z.row(t), o.dz.row(t)
		top, sum, mean := math.Inf(-1), 0.0, 0.0
		for _, v := range z {
			top = max(top, float64(v))
		}
		for e, v := range z {
			p := math.Exp(float64(v) - top)
			sum += p
			mean += p * float64(c[e])
		}
		mean /= sum
		for e, v := range z {
			dz[e] += float32(o.f * math.Exp(float64(v)-top) / sum * (float64(c[e]) - mean))
		}
	}
}
