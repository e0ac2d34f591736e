package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func optimizerCases() []Case {
	return []Case{
		{Name: "optimizer/three steps", check: func(l *lab) { checkSteps(l, 1, 0) }},
		{Name: "optimizer/three steps, clipped", check: func(l *lab) { checkSteps(l, 1, .5) }},
		{Name: "optimizer/three steps, below the clip", check: func(l *lab) { checkSteps(l, 1, 1e6) }},
		{Name: "optimizer/gradients whose squares overflow float32", check: func(l *lab) { checkSteps(l, 1e21, 1) }},
		{Name: "optimizer/gradients whose squares underflow float32", check: func(l *lab) { checkSteps(l, 1e-25, 0) }},
		{Name: "optimizer/zero gradient", check: func(l *lab) { checkSteps(l, 0, 1) }},
		{Name: "optimizer/not finite", check: checkNotFinite},
		{Name: "optimizer/limit", check: checkLimit},
		{Name: "optimizer/record", check: checkRecord},
		{Name: "optimizer/record with sums", check: checkSums},
	}
}

// trained is a parameter with its reference.
type trained struct {
	p             *device.Param
	w, grad, m, v ref.Mat
}

func (l *lab) trained(name string, rows, cols int, decay bool, gradScale float64) *trained {
	t := &trained{w: l.random(rows, cols, .05), m: ref.New(rows, cols), v: ref.New(rows, cols)}
	t.p = l.param(name, t.w, decay)
	t.setGrad(l, gradScale)
	return t
}

func (t *trained) setGrad(l *lab, scale float64) {
	t.grad = l.random(t.w.Rows, t.w.Cols, scale)
	round(t.grad, tensor.F32)
	l.s.Upload(t.p.Grad, singles(t.grad))
}

// model returns parameters of awkward shapes, of which some decay, and the list the device gets.
func (l *lab) model(gradScale float64) (all []*trained, params []*device.Param) {
	for i, s := range [][2]int{{33, 65}, {1, 31}, {1, 1}, {64, 256}, {1, 640}} {
		t := l.trained(fmt.Sprintf("p%d", i), s[0], s[1], s[0] > 1, gradScale)
		all, params = append(all, t), append(params, t.p)
	}
	return all, params
}

func checkSteps(l *lab, gradScale, maxNorm float64) {
	a := device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}
	all, params := l.model(gradScale)
	for n := 1; n <= 3; n++ {
		s := device.Scalars{
			LR: .01 / float64(n), InvN: 1, MaxNorm: maxNorm,
			BiasCorr1: 1 - math.Pow(a.Beta1, float64(n)), BiasCorr2: 1 - math.Pow(a.Beta2, float64(n)),
		}
		l.s.SetScalars(s)
		l.s.Verdict(params)
		l.s.AdamW(params, a)
		got := l.record()
		grads := make([]ref.Mat, len(all))
		for i, t := range all {
			grads[i] = t.grad
		}
		norm := ref.Norm(grads...)
		s.Scale = ref.ClipScale(norm, maxNorm)
		l.note(near.Rel("gradient norm", []float64{got.GradNorm}, []float64{norm}, 1e-6))
		l.note(near.Rel("clip scale", []float64{got.Scale}, []float64{s.Scale}, 1e-6))
		if !got.Finite {
			l.errorf("step %d: finite gradients of norm %g judged not finite", n, norm)
		}
		for _, t := range all {
			l.compareStep(t, a, s)
			t.setGrad(l, gradScale)
		}
	}
	l.compareWeight(all[0])
}

// compareStep takes the reference's step and compares. Later steps start from what the device has.
func (l *lab) compareStep(t *trained, a device.AdamW, s device.Scalars) {
	ref.AdamW(t.w, t.grad, t.m, t.v, t.p.Decay, a, s)
	l.compare(t.p.Name+" value", "adamw", t.p.Value, t.w, 0)
	l.compare(t.p.Name+" first moment", "adamw", t.p.M, t.m, 0)
	l.compare(t.p.Name+" second moment", "adamw", t.p.V, t.v, 0)
	l.compare(t.p.Name+" gradient", "move", t.p.Grad, t.grad, 0)
	t.w, t.m, t.v = l.get(t.p.Value), l.get(t.p.M), l.get(t.p.V)
}

// compareWeight: matrix products read the updated value.
func (l *lab) compareWeight(t *trained) {
	x := l.random(2, t.w.Cols, 1)
	xt, y := l.in(l.act, x), l.out(l.act, 2, t.w.Rows)
	l.s.MatMul(y, xt, t.p.Weight, device.Tensor{}, false)
	l.compare("product with the updated weight", "matmul", y, ref.Linear(x, t.w, ref.Mat{}), t.w.Cols)
}

// checkNotFinite: one bad number anywhere, and nothing moves; the next good step does.
func checkNotFinite(l *lab) {
	a := device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}
	good := device.Scalars{LR: .01, InvN: 1, BiasCorr1: .1, BiasCorr2: .05, MaxNorm: 1}
	nan, inf := math.NaN(), math.Inf(1)
	zt := func(v float64) device.Tensor { return l.in(tensor.F32, ref.Of(1, 3, []float64{0, v, 1})) }
	for _, bad := range []struct {
		name string
		grad float64 // of the last element of the last parameter
		z    device.Tensor
	}{
		{"NaN gradient", nan, zt(0)}, {"infinite gradient", inf, zt(0)}, {"−infinite gradient", -inf, zt(0)},
		{"infinite logit", 1, zt(inf)},
	} {
		all, params := l.model(1)
		last := all[len(all)-1]
		last.grad.V[len(last.grad.V)-1] = bad.grad
		l.s.Upload(last.p.Grad, singles(last.grad))
		l.s.SetScalars(good)
		l.s.Loss(device.Tensor{}, bad.z, device.Tensor{}, l.ids([]int{0}), device.LossSpec{Temperature: 1})
		l.s.Verdict(params)
		l.s.AdamW(params, a)
		if l.record().Finite {
			l.errorf("%s: judged finite", bad.name)
		}
		for _, t := range all {
			l.unmoved(bad.name, t)
			t.setGrad(l, 1)
		}
		l.s.SetScalars(good)
		l.s.Verdict(params)
		l.s.AdamW(params, a)
		s := good
		if got := l.record(); !got.Finite {
			l.errorf("%s: the step after it is judged not finite", bad.name)
		} else {
			s.Scale = got.Scale
		}
		for _, t := range all {
			l.compareStep(t, a, s)
		}
	}
	l.watched = nil // an infinite input has done its work
}

// unmoved: value and moments are what they were.
func (l *lab) unmoved(name string, t *trained) {
	for _, x := range []struct {
		name string
		got  device.Tensor
		want ref.Mat
	}{{"value", t.p.Value, t.w}, {"first moment", t.p.M, t.m}, {"second moment", t.p.V, t.v}} {
		l.note(near.Abs(name+": "+t.p.Name+" "+x.name, l.get(x.got).V, x.want.V, 0))
	}
}

// checkLimit: a step whose loss, of all its chunks, is above the limit is finite, and nothing moves; one at the limit is
// applied.
func checkLimit(l *lab) {
	a := device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}
	all, params := l.model(1)
	spec := device.LossSpec{Alpha: .7, Temperature: 2}
	const rows, ids = 5, 33
	z, t, y := l.random(rows, ids, 3), l.random(rows, ids, 3), l.randomIDs(rows, ids)
	zt, tt, yt := l.in(tensor.F32, z), l.in(tensor.F32, t), l.ids(y)
	sums, _ := ref.Loss(z, t, y, invN, spec)
	want := invN * ((1-spec.Alpha)*sums.CE + spec.Alpha*spec.Temperature*spec.Temperature*sums.D)
	x := l.in(l.act, l.random(2, all[0].w.Cols, 1))
	product := func() []float64 { // what the copies of the weights give
		out := l.out(l.act, 2, all[0].w.Rows)
		l.s.MatMul(out, x, all[0].p.Weight, device.Tensor{}, false)
		return l.get(out).V
	}
	step := func(limit float64) device.Scalars {
		s := device.Scalars{LR: .01, InvN: invN, BiasCorr1: .1, BiasCorr2: .05, MaxNorm: 1, MaxLoss: limit}
		s.CEWeight, s.DWeight = spec.Weights()
		l.s.SetScalars(s)
		for _, c := range [][2]int{{0, 2}, {2, rows}} {
			l.s.Loss(device.Tensor{}, zt.RowRange(c[0], c[1]), tt.RowRange(c[0], c[1]), yt.RowRange(c[0], c[1]), spec)
		}
		l.s.Verdict(params)
		l.s.AdamW(params, a)
		return l.record()
	}
	loss := step(0).Loss
	l.note(near.Abs("loss", []float64{loss}, []float64{want}, lossTol(want)))
	for _, t := range all {
		t.w, t.m, t.v = l.get(t.p.Value), l.get(t.p.M), l.get(t.p.V)
	}
	for _, c := range []struct {
		name    string
		limit   float64
		refused bool
	}{
		{"just below the loss", math.Nextafter(loss, 0), true}, {"far below the loss", loss / 100, true},
		{"at the loss", loss, false}, {"just above the loss", math.Nextafter(loss, 100), false},
		{"infinite", math.Inf(1), false}, {"none", 0, false},
	} {
		name, before := "limit "+c.name, product()
		got := step(c.limit)
		if !got.Finite || got.Diverged != c.refused || got.Refused() != c.refused || got.Loss != loss || got.MaxLoss != c.limit {
			l.errorf("%s: loss %g, limit %g, finite %v, diverged %v; want loss %g, diverged %v", name, got.Loss, got.MaxLoss, got.Finite, got.Diverged, loss, c.refused)
		}
		if c.refused {
			for _, t := range all {
				l.unmoved(name, t)
			}
			l.note(near.Abs(name+": product with the weight", product(), before, 0))
			continue
		}
		for _, t := range all {
			if near.Abs("", l.get(t.p.Value).V, t.w.V, 0) == nil {
				l.errorf("%s: %s stays", name, t.p.Name)
			}
			t.w, t.m, t.v = l.get(t.p.Value), l.get(t.p.M), l.get(t.p.V)
		}
	}
}

// checkSums: sums that the record is begun with count in the loss and the verdict, and what is added later comes to
// them.
func checkSums(l *lab) {
	want := device.Scalars{InvN: .125, BiasCorr1: 1, BiasCorr2: 1, CEWeight: .5, DWeight: 2, CE: 24, D: 4, Entropy: 3,
		Positions: 8, Agree: 5}
	want.Weights[device.HiddenStates], want.Sums[device.HiddenStates] = .25, 16
	l.s.SetScalars(want)
	p := l.dev.Param(device.ParamSpec{Name: "p", Rows: 1, Cols: 8})
	l.s.Verdict([]*device.Param{p})
	got := l.record()
	if loss := .5*(24*.125) + 2*(4*.125) + .25*(16*.125); got.Loss != loss || !got.Finite || got.CE != want.CE ||
		got.D != want.D || got.Entropy != want.Entropy ||
		got.Positions != want.Positions || got.Agree != want.Agree || got.Sums != want.Sums {
		l.errorf("got %+v, want the sums of %+v and a loss of %g", got, want, loss)
	}
	want.D = math.NaN()
	l.s.SetScalars(want)
	l.s.Verdict([]*device.Param{p})
	if got := l.record(); got.Finite {
		l.errorf("a sum that is not finite: %+v", got)
	}
}

// checkRecord: what the host sets comes back.
func checkRecord(l *lab) {
	want := device.Scalars{LR: .25, InvN: .125, BiasCorr1: .5, BiasCorr2: .75, MaxNorm: 3, CEWeight: .375, DWeight: 2.5, MaxLoss: 7}
	l.s.SetScalars(want)
	l.s.Phase(device.PhaseForward)
	x := l.in(l.act, l.random(64, 64, 1))
	y := l.out(l.act, 64, 64)
	l.s.MatMul(y, x, l.frozen(l.random(64, 64, 1)), device.Tensor{}, false)
	l.s.Phase(device.PhaseLoss)
	got := l.record()
	if got.LR != want.LR || got.InvN != want.InvN || got.BiasCorr1 != want.BiasCorr1 || got.BiasCorr2 != want.BiasCorr2 ||
		got.MaxNorm != want.MaxNorm || got.CEWeight != want.CEWeight || got.DWeight != want.DWeight || got.MaxLoss != want.MaxLoss || got.Positions != 0 || got.CE != 0 || got.D != 0 {
		l.errorf("got %+v, want %+v and no sums", got, want)
	}
	for p, d := range got.Phases {
		if d < 0 || device.Phase(p) == device.PhaseForward && d == 0 || device.Phase(p) == device.PhaseTeacher && d != 0 {
			l.errorf("phase %s took %v", device.Phase(p), d)
		}
	}
}
