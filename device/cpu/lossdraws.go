package cpu

import (
	"math"

	"apr/device"
)

var _ device.DrawsLoss = (*Stream)(nil)

// LossOfDraws is Loss with a teacher of draws: see device.DrawsLoss.
func (s *Stream) LossOfDraws(grad, z, drawn, targets device.Tensor, n int, spec device.LossSpec) {
	device.CheckLossOfDraws(grad, z, drawn, targets, n, spec)
	if !s.begin() {
		return
	}
	o := &s.ops.loss
	o.grad, o.z, o.t, o.targets, o.drawn, o.spec = optional(grad), floats(z), mat{}, ints(targets), ints(drawn), spec
	if s.inRange("LossOfDraws", o.targets, o.z.cols) && s.inRange("LossOfDraws", o.drawn, o.z.cols) {
		s.sumLoss(o)
		s.end(device.OpLossOfDraws, 0)
	}
}

// ofDraws is a row with a teacher of draws, p = count/n: D = Σ p·(ln p − ln Q) over the drawn ids, whose gradient
// is less by αT/N·p than where p is 0.
func (o *lossOp) ofDraws(r int) (out rowLoss) {
	isa, z, y, n := o.s.isa, o.z.row(r), int(o.targets[r]), len(o.drawn)/o.z.rows
	drawn := o.drawn[r*n : (r+1)*n]
	mz, zy, temp := isa.Max(z), float64(z[y]), o.spec.Temperature
	invT := float32(1 / temp)
	sums := isa.LossSums(z, z, mz, mz, invT)
	lnZ := math.Log(sums.ZT)
	out.ce = float64(mz) + math.Log(sums.Z1) - zy
	best, most := 0, 0
	eachDrawn(drawn, func(id, count int) {
		p := float64(count) / float64(n)
		out.entropy -= p * math.Log(p)
		out.d += p * (math.Log(p) - (float64(z[id])-float64(mz))/temp + lnZ)
		if count > most {
			best, most = id, count
		}
	})
	out.agree = isa.Index(z, mz) == best
	if o.grad.cols == 0 {
		return out
	}
	grad, a, w := o.grad.row(r), (1-o.spec.Alpha)*o.s.scalars.InvN, o.spec.Alpha*temp*o.s.scalars.InvN
	isa.LossGrad(grad, z, z, mz, mz, invT, float32(a/sums.Z1), float32(w/sums.ZT), 0)
	grad[y] -= float32(a)
	eachDrawn(drawn, func(id, count int) { grad[id] -= float32(w * float64(count) / float64(n)) })
	return out
}

// eachDrawn calls f for each id that was drawn, in ascending order, and how often it was.
func eachDrawn(drawn []int32, f func(id, count int)) {
	for lo := 0; lo < len(drawn); {
		hi := lo + 1
		for hi < len(drawn) && drawn[hi] == drawn[lo] {
			hi++
		}
		f(int(drawn[lo]), hi-lo)
		lo = hi
	}
}
