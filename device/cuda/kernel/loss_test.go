//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func TestLoss(t *testing.T) {
	for _, cols := range []int{1, 2, 5, 31, 257, 4096, 5000} {
		t.Run(fmt.Sprint(cols), func(t *testing.T) {
			l := newLab(t)
			for _, spec := range divergences {
				for _, spec.Alpha = range []float64{0, .5, 1} {
					for _, spec.Temperature = range []float64{1, 2, .7} {
						c := l.randomLoss(2, cols, 3, 1000, spec)
						c.check(t, l)
					}
				}
			}
		})
	}
	t.Logf("of their tolerances: %+v", worst)
}

func TestLossLayouts(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) {
		for _, cols := range []int{3, 44, 257, 4099, 8200} {
			for _, spec := range append(divergenceEnds, divergences...) {
				spec.Alpha, spec.Temperature = .7, 2
				c := l.randomLoss(2, cols, 2, 0, spec)
				c.check(t, l)
			}
		}
	})
}

// TestLossMixedLayouts: one matrix of several lies where four elements cannot travel at once.
func TestLossMixedLayouts(t *testing.T) {
	l := newLab(t)
	c := l.randomLoss(2, 4100, 2, 0, device.LossSpec{Alpha: .5, Temperature: 2})
	c.round()
	want, dz := ref.Loss(c.z, c.t, c.targets, lossInvN, c.spec)
	for _, odd := range []string{"z", "t", "gradient", "rows"} {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			place := func(name string) {
				l.lead, l.gap = 0, 0
				if odd == name {
					l.lead, l.gap = 1, 3
				}
				if odd == "rows" {
					l.lead, l.gap = 4, 1
				}
			}
			place("z")
			zt := l.in(tensor.F32, c.z)
			place("t")
			tt := l.in(tensor.F32, c.t)
			place("gradient")
			grad := l.out(d, 2, 4100)
			l.start()
			Loss(l, grad, zt, tt, l.ids(c.targets), c.spec)
			c.checkSums(t, odd, l.rec(), want)
			c.checkGrad(t, odd, l.get(grad), dz, d)
		}
	}
}

// TestLossAlone: without teacher there is no D, no entropy and no agreement.
func TestLossAlone(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) {
		for _, cols := range []int{1, 31, 256, 5000} {
			c := l.randomLoss(3, cols, 3, 100, device.LossSpec{Temperature: 1})
			c.t = ref.Mat{}
			c.check(t, l)
		}
	})
}

// TestLossCapped: the gradient over logits before their soft-cap, of every divergence, of whole slices and of targets in them.
func TestLossCapped(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) {
		for _, cols := range []int{3, 257, 4100, 8200} {
			for _, spec := range append(divergenceEnds, divergences...) {
				for _, spec.Alpha = range []float64{0, .7} {
					spec.Temperature, spec.Cap = 2, 5
					c := l.randomLoss(2, cols, 3, 0, spec)
					for i, z := range c.z.V {
						c.z.V[i] = spec.Cap * math.Tanh(z/spec.Cap)
					}
					c.check(t, l)
				}
			}
		}
	})
}

// TestLossManySlices: more slices than a warp has lanes, and more rows than a round takes.
func TestLossManySlices(t *testing.T) {
	l := newLab(t)
	for _, d := range []device.Divergence{device.ForwardKL, device.ReverseKL} {
		spec := device.LossSpec{Alpha: .5, Temperature: 1, Divergence: d}
		c := l.randomLoss(1, 34*lossSlice+132, 3, 0, spec)
		c.targets[0] = c.z.Cols - 1
		c.z.V[5], c.z.V[32*lossSlice+9], c.t.V[5] = 20, 20, 20 // agree: of one lane's two slices the first
		c.check(t, l)
	}
	const rows = lossRows + 5
	c := l.randomLoss(rows, 3, 3, 10, device.LossSpec{Alpha: .5, Temperature: 2})
	c.round()
	want, dz := ref.Loss(c.z, c.t, c.targets, lossInvN, c.spec)
	grad := l.out(tensor.F32, rows, 3)
	l.start()
	Loss(l, grad, l.in(tensor.F32, c.z), l.in(tensor.F32, c.t), l.ids(c.targets), c.spec)
	c.checkSums(t, "rounds", l.rec(), want)
	c.checkGrad(t, "rounds", l.get(grad), dz, tensor.F32)
}

// TestLossCharacters: logits of every character that a model may give, finite or impossible.
func TestLossCharacters(t *testing.T) {
	for _, g := range []struct {
		name               string
		scale, offset, gap float64
		impossible         int // every which id the teacher never gives; 0: none
		skip               func(s device.LossSpec) bool
	}{
		{name: "equal logits"},
		{name: "constants added", scale: 2, offset: 1e4},
		{name: "underflow", scale: 60},
		{name: "one id takes all", scale: 3000, skip: func(s device.LossSpec) bool { // where Q is 0 the reference does not see that pQ/Q is p
			return s.Beta == 0 && (s.Divergence == device.SkewForward || s.Divergence == device.SkewReverse)
		}},
		{name: "z near t", scale: 3, gap: 1e-3, skip: func(s device.LossSpec) bool { return s.Divergence == device.TVD }},         // its gradient jumps
		{name: "impossible ids", scale: 2, impossible: 3, skip: func(s device.LossSpec) bool { return lossKind(s) == reverseKL }}, // infinite
	} {
		t.Run(g.name, func(t *testing.T) {
			l := newLab(t)
			for _, spec := range append(divergences, divergenceEnds...) {
				for _, spec.Temperature = range []float64{1, 2, .7} {
					spec.Alpha = .7
					if g.skip != nil && g.skip(spec) {
						continue
					}
					c := l.randomLoss(2, 65, g.scale, g.offset, spec)
					for i := range c.z.V {
						if g.gap != 0 {
							c.z.V[i] = c.t.V[i] + g.gap*c.z.V[i]
						}
						if g.impossible != 0 && i%g.impossible == 1 {
							c.t.V[i] = math.Inf(-1)
						}
					}
					c.check(t, l)
				}
			}
		})
	}
	t.Logf("of their tolerances: %+v", worst)
}

// lossKind returns what Loss computes for s.
func lossKind(s device.LossSpec) int32 {
	var a lossArgs
	a.choose(s)
	return a.kind
}

// TestLossSame: where student and teacher agree, nothing is to be learnt: exactly 0 where no logarithm is rounded.
func TestLossSame(t *testing.T) {
	l := newLab(t)
	for _, spec := range append(divergences, divergenceEnds...) {
		for _, spec.Temperature = range []float64{1, 2, .7} {
			spec.Alpha = 1
			c := l.randomLoss(3, 5000, 3, 0, spec)
			same, yt := l.in(tensor.F32, c.z), l.ids(c.targets)
			grad := l.out(tensor.F32, 3, 5000)
			l.start()
			Loss(l, grad, same, same, yt, spec)
			tol := 24 * unit32
			if lossKind(spec) != mixture {
				tol = 0
			}
			near.Check(t, lossName(spec)+": D", []float64{l.rec().D}, []float64{0}, tol)
			near.Check(t, lossName(spec)+": gradient", l.get(grad).V, ref.New(3, 5000).V, tol*lossInvN)
			if l.rec().Agree != 3 {
				t.Errorf("%s: %d of 3 agree", lossName(spec), l.rec().Agree)
			}
		}
	}
}

// TestLossKnown: answers that need no reference.
func TestLossKnown(t *testing.T) {
	l := newLab(t)
	z, teacher := ref.New(1, 4), ref.Of(1, 4, []float64{1, 2, 3, 4})
	zt, tt, yt, grad := l.in(tensor.F32, z), l.in(tensor.F32, teacher), l.ids([]int{2}), l.out(tensor.F32, 1, 4)
	l.start()
	l.rec().InvN = 1
	Loss(l, grad, zt, tt, yt, device.LossSpec{Temperature: 1})
	r := l.rec()
	near.Check(t, "CE and KL of a uniform student", []float64{r.CE, r.D}, []float64{math.Log(4), math.Log(4) - r.Entropy}, 1e-7)
	near.Check(t, "gradient of a uniform student", l.get(grad).V, []float64{.25, .25, -.75, .25}, 1e-7)

	for _, spec := range divergences {
		spec.Alpha, spec.Temperature = 1, 2
		c := l.randomLoss(1, 300, 8, 0, spec)
		zt, tt, yt, grad := l.in(tensor.F32, c.z), l.in(tensor.F32, c.t), l.ids(c.targets), l.out(tensor.F32, 1, 300)
		l.start()
		Loss(l, grad, zt, tt, yt, spec)
		d, sum, size := l.rec().D, 0.0, 0.0
		for i, v := range l.get(grad).V {
			sum += v
			size += c.scale(0)[i]
		}
		near.Check(t, lossName(spec)+": sum of the gradient", []float64{sum / size}, []float64{0}, 1e-6)
		if spec.Divergence == device.TVD && !(d > 0 && d <= 1) || spec.Divergence == device.JSD && !(d > 0 && d <= math.Ln2) {
			t.Errorf("%s: D %g outside its range", lossName(spec), d)
		}
	}
}

// TestLossConstants: a constant added to z or t that leaves their differences exact changes no bit.
func TestLossConstants(t *testing.T) {
	l := newLab(t)
	for _, spec := range divergences {
		spec.Alpha, spec.Temperature = .5, 2
		c := l.randomLoss(3, 300, 3, 0, spec)
		for i := range c.z.V {
			c.z.V[i], c.t.V[i] = math.Round(c.z.V[i]*256)/256, math.Round(c.t.V[i]*256)/256
		}
		yt := l.ids(c.targets)
		run := func(addZ, addT float64) (Record, []byte) {
			z, teacher := c.z.Clone(), c.t.Clone()
			for i := range z.V {
				z.V[i] += addZ
				teacher.V[i] += addT
			}
			zt, tt, grad := l.in(tensor.F32, z), l.in(tensor.F32, teacher), l.out(tensor.F32, 3, 300)
			l.start()
			Loss(l, grad, zt, tt, yt, spec)
			return *l.rec(), l.bytes(grad)
		}
		want, grad := run(0, 0)
		for _, add := range [][2]float64{{1024, 0}, {0, -2048}, {-4096, 4096}} {
			got, g := run(add[0], add[1])
			if got.D != want.D || got.Entropy != want.Entropy || math.Abs(got.CE-want.CE) > 1e-11 || !bytes.Equal(g, grad) {
				t.Errorf("%s: %v added: %+v, want %+v, gradients equal: %v", lossName(spec), add, got, want, bytes.Equal(g, grad))
			}
		}
	}
}

// TestLossChunks: sums over chunks are the sums over all, and the gradients the same bits, on devices of any size.
func TestLossChunks(t *testing.T) {
	l := newLab(t)
	const rows, cols = 9, 4300
	for _, spec := range divergences {
		spec.Alpha, spec.Temperature = .5, 2
		c := l.randomLoss(rows, cols, 3, 5, spec)
		zt, tt, yt := l.in(tensor.F32, c.z), l.in(tensor.F32, c.t), l.ids(c.targets)
		run := func(chunk, processors int) (Record, []byte) {
			grad := l.out(tensor.BF16, rows, cols)
			l.start()
			l.multiprocessors = processors
			for lo := 0; lo < rows; lo += chunk {
				hi := min(rows, lo+chunk)
				l.op()
				Loss(l, rowRange(grad, lo, hi), rowRange(zt, lo, hi), rowRange(tt, lo, hi), rowRange(yt, lo, hi), spec)
			}
			return *l.rec(), l.bytes(grad)
		}
		want, grad := run(rows, 6)
		for _, chunk := range []int{1, 2, 4, 8, rows} {
			got, g := run(chunk, 132)
			near.CheckRel(t, lossName(spec)+": sums over chunks", []float64{got.CE, got.D, got.Entropy}, []float64{want.CE, want.D, want.Entropy}, 1e-14)
			if got.Positions != rows || got.Agree != want.Agree || !bytes.Equal(g, grad) {
				t.Errorf("%s: chunks of %d: %d rows, %d agree; gradients equal: %v", lossName(spec), chunk, got.Positions, got.Agree, bytes.Equal(g, grad))
			}
			if chunk == rows && got != want {
				t.Errorf("%s: the same again: %+v, before %+v", lossName(spec), got, want)
			}
		}
	}
}

// rowRange returns rows [lo,hi) of m.
func rowRange(m Mat, lo, hi int) Mat {
	m.Ptr += uint64(lo * m.Stride * m.Type.BlockBytes())
	m.Rows = hi - lo
	return m
}

// TestLossAgreement: the lowest id wins ties.
func TestLossAgreement(t *testing.T) {
	l := newLab(t)
	const rows, cols = 6, 9000
	c := l.randomLoss(rows, cols, 1, 0, device.LossSpec{Temperature: 2})
	put := func(m ref.Mat, r int, v float64, ids ...int) {
		for _, i := range ids {
			m.Row(r)[i] = v
		}
	}
	put(c.z, 0, 20, 7)
	put(c.t, 0, 30, 7) // agree
	put(c.z, 1, 20, 7, 8)
	put(c.t, 1, 30, 8) // z means 7
	put(c.z, 2, 20, 4095, 4096)
	put(c.t, 2, 30, 4095, 8999) // agree across slices
	put(c.z, 3, 20, 1030, 2)
	put(c.t, 3, 30, 1030) // z means 2
	put(c.z, 4, 20, 8999, 8191)
	put(c.t, 4, 30, 8191, 8999) // agree
	put(c.z, 5, 20, 5, 4, 6)
	put(c.t, 5, 30, 4) // agree, within one thread's
	c.check(t, l)
	if l.rec().Agree != 4 {
		t.Errorf("%d rows agree, want 4", l.rec().Agree)
	}
}

// TestLossTarget: a target that does not exist is noted and its row left out.
func TestLossTarget(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) {
		for _, bad := range []int{-1, 300, math.MaxInt32, math.MinInt32} {
			for _, spec := range divergences {
				spec.Alpha, spec.Temperature = .5, 2
				c := l.randomLoss(3, 300, 3, 0, spec)
				zt, tt := l.in(tensor.F32, c.z), l.in(tensor.F32, c.t)
				good := lossCase{ref.Stack(c.z.RowRange(0, 1), c.z.RowRange(2, 3)), ref.Stack(c.t.RowRange(0, 1), c.t.RowRange(2, 3)),
					[]int{c.targets[0], c.targets[2]}, spec}
				want, dz := ref.Loss(good.z, good.t, good.targets, lossInvN, spec)
				c.targets[1] = bad
				grad := l.out(tensor.BF16, 3, 300)
				l.start()
				Loss(l, grad, zt, tt, l.ids(c.targets), spec)
				if r := l.rec(); r.Fault != FaultTarget || r.FaultValue != int64(bad) || r.FaultLimit != 300 {
					t.Errorf("target %d: fault %d, value %d, limit %d", bad, r.Fault, r.FaultValue, r.FaultLimit)
				}
				l.rec().Fault = 0
				good.checkSums(t, lossName(spec), l.rec(), want)
				g := l.get(grad)
				near.Check(t, "gradient of the row without target", g.Row(1), make([]float64, 300), 0)
				good.checkGrad(t, lossName(spec), ref.Stack(g.RowRange(0, 1), g.RowRange(2, 3)), dz, tensor.BF16)
			}
		}
	})
}

// TestLossNotFinite: a bad logit, wherever it is, shows in the record, so that the verdict sees it.
func TestLossNotFinite(t *testing.T) {
	l := newLab(t)
	nan, inf := math.NaN(), math.Inf(1)
	for _, spec := range divergences {
		spec.Alpha, spec.Temperature = .5, 2
		for _, at := range []int{0, 299, 4500} {
			for _, bad := range []float64{nan, inf} {
				for _, ofTeacher := range []bool{false, true} {
					c := l.randomLoss(1, 5000, 3, 0, spec)
					c.targets[0] = 17
					if ofTeacher {
						c.t.V[at] = bad
					} else {
						c.z.V[at] = bad
					}
					zt, tt, yt := l.in(tensor.F32, c.z), l.in(tensor.F32, c.t), l.ids(c.targets)
					l.start()
					Loss(l, Mat{}, zt, tt, yt, spec)
					if r := l.rec(); !ofTeacher && near.Abs("", []float64{r.CE}, []float64{0}, math.MaxFloat64) == nil ||
						near.Abs("", []float64{r.D}, []float64{0}, math.MaxFloat64) == nil {
						t.Errorf("%s: %g in column %d, of the teacher: %v: CE %g, D %g", lossName(spec), bad, at, ofTeacher, r.CE, r.D)
					}
				}
			}
		}
	}
}
