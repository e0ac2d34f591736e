//go:build emulate

package kernel

import (
	"fmt"
	"math"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// unit32 and unit16 are the largest relative errors of one rounding to float32 and bfloat16.
const (
	unit32 = 0x1p-24
	unit16 = 0x1p-8
)

// lossInvN is 1/N of the tests: not the reciprocal of their rows, which it need not be.
const lossInvN = 1.0 / 7

// divergences are all six, those of mixtures with a parameter, and the ends where one becomes another.
var divergences = []device.LossSpec{
	{Divergence: device.ForwardKL}, {Divergence: device.ReverseKL}, {Divergence: device.JSD, Beta: .3}, {Divergence: device.TVD},
	{Divergence: device.SkewForward, Beta: .4}, {Divergence: device.SkewReverse, Beta: .4},
}

var divergenceEnds = []device.LossSpec{
	{Divergence: device.JSD, Beta: 0}, {Divergence: device.JSD, Beta: 1}, {Divergence: device.JSD, Beta: .5},
	{Divergence: device.SkewForward, Beta: 0}, {Divergence: device.SkewForward, Beta: 1}, {Divergence: device.SkewForward, Beta: .1},
	{Divergence: device.SkewReverse, Beta: 0}, {Divergence: device.SkewReverse, Beta: 1}, {Divergence: device.SkewReverse, Beta: .1},
}

func lossName(s device.LossSpec) string {
	names := [...]string{"forward KL", "reverse KL", "JSD", "TVD", "skew forward", "skew reverse"}
	return fmt.Sprintf("%s β %g, α %g, T %g", names[s.Divergence], s.Beta, s.Alpha, s.Temperature)
}

// lossCase is one call of Loss with what it should give.
type lossCase struct {
	z, t    ref.Mat // t.V nil: no teacher
	targets []int
	spec    device.LossSpec
}

// start begins a step's record.
func (l *lab) start() {
	l.op()
	*l.rec() = Record{InvN: lossInvN}
}

// randomLoss makes logits with offsets, and targets.
func (l *lab) randomLoss(rows, cols int, scale, offset float64, spec device.LossSpec) lossCase {
	c := lossCase{z: l.random(rows, cols, scale), t: l.random(rows, cols, scale), spec: spec}
	for i := range c.z.V {
		c.z.V[i] += offset
		c.t.V[i] -= offset
	}
	for range rows {
		c.targets = append(c.targets, l.rng.IntN(cols))
	}
	return c
}

// round makes the logits what float32 holds.
func (c *lossCase) round() {
	for _, m := range []ref.Mat{c.z, c.t} {
		for i, v := range m.V {
			m.V[i] = float64(float32(v))
		}
	}
}

// teacher places t, if there is one.
func (c *lossCase) teacher(l *lab) Mat {
	if c.t.V == nil {
		return Mat{}
	}
	return l.in(tensor.F32, c.t)
}

// check runs c with every place for the gradient and judges sums and gradients.
func (c *lossCase) check(t *testing.T, l *lab) {
	t.Helper()
	c.round()
	rows, cols := c.z.Rows, c.z.Cols
	want, dz := ref.Loss(c.z, c.t, c.targets, lossInvN, c.spec)
	zt, tt, yt := l.in(tensor.F32, c.z), c.teacher(l), l.ids(c.targets)
	over := l.inout(tensor.F32, c.z)
	var wide ref.Mat
	for _, g := range []struct {
		name    string
		grad, z Mat
	}{
		{"no gradient", Mat{}, zt}, {"float32", l.out(tensor.F32, rows, cols), zt},
		{"bfloat16", l.out(tensor.BF16, rows, cols), zt}, {"over z", over, over},
	} {
		l.start()
		Loss(l, g.grad, g.z, tt, yt, c.spec)
		name := fmt.Sprintf("%s, %d×%d, %s", lossName(c.spec), rows, cols, g.name)
		c.checkSums(t, name, l.rec(), want)
		if !g.grad.IsZero() {
			c.checkGrad(t, name, l.get(g.grad), dz, g.grad.Type)
		}
		switch g.name {
		case "float32":
			wide = l.get(g.grad)
		case "bfloat16": // rounded once
			for i, v := range wide.V {
				wide.V[i] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(v))))
			}
			near.Check(t, name+", rounded", l.get(g.grad).V, wide.V, 0)
		}
	}
}

// worst is how much of its tolerance any comparison of this file needed.
var worst struct{ ce, d, entropy, wide, narrow float64 }

func (c *lossCase) checkSums(t *testing.T, name string, got *Record, want device.Scalars) {
	t.Helper()
	if got.Positions != want.Positions || got.Agree != want.Agree || got.Fault != 0 {
		t.Errorf("%s: %d positions, %d agree, fault %d; want %d and %d", name, got.Positions, got.Agree, got.Fault, want.Positions, want.Agree)
	}
	n := math.Max(1, float64(want.Positions))
	for _, s := range []struct {
		name      string
		got, want float64
		worst     *float64
	}{{"CE", got.CE, want.CE, &worst.ce}, {"D", got.D, want.D, &worst.d}, {"entropy", got.Entropy, want.Entropy, &worst.entropy}} {
		tol := 24 * unit32 * (1 + math.Abs(s.want/n))
		near.Check(t, name+": mean "+s.name, []float64{s.got / n}, []float64{s.want / n}, tol)
		*s.worst = math.Max(*s.worst, math.Abs(s.got-s.want)/n/tol)
	}
}

// checkGrad judges a gradient against the size of the terms whose differences make it.
func (c *lossCase) checkGrad(t *testing.T, name string, got, want ref.Mat, d tensor.DType) {
	t.Helper()
	tol, most := 35*unit32, &worst.wide
	if d == tensor.BF16 {
		tol, most = 2*unit16+3*unit32, &worst.narrow
	}
	for r := range want.Rows {
		if c.targets[r] < 0 || c.targets[r] >= c.z.Cols {
			continue
		}
		scale := c.scale(r)
		g, w := make([]float64, want.Cols), make([]float64, want.Cols)
		for i, s := range scale {
			g[i], w[i] = got.Row(r)[i]/s, want.Row(r)[i]/s
			*most = math.Max(*most, math.Abs(g[i]-w[i])/tol)
		}
		near.Check(t, fmt.Sprintf("%s: gradient, row %d, in parts of its terms", name, r), g, w, tol)
	}
}

// scale returns (1−α)(q+e_y) + αT(Q+p+|h|+QΣ|h|), |h| at most Q|ln(Q/p)|, and at least its root mean square, for row r.
func (c *lossCase) scale(r int) []float64 {
	s, z := c.spec, c.z.Row(r)
	q := ref.LogSoftmax(z, 1)
	out, squares := make([]float64, len(z)), 0.0
	terms := make([]float64, len(z))
	if s.Alpha > 0 {
		lp, lq, sum := ref.LogSoftmax(c.t.Row(r), s.Temperature), ref.LogSoftmax(z, s.Temperature), 0.0
		for i := range terms {
			ratio := math.Abs(lq[i] - lp[i])
			if s.Divergence != device.ReverseKL && s.Beta < 1 && !(s.Divergence == device.SkewReverse && s.Beta == 0) {
				ratio = math.Min(ratio, 10)
			}
			terms[i] = math.Exp(lq[i]) * ratio
			sum += terms[i]
		}
		for i := range terms {
			terms[i] += math.Exp(lp[i]) + math.Exp(lq[i])*(1+sum)
		}
	}
	for i := range out {
		out[i] = (1-s.Alpha)*math.Exp(q[i]) + s.Alpha*s.Temperature*terms[i]
		if i == c.targets[r] {
			out[i] += 1 - s.Alpha
		}
		out[i] *= lossInvN
		squares += out[i] * out[i]
	}
	for i := range out {
		out[i] = math.Max(out[i], math.Sqrt(squares/float64(len(out))))
	}
	return out
}
