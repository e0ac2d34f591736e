package devicetest

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// projection is a sparse matrix in both forms: on the device, and for the reference.
type projection struct {
	device.Projection
	starts, ids []int
	weights     []float64
}

// projectCases are those of device.Projector. A device whose streams are none says so in its Lacks, and the cases ask
// no more of it.
func projectCases() []Case {
	var all []Case
	for _, s := range []struct{ rows, from, to int }{
		{1, 1, 1}, {3, 31, 17}, {5, 17, 31}, {4, 257, 256}, {2, 4099, 4096}, {3, 1031, 31}, {9, 33, 70}, {1, 9000, 15},
	} {
		for _, temperature := range []float64{1, .5, 4} {
			name := fmt.Sprintf("project/%d rows, %d to %d ids, T %g", s.rows, s.from, s.to, temperature)
			all = append(all, both(name, func(l *lab) {
				checkProject(l, l.random(s.rows, s.from, 3), s.to, temperature)
			})...)
		}
	}
	all = append(all, both("project/far logits", func(l *lab) { checkProject(l, l.farLogits(), 20, 1) })...)
	return append(all,
		Case{Name: "project/the same bits twice", check: checkProjectRepeats},
		Case{Name: "project/wrong ids", check: checkProjectRange},
		Case{Name: "project/NaN", check: checkProjectNaN})
}

// projector returns the stream as one, nil if the device says that it is none.
func (l *lab) projector() device.Projector {
	p, ok := l.s.(device.Projector)
	lacks := slices.Contains(l.dev.Info().Lacks, device.Projects)
	if !ok && !lacks || ok && lacks {
		l.errorf("a stream is a Projector: %v, and its device lacks it: %v", ok, lacks)
	}
	if !ok || lacks {
		return nil
	}
	return p
}

// projection makes a matrix: most teacher's ids go to one other id, some to two, every seventh to none; some ids get
// nothing.
func (l *lab) projection(from, to int) projection {
	p := projection{starts: make([]int, 1, to+1)}
	columns := make([][]int, to)
	shares := map[[2]int]float64{}
	for k := range from {
		s := l.rng.IntN(max(1, to-to/5)) // the last fifth gets nothing
		if k%7 == 6 {
			continue
		}
		columns[s], shares[[2]int{k, s}] = append(columns[s], k), 1
		if other := (s + 1) % max(1, to-to/5); k%5 == 4 && other != s {
			columns[other] = append(columns[other], k)
			shares[[2]int{k, s}], shares[[2]int{k, other}] = .75, .25
		}
	}
	for s, c := range columns {
		for _, k := range c {
			p.ids, p.weights = append(p.ids, k), append(p.weights, shares[[2]int{k, s}])
		}
		p.starts = append(p.starts, len(p.ids))
	}
	p.Projection = device.Projection{Teacher: from, Starts: l.ids(p.starts), IDs: l.ids(p.ids),
		Weights: l.in(tensor.F32, ref.Mat{Rows: 1, Cols: len(p.weights), V: p.weights})}
	return p
}

// farLogits returns rows in which some logits are −∞, some far above or below the others, and all of a row far from
// zero.
func (l *lab) farLogits() ref.Mat {
	t := l.random(4, 700, 3)
	for i := range t.V {
		switch {
		case i%5 == 1:
			t.V[i] = math.Inf(-1)
		case i%11 == 3:
			t.V[i] -= 75
		case i%13 == 5:
			t.V[i] -= 1e30
		}
	}
	for i := range t.Row(1) {
		t.Row(1)[i] += 1000
	}
	t.Row(2)[17] = 90
	t.Row(3)[18] = 1e6
	return t
}

// checkProject compares logarithms, the mass, and the rows that are not asked for.
func checkProject(l *lab, t ref.Mat, to int, temperature float64) {
	d := l.projector()
	if d == nil {
		return
	}
	rows, from := t.Rows, t.Cols
	w := l.projection(from, to)
	y := l.random(rows+2, to, 1)
	at := l.rng.Perm(rows + 2)[:rows]
	tt, yt := l.in(tensor.F32, t), l.inout(tensor.F32, y)
	d.Project(yt, tt, w.Projection, l.ids(at), temperature)
	out := ref.Project(l.get(tt), w.starts, w.ids, w.weights, temperature)
	want := l.get(yt)
	for r, v := range at {
		copy(want.Row(v), out.Row(r))
	}
	for r := range y.Rows {
		if !slices.Contains(at, r) {
			copy(want.Row(r), y.Row(r))
		}
	}
	spread := 0.0 // of probabilities that are above the floor
	for r := range t.Rows {
		top := slices.Max(t.Row(r))
		for _, v := range t.Row(r) {
			if top-v < 100*temperature {
				spread = max(spread, top-v)
			}
		}
	}
	round(want, tensor.F32)
	allowed := 16 * unitF32 * (2*spread + temperature*(80+math.Log(float64(from))))
	l.note(near.Abs("T·ln p", l.get(yt).V, want.V, allowed))
	for r, v := range at { // what arrives sums to what has a counterpart
		arrives, kept := 0.0, 0.0
		logs := ref.LogSoftmax(l.get(tt).Row(r), temperature)
		for k := range from {
			if k%7 != 6 {
				kept += math.Exp(logs[k])
			}
		}
		for _, x := range l.get(yt).Row(v) {
			arrives += math.Exp(x / temperature)
		}
		l.note(near.Abs("mass that arrives", []float64{arrives}, []float64{kept}, 1e-5))
	}
}

// checkProjectRepeats: sums of thousands of entries have one order.
func checkProjectRepeats(l *lab) {
	d := l.projector()
	if d == nil {
		return
	}
	w, t := l.projection(9000, 15), l.in(tensor.F32, l.random(3, 9000, 3))
	at, y := l.ids([]int{2, 0, 1}), l.inout(tensor.F32, l.random(3, 15, 1))
	var first []float32
	for i := range 3 {
		d.Project(y, t, w.Projection, at, 1.3)
		now := singles(l.get(y))
		if i == 0 {
			first = now
		}
		if !slices.Equal(now, first) {
			l.errorf("run %d has other bits", i+1)
		}
	}
}

// checkProjectRange: a row, an id or a column outside its range is an error of the stream.
func checkProjectRange(l *lab) {
	d := l.projector()
	if d == nil {
		return
	}
	for i, wrong := range []func(w *projection, at []int) []int{
		func(_ *projection, at []int) []int { return []int{at[0], 3} },
		func(_ *projection, at []int) []int { return []int{-1, at[1]} },
		func(w *projection, at []int) []int { w.IDs = l.ids(append([]int{9}, w.ids[1:]...)); return at },
		func(w *projection, at []int) []int { w.IDs = l.ids(append([]int{-1}, w.ids[1:]...)); return at },
		func(w *projection, at []int) []int {
			starts := slices.Clone(w.starts)
			starts[len(starts)-1] = len(w.ids) + 1
			w.Starts = l.ids(starts)
			return at
		},
	} {
		w := l.projection(9, 5)
		at := wrong(&w, []int{0, 1})
		d.Project(l.inout(tensor.F32, l.random(3, 5, 1)), l.in(tensor.F32, l.random(2, 9, 1)), w.Projection, l.ids(at), 1)
		if _, err := l.s.Wait(context.Background()); fault.KindOf(err) != fault.Invalid {
			l.errorf("call %d, of a row, an id or a column outside its range: %v", i, err)
		}
		l.afterError()
	}
}

// afterError gives the case's tensors back: with an error a device may have given all temps back.
func (l *lab) afterError() {
	for _, w := range l.watched {
		if w.whole.Buf.State() == device.Temporary {
			l.s.Release(w.whole)
		}
	}
	l.watched = nil
}

// checkProjectNaN: a row with a NaN gives no distribution, the others theirs.
func checkProjectNaN(l *lab) {
	d := l.projector()
	if d == nil {
		return
	}
	w, t := l.projection(9, 5), l.random(2, 9, 1)
	t.Row(0)[3] = math.NaN()
	y := l.inout(tensor.F32, l.random(2, 5, 1))
	d.Project(y, l.in(tensor.F32, t), w.Projection, l.ids([]int{0, 1}), 1)
	got := l.get(y)
	if !slices.ContainsFunc(got.Row(0), math.IsNaN) {
		l.errorf("a NaN of the teacher's is hidden: %v", got.Row(0))
	}
	if slices.ContainsFunc(got.Row(1), math.IsNaN) {
		l.errorf("a NaN of another row: %v", got.Row(1))
	}
}

// moving are the operands of Project.
type moving struct {
	y, t, rows  device.Tensor
	w           device.Projection
	temperature float64
}

func projectRefusals() []Refusal {
	const noTemperature = "temperature is not positive"
	operands := func(k *desk) moving {
		line := func(n int) device.Tensor { return k.of(tensor.I32, 1, n) }
		w := device.Projection{Teacher: 9, Starts: line(6), IDs: line(7), Weights: k.single(1, 7)}
		k.s.UploadInts(w.Starts, []int32{0, 7, 7, 7, 7, 7})
		k.s.UploadInts(w.IDs, make([]int32, 7))
		return moving{k.single(4, 5), k.single(1, 9), k.ids(1), w, 2}
	}
	return refusals(device.OpProject, operands, func(s device.Stream, a moving) {
		if p, ok := s.(device.Projector); ok {
			p.Project(a.y, a.t, a.w, a.rows, a.temperature)
			return
		}
		device.CheckProject(a.y, a.t, a.w, a.rows, a.temperature) // a stream that has no such operation
	},
		wrong[moving]{"columns of t", wrongShapes, func(k *desk, a *moving) { a.t = k.single(1, 8) }},
		wrong[moving]{"columns of y", wrongShapes, func(k *desk, a *moving) { a.y = k.single(4, 6) }},
		wrong[moving]{"more rows than y", wrongShapes, func(k *desk, a *moving) { a.t, a.rows = k.single(5, 9), k.ids(5) }},
		wrong[moving]{"rows of another number", wrongShapes, func(k *desk, a *moving) { a.rows = k.ids(2) }},
		wrong[moving]{"weights of another number", "a vector has not one row of the right length",
			func(k *desk, a *moving) { a.w.Weights = k.single(1, 6) }},
		wrong[moving]{"y of another type", noFloat32, func(k *desk, a *moving) { a.y = k.narrow(4, 5) }},
		wrong[moving]{"rows that are no ids", "ids are not an int32 vector without gaps",
			func(k *desk, a *moving) { a.rows = k.single(1, 1) }},
		wrong[moving]{"no matrix", noTensor, func(_ *desk, a *moving) { a.w = device.Projection{Teacher: 9} }},
		wrong[moving]{"t given back", given, func(k *desk, a *moving) { a.t = k.gone(tensor.F32, 1, 9) }},
		wrong[moving]{"no temperature", noTemperature, func(_ *desk, a *moving) { a.temperature = 0 }},
		wrong[moving]{"temperature NaN", noTemperature, func(_ *desk, a *moving) { a.temperature = math.NaN() }},
	)
}
