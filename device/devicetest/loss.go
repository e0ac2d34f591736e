package devicetest

import (
	"context"
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// lossSpecs are the divergences with their parameters, pure and mixed with cross-entropy, at several temperatures.
func lossSpecs() []device.LossSpec {
	var out []device.LossSpec
	for _, d := range []struct {
		kind device.Divergence
		beta []float64
	}{
		{device.ForwardKL, []float64{0}}, {device.ReverseKL, []float64{0}}, {device.JSD, []float64{0, .1, .5, .7, 1}},
		{device.TVD, []float64{0}}, {device.SkewForward, []float64{.1, .6}}, {device.SkewReverse, []float64{.1, .6}},
	} {
		for _, beta := range d.beta {
			out = append(out, device.LossSpec{Alpha: .7, Temperature: 2, Beta: beta, Divergence: d.kind})
		}
		out = append(out, device.LossSpec{Alpha: 1, Temperature: .8, Beta: d.beta[0], Divergence: d.kind})
	}
	return append(out, device.LossSpec{Alpha: 0, Temperature: 1}, device.LossSpec{Alpha: 1, Temperature: 4})
}

// logits is a pair of student's and teacher's logits of some character.
type logits struct {
	name       string
	rows, cols int
	scale      float64 // spread of both
	offset     float64 // constant added to z; the teacher gets its negative
	gap        float64 // difference of z from t instead of independence; 0: independent
	impossible bool    // some of the teacher's ids are impossible: −∞
}

var logitShapes = []logits{
	{name: "1x1", rows: 1, cols: 1, scale: 1}, {name: "2x2", rows: 2, cols: 2, scale: 1},
	{name: "3x31", rows: 3, cols: 31, scale: 2}, {name: "1x64", rows: 1, cols: 64, scale: 2},
	{name: "65x33", rows: 65, cols: 33, scale: 3}, {name: "17x257", rows: 17, cols: 257, scale: 3},
	{name: "2x5000", rows: 2, cols: 5000, scale: 3}, {name: "0x33", rows: 0, cols: 33, scale: 1},
	{name: "equal logits", rows: 3, cols: 65, scale: 0}, {name: "constants added", rows: 5, cols: 65, scale: 2, offset: 1e4},
	{name: "underflow", rows: 5, cols: 65, scale: 60}, {name: "one id takes all", rows: 5, cols: 65, scale: 3000},
	{name: "z near t", rows: 5, cols: 65, scale: 3, gap: 1e-3}, {name: "impossible ids", rows: 5, cols: 65, scale: 2, impossible: true},
}

func (g logits) make(l *lab) (z, t ref.Mat) {
	z, t = l.random(g.rows, g.cols, g.scale), l.random(g.rows, g.cols, g.scale)
	for i := range z.V {
		if g.gap != 0 {
			z.V[i] = t.V[i] + g.gap*z.V[i]
		}
		z.V[i] += g.offset
		t.V[i] -= g.offset
		if g.impossible && i%3 == 1 {
			t.V[i] = negativeInfinity
		}
	}
	return z, t
}

func lossCases() []Case {
	var all []Case
	for _, g := range logitShapes {
		for _, spec := range lossSpecs() {
			if g.impossible && (spec.Divergence == device.ReverseKL || spec.Divergence == device.JSD && spec.Beta == 1) {
				continue // infinite
			}
			if g.gap != 0 && spec.Divergence == device.TVD {
				continue // its gradient jumps where Q crosses p
			}
			name := fmt.Sprintf("loss/%s, %s", g.name, specName(spec))
			c := both(name, func(l *lab) { checkLoss(l, g, spec) })
			if g.rows*g.cols > 2000 {
				c = c[1:]
			}
			all = append(all, c...)
		}
	}
	for i, g := range logitShapes {
		if g.impossible || g.gap != 0 || g.offset != 0 {
			continue
		}
		for j, spec := range lossSpecs() {
			if spec.Cap = 5; (i+j)%4 == 0 {
				spec.Cap = 30
			}
			all = append(all, both(fmt.Sprintf("loss/soft-capped, %s, %s", g.name, specName(spec)), func(l *lab) { checkLoss(l, g, spec) })...)
		}
	}
	return append(all, Case{Name: "loss/adds up over chunks", check: checkLossChunks},
		Case{Name: "loss/without teacher", check: checkLossAlone},
		Case{Name: "loss/teacher for comparison only", check: checkLossCompared},
		Case{Name: "loss/z equals t", check: checkLossSame},
		Case{Name: "loss/uniform", check: checkLossUniform},
		Case{Name: "loss/scaled together", check: checkLossScaled})
}

func specName(s device.LossSpec) string {
	names := [...]string{"forward KL", "reverse KL", "JSD", "TVD", "skew forward", "skew reverse"}
	name := fmt.Sprintf("%s β %g, α %g, T %g", names[s.Divergence], s.Beta, s.Alpha, s.Temperature)
	if s.Cap > 0 {
		name += fmt.Sprintf(", capped at %g", s.Cap)
	}
	return name
}

// invN is 1/N in the cases: not the reciprocal of their rows, which it need not be.
const invN = 1.0 / 7

// start begins a step's record.
func (l *lab) start() { l.s.SetScalars(device.Scalars{InvN: invN, BiasCorr1: 1, BiasCorr2: 1}) }

// record waits and returns the step's record.
func (l *lab) record() device.Scalars {
	s, err := l.s.Wait(context.Background())
	if err != nil {
		l.errorf("Wait: %v", err)
		l.refused = err
	}
	return s
}

// compareSums judges the sums of a record.
func (l *lab) compareSums(got, want device.Scalars) {
	if got.Positions != want.Positions || got.Agree != want.Agree {
		l.errorf("%d positions, %d agree; want %d and %d", got.Positions, got.Agree, want.Positions, want.Agree)
	}
	n := math.Max(1, float64(want.Positions))
	for _, s := range []struct {
		name      string
		got, want float64
	}{{"CE", got.CE, want.CE}, {"D", got.D, want.D}, {"entropy", got.Entropy, want.Entropy}} {
		l.note(near.Abs("mean "+s.name, []float64{s.got / n}, []float64{s.want / n}, lossTol(s.want/n)))
	}
}

// compareGrad judges the gradient of a loss. It is a difference of probabilities, each with a relative error, so the
// error is measured against their size, not against what may be left of them.
func (l *lab) compareGrad(name string, grad device.Tensor, want, z, t ref.Mat, targets []int, spec device.LossSpec) {
	got, allowed := l.get(grad), tol("lossgrad", grad.DType, 1)
	for r := range want.Rows {
		scale := gradScale(z.Row(r), t.Row(r), targets[r], spec)
		g, w := make([]float64, want.Cols), make([]float64, want.Cols)
		for c, s := range scale {
			g[c], w[c] = got.Row(r)[c]/s, want.Row(r)[c]/s
		}
		if err := near.Abs(fmt.Sprintf("%s, row %d, in parts of its terms", name, r), g, w, allowed); err != nil {
			l.note(err)
			return
		}
	}
}

// gradScale returns the size of the terms whose differences make the gradient: (1−α)(q+e_y) + αT(Q+p+|h|+QΣ|h|), and
// at least their root mean square over the row. |h| is at most Q|ln(Q/p)|; where ln p is not taken, ln(Q/m) beyond 10
// goes with a Q that p outweighs.
func gradScale(z, t []float64, target int, spec device.LossSpec) []float64 {
	q, lp, lq := ref.LogSoftmax(z, 1), ref.LogSoftmax(t, spec.Temperature), ref.LogSoftmax(z, spec.Temperature)
	h, sum := make([]float64, len(z)), 0.0
	for i := range h {
		ratio := math.Abs(lq[i] - lp[i])
		if spec.Divergence != device.ReverseKL && (spec.Divergence != device.JSD || spec.Beta < 1) {
			ratio = math.Min(ratio, 10)
		}
		h[i] = math.Exp(lq[i]) * ratio
		sum += h[i]
	}
	scale, squares := make([]float64, len(z)), 0.0
	for i := range scale {
		bigQ := math.Exp(lq[i])
		scale[i] = (1-spec.Alpha)*math.Exp(q[i]) + spec.Alpha*spec.Temperature*(bigQ+math.Exp(lp[i])+h[i]+bigQ*sum)
		if i == target {
			scale[i] += 1 - spec.Alpha
		}
		scale[i] *= invN
		squares += scale[i] * scale[i]
	}
	for i := range scale {
		scale[i] = math.Max(scale[i], math.Sqrt(squares/float64(len(scale))))
	}
	return scale
}

func checkLoss(l *lab, g logits, spec device.LossSpec) {
	z, t := g.make(l)
	if spec.Cap > 0 {
		z = ref.SoftCap(z, spec.Cap)
	}
	targets := l.randomIDs(g.rows, g.cols)
	zt, tt, yt := l.in(tensor.F32, z), l.in(tensor.F32, t), l.ids(targets)
	grad, over := l.out(l.act, g.rows, g.cols), l.inout(tensor.F32, z)
	want, dz := ref.Loss(z, t, targets, invN, spec)
	l.start()
	l.s.Loss(grad, zt, tt, yt, spec)
	l.compareSums(l.record(), want)
	l.compareGrad("gradient", grad, dz, z, t, targets, spec)

	l.start()
	l.s.Loss(over, over, tt, yt, spec)
	l.compareSums(l.record(), want)
	l.compareGrad("gradient over z", over, dz, z, t, targets, spec)

	l.start()
	l.s.Loss(device.Tensor{}, zt, tt, yt, spec)
	l.compareSums(l.record(), want)
}

// checkLossChunks: two chunks add to one record, and a new record starts from nothing.
func checkLossChunks(l *lab) {
	const rows, cols = 9, 40
	z, t, targets := l.random(rows, cols, 2), l.random(rows, cols, 2), l.randomIDs(rows, cols)
	zt, tt, yt := l.in(tensor.F32, z), l.in(tensor.F32, t), l.ids(targets)
	spec := device.LossSpec{Alpha: .5, Temperature: 2}
	want, _ := ref.Loss(z, t, targets, invN, spec)
	for range 2 {
		l.start()
		l.s.Loss(device.Tensor{}, zt.RowRange(0, 4), tt.RowRange(0, 4), yt.RowRange(0, 4), spec)
		l.s.Loss(device.Tensor{}, zt.RowRange(4, rows), tt.RowRange(4, rows), yt.RowRange(4, rows), spec)
		l.compareSums(l.record(), want)
	}
}

// checkLossAlone: no teacher, no D, no agreement.
func checkLossAlone(l *lab) {
	const rows, cols = 5, 40
	z, targets := l.random(rows, cols, 2), l.randomIDs(rows, cols)
	spec := device.LossSpec{Temperature: 1}
	grad := l.out(l.act, rows, cols)
	l.start()
	l.s.Loss(grad, l.in(tensor.F32, z), device.Tensor{}, l.ids(targets), spec)
	want, dz := ref.Loss(z, ref.Mat{}, targets, invN, spec)
	l.compareSums(l.record(), want)
	l.compareGrad("gradient", grad, dz, z, z, targets, spec)
}

// checkLossCompared: with Alpha 0 the teacher changes the record, not the gradient.
func checkLossCompared(l *lab) {
	const rows, cols = 5, 40
	z, t, targets := l.random(rows, cols, 2), l.random(rows, cols, 2), l.randomIDs(rows, cols)
	for r := range 3 {
		z.Row(r)[7], t.Row(r)[7] = 20, 30 // agreement
	}
	z.Row(3)[5], z.Row(3)[6], t.Row(3)[6], t.Row(3)[5] = 20, 20, 30, 30 // on ties, the lowest
	spec := device.LossSpec{Temperature: 2, Divergence: device.TVD}
	grad := l.out(l.act, rows, cols)
	zt, tt := l.in(tensor.F32, z), l.in(tensor.F32, t)
	l.start()
	l.s.Loss(grad, zt, tt, l.ids(targets), spec)
	want, dz := ref.Loss(z, t, targets, invN, spec)
	l.compareSums(l.record(), want)
	l.compareGrad("gradient", grad, dz, z, t, targets, spec)
}

// checkLossSame: where student and teacher agree, no divergence is left and nothing is to be learnt from it.
func checkLossSame(l *lab) {
	const rows, cols = 5, 65
	z, targets := l.random(rows, cols, 3), l.randomIDs(rows, cols)
	zt, tt, yt := l.in(tensor.F32, z), l.in(tensor.F32, z), l.ids(targets)
	for _, spec := range lossSpecs() {
		if spec.Alpha == 0 {
			continue
		}
		spec.Alpha = 1
		grad := l.out(tensor.F32, rows, cols)
		l.start()
		l.s.Loss(grad, zt, tt, yt, spec)
		got := l.record()
		l.note(near.Abs(specName(spec)+": D", []float64{got.D / rows}, []float64{0}, lossTol(0)))
		l.note(near.Abs(specName(spec)+": gradient", l.get(grad).V, ref.New(rows, cols).V, invN*lossTol(0)))
		if got.Agree != rows {
			l.errorf("%s: %d of %d agree", specName(spec), got.Agree, rows)
		}
	}
}

// checkLossUniform: CE = ln V with gradient 1/V, 1/V−1 at the target; KL to a uniform student is ln V − H(p).
func checkLossUniform(l *lab) {
	z, t := ref.New(1, 4), ref.Of(1, 4, []float64{1, 2, 3, 4})
	zt, tt, yt := l.in(tensor.F32, z), l.in(tensor.F32, t), l.ids([]int{2})
	grad := l.out(tensor.F32, 1, 4)
	l.s.SetScalars(device.Scalars{InvN: 1})
	l.s.Loss(grad, zt, tt, yt, device.LossSpec{Temperature: 1})
	got := l.record()
	l.note(near.Abs("CE, D", []float64{got.CE, got.D}, []float64{math.Log(4), math.Log(4) - got.Entropy}, lossTol(1)))
	l.note(near.Abs("gradient", l.get(grad).V, []float64{.25, .25, -.75, .25}, lossTol(0)))
}

// checkLossScaled: scaling t, z and T together leaves D alone.
func checkLossScaled(l *lab) {
	const rows, cols = 5, 65
	z, t, targets := l.random(rows, cols, 2), l.random(rows, cols, 2), l.randomIDs(rows, cols)
	for _, spec := range lossSpecs() {
		var d [2]float64
		for i, scale := range []float64{1, 4} {
			zs, ts, s := z.Clone(), t.Clone(), spec
			for j := range zs.V {
				zs.V[j], ts.V[j] = scale*z.V[j], scale*t.V[j]
			}
			s.Temperature *= scale
			l.start()
			l.s.Loss(device.Tensor{}, l.in(tensor.F32, zs), l.in(tensor.F32, ts), l.ids(targets), s)
			d[i] = l.record().D / rows
		}
		l.note(near.Abs(specName(spec)+": D", d[1:], d[:1], 2*lossTol(d[0])))
	}
}
