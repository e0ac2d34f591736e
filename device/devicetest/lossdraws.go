package devicetest

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
	"apr/tensor"
)

// drawsLossCases are the cases of device.DrawsLoss. A device whose streams do not implement it lists DrawsTeach in its
// Lacks, and each case checks no more than that.
func drawsLossCases() []Case {
	var all []Case
	for _, g := range []struct{ rows, cols, draws int }{
		{1, 1, 1}, {4, 5, 64}, {2, 31, 63}, {9, 257, 7}, {2, 5000, 50}, {2, 8200, 65}, {0, 33, 3},
	} {
		for _, spec := range []device.LossSpec{
			{Alpha: .5, Temperature: 1}, {Alpha: .7, Temperature: 2}, {Alpha: 1, Temperature: .8}, {Alpha: 0, Temperature: 1},
			{Alpha: .7, Temperature: 2, Cap: 5},
		} {
			name := fmt.Sprintf("loss of draws/%d rows, %d of %d ids, %s", g.rows, g.draws, g.cols, specName(spec))
			all = append(all, both(name, func(l *lab) { checkDrawsLoss(l, g.rows, g.cols, g.draws, spec) })...)
		}
	}
	return append(all, Case{Name: "loss of draws/ids outside", check: checkDrawsLossRange})
}

// drawsLoss returns the stream as one, nil if the device says that it is none.
func (l *lab) drawsLoss() device.DrawsLoss {
	d, ok := l.s.(device.DrawsLoss)
	lacks := slices.Contains(l.dev.Info().Lacks, device.DrawsTeach)
	if ok == lacks {
		l.errorf("a stream is a DrawsLoss: %v, and its device lacks it: %v", ok, lacks)
		return nil
	}
	return d
}

// checkDrawsLoss compares with the loss whose teacher has the draws' mean as its softmax. In half of the rows few ids
// are drawn, one of them the target, and the student's first id is the one drawn most often, the lower of two.
func checkDrawsLoss(l *lab, rows, cols, draws int, spec device.LossSpec) {
	d := l.drawsLoss()
	if d == nil {
		return
	}
	z, targets := l.random(rows, cols, 3), l.randomIDs(rows, cols)
	var drawn []int
	for r := range rows {
		of := cols
		if r%2 == 1 {
			of = min(cols, 3)
			targets[r] = 0
		}
		own := l.randomIDs(draws, of)
		slices.Sort(own)
		for i := range own { // two ids as often as each other
			if r%4 == 3 {
				own[i] = 2 * i / draws * (of - 1)
			}
		}
		drawn = append(drawn, own...)
		if t := ref.DrawsLogits(own, draws, cols, 1); r%2 == 1 {
			z.Row(r)[ref.ArgMax(t)[0]] = 9
		}
	}
	if spec.Cap > 0 {
		z = ref.SoftCap(z, spec.Cap)
	}
	t := ref.DrawsLogits(drawn, draws, cols, spec.Temperature)
	want, dz := ref.Loss(z, t, targets, invN, spec)
	zt, dt, yt := l.in(tensor.F32, z), l.ids(drawn), l.ids(targets)
	grad, over := l.out(l.act, rows, cols), l.inout(tensor.F32, z)
	l.start()
	d.LossOfDraws(grad, zt, dt, yt, draws, spec)
	l.compareSums(l.record(), want)
	l.compareGrad("gradient", grad, dz, z, t, targets, spec)

	l.start()
	d.LossOfDraws(over, over, dt, yt, draws, spec)
	l.compareSums(l.record(), want)
	l.compareGrad("gradient over z", over, dz, z, t, targets, spec)

	l.start()
	d.LossOfDraws(device.Tensor{}, zt, dt, yt, draws, spec)
	l.compareSums(l.record(), want)
}

// checkDrawsLossRange: an id that the logits do not have is an error.
func checkDrawsLossRange(l *lab) {
	d := l.drawsLoss()
	if d == nil {
		return
	}
	for _, wrong := range []int{-1, 9} {
		for _, ids := range [][]int{{1, 1, 3, wrong, 0, 8}, {1, 1, 3, 8, 0, wrong}} { // draws, then targets
			l.start()
			d.LossOfDraws(l.out(tensor.F32, 2, 9), l.in(tensor.F32, l.random(2, 9, 1)), l.ids(ids[:4]), l.ids(ids[4:]), 2,
				device.LossSpec{Alpha: .5, Temperature: 1})
			if _, err := l.s.Wait(context.Background()); fault.KindOf(err) != fault.Invalid {
				l.errorf("ids %v: %v", ids, err)
			}
			l.afterError()
		}
	}
}

// byDraws are the operands of LossOfDraws.
type byDraws struct {
	grad, z, drawn, targets device.Tensor
	n                       int
	spec                    device.LossSpec
}

func drawsLossRefusals() []Refusal {
	const noTemperature = "temperature is not positive"
	return refusals(device.OpLossOfDraws, func(k *desk) byDraws {
		spec := device.LossSpec{Alpha: .5, Temperature: 2}
		return byDraws{k.single(3, 7), k.single(3, 7), k.ids(6), k.ids(3), 2, spec}
	}, func(s device.Stream, a byDraws) {
		if d, ok := s.(device.DrawsLoss); ok {
			d.LossOfDraws(a.grad, a.z, a.drawn, a.targets, a.n, a.spec)
			return
		}
		device.CheckLossOfDraws(a.grad, a.z, a.drawn, a.targets, a.n, a.spec) // a stream that has no such operation
	},
		wrong[byDraws]{"targets", wrongShapes, func(k *desk, a *byDraws) { a.targets = k.ids(2) }},
		wrong[byDraws]{"draws of fewer rows", wrongShapes, func(k *desk, a *byDraws) { a.drawn = k.ids(4) }},
		wrong[byDraws]{"no draws", wrongShapes, func(_ *desk, a *byDraws) { a.n = 0 }},
		wrong[byDraws]{"too many draws", wrongShapes, func(_ *desk, a *byDraws) { a.n = device.MaxMany + 1 }},
		wrong[byDraws]{"rows of the gradient", wrongShapes, func(k *desk, a *byDraws) { a.grad = k.single(2, 7) }},
		wrong[byDraws]{"z of another type", noFloat32, func(k *desk, a *byDraws) { a.z = k.narrow(3, 7) }},
		wrong[byDraws]{"gradient of ids", noFloats, func(k *desk, a *byDraws) { a.grad = k.of(tensor.I32, 3, 7) }},
		wrong[byDraws]{"draws of floats", noIDs, func(k *desk, a *byDraws) { a.drawn = k.single(6, 1) }},
		wrong[byDraws]{"no temperature", noTemperature, func(_ *desk, a *byDraws) { a.spec.Temperature = 0 }},
		wrong[byDraws]{"temperature NaN", noTemperature, func(_ *desk, a *byDraws) { a.spec.Temperature = math.NaN() }},
		wrong[byDraws]{"soft-cap NaN", noCap, func(_ *desk, a *byDraws) { a.spec.Cap = math.NaN() }},
		wrong[byDraws]{"another divergence", "draws teach forward KL alone",
			func(_ *desk, a *byDraws) { a.spec.Divergence = device.ReverseKL }},
	)
}
