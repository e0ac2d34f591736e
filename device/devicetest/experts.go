package devicetest

import (
	"fmt"
	"math"
	"slices"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// routes are tokens, experts and experts of a token.
var routes = []struct{ n, experts, active int }{
	{1, 1, 1}, {1, 4, 2}, {3, 8, 8}, {17, 5, 1}, {31, 7, 3}, {64, 128, 8}, {257, 32, 4}, {65, 3, 2}, {0, 4, 2}, {5, 130, 9},
}

func expertCases() []Case {
	var all []Case
	for _, s := range routes {
		for _, renorm := range []bool{false, true} {
			name := fmt.Sprintf("route/%d tokens to %d of %d, renorm %v", s.n, s.active, s.experts, renorm)
			all = append(all, both(name, func(l *lab) { checkRoute(l, l.random(s.n, s.experts, 2), s.active, renorm) })...)
		}
	}
	for name, z := range map[string]func(l *lab) ref.Mat{
		"ties":      func(l *lab) ref.Mat { return l.integers(33, 20) },
		"all equal": func(*lab) ref.Mat { return ref.New(9, 12) },
		"all to one": func(l *lab) ref.Mat {
			m := l.random(40, 6, 1)
			for n := range m.Rows {
				m.Row(n)[4] = 50
			}
			return m
		},
		"large logits": func(l *lab) ref.Mat { return l.random(7, 12, 200) },
		"not finite":   notFinite,
		"zeros of both signs": func(*lab) ref.Mat {
			m := ref.New(3, 8)
			m.V[1], m.V[9], m.V[22] = math.Copysign(0, -1), math.Copysign(0, -1), -1
			return m
		},
	} {
		all = append(all, both("route/"+name, func(l *lab) { checkRoute(l, z(l), 3, true); checkRoute(l, z(l), 3, false) })...)
	}
	for _, s := range []struct{ n, experts, active, in, out int }{
		{1, 1, 1, 1, 1}, {1, 8, 2, 33, 17}, {5, 4, 2, 64, 8}, {33, 7, 3, 65, 31}, {64, 16, 4, 128, 40}, {130, 3, 1, 256, 65}, {0, 4, 2, 8, 8}, {2, 64, 8, 32, 32},
		{300, 2, 1, 72, 136}, {330, 37, 8, 64, 136},
	} {
		name := fmt.Sprintf("grouped/%d tokens to %d of %d, %dx%d", s.n, s.active, s.experts, s.out, s.in)
		all = append(all, both(name, func(l *lab) { checkGrouped(l, s.n, s.experts, s.active, s.in, s.out) })...)
		all = append(all, both(fmt.Sprintf("combine/%d tokens to %d of %d, %d columns", s.n, s.active, s.experts, s.out),
			func(l *lab) { checkCombine(l, s.n, s.experts, s.active, s.out) })...)
	}
	for _, d := range storedTypes {
		all = append(all, Case{Name: fmt.Sprintf("grouped/%v", d), check: func(l *lab) { checkGroupedStored(l, d, 33, 1, 40) }},
			Case{Name: fmt.Sprintf("grouped/%v, many tokens", d), check: func(l *lab) { checkGroupedStored(l, d, 40, 330) }})
	}
	all = append(all, Case{Name: "grouped/of a parameter", check: checkGroupedParam})
	for _, s := range routes {
		all = append(all, both(fmt.Sprintf("balance/%d tokens to %d of %d", s.n, s.active, s.experts), func(l *lab) { checkBalance(l, s.n, s.experts, s.active) })...)
	}
	for i := range all {
		all[i].needs = device.Experts
	}
	return all
}

// notFinite has rows with NaN and infinities at all places.
func notFinite(l *lab) ref.Mat {
	m := l.random(8, 9, 1)
	for n, v := range []float64{math.NaN(), math.NaN(), math.NaN(), math.Inf(1), math.Inf(-1), math.NaN()} {
		m.Row(n)[n] = v
	}
	for e := range m.Cols {
		m.Row(1)[e] = math.NaN()
		m.Row(6)[e] = math.Inf(-1)
	}
	m.Row(2)[8], m.Row(5)[0] = math.Inf(1), math.NaN()
	return m
}

// choice makes a routing whose tensors hold nothing yet.
func (l *lab) choice(n, experts, active int, renorm bool) device.Routing {
	ints := func(n int) device.Tensor { return l.s.Temp("devicetest slots", device.Batch, tensor.I32, n, 1) }
	return device.Routing{
		Experts: experts, Active: active, Renorm: renorm, Chosen: ints(n * active), Slots: ints(n * active), Rows: ints(n * active), Starts: ints(experts + 1),
	}
}

// dismiss gives the tensors of a routing back.
func (l *lab) dismiss(r device.Routing) { l.s.Release(r.Chosen, r.Slots, r.Rows, r.Starts) }

// compareInts wants exact ids below limit in t, which are read through a gather from a matrix that counts its rows.
func (l *lab) compareInts(name string, t device.Tensor, want []int, limit int) {
	count := ref.New(limit, 1)
	for i := range count.V {
		count.V[i] = float64(i)
	}
	src := l.s.Temp("count", device.Activations, tensor.F32, limit, 1)
	l.s.Upload(src, singles(count))
	got := l.out(tensor.F32, len(want), 1)
	l.s.Gather(got, src, t)
	l.compare(name, "move", got, ref.Embed(count, want), 0)
	l.s.Release(src)
}

// routed makes a routing of random logits, as float64 has it, and uploads it.
func (l *lab) routed(n, experts, active int) (device.Routing, ref.Routed) {
	z := l.random(n, experts, 1)
	for t := range n { // unequal shares; the last experts have no tokens
		for e := range experts {
			z.Row(t)[e] -= float64(6 * e / experts)
		}
	}
	want := ref.Sort(ref.Choose(z, active), experts, active)
	r := device.Routing{Experts: experts, Active: active, Chosen: l.ids(want.Chosen), Slots: l.ids(want.Slots), Rows: l.ids(want.Rows), Starts: l.ids(want.Starts)}
	return r, want
}

// checkRoute compares choice, weights and gradients, with a scale of each expert and without. Rows whose weights are NaN
// must be NaN on the device; their gradients are not looked at.
func checkRoute(l *lab, z ref.Mat, active int, renorm bool) {
	n, experts := z.Rows, z.Cols
	zt := l.in(tensor.F32, z)
	want := ref.Sort(ref.Choose(z, active), experts, active)
	for _, scale := range []ref.Mat{{}, l.random(1, experts, 1)} {
		r := l.choice(n, experts, active, renorm)
		var st, dst device.Tensor
		dscale := l.random(1, experts, 1)
		if scale.V != nil {
			st, dst = l.in(tensor.F32, scale), l.inout(tensor.F32, dscale)
		}
		w := l.out(tensor.F32, n, active)
		l.s.Route(w, zt, st, r)
		limit := n*active + 1
		l.compareInts("chosen", r.Chosen, want.Chosen, experts)
		l.compareInts("slots", r.Slots, want.Slots, limit)
		l.compareInts("rows", r.Rows, want.Rows, max(n, 1))
		l.compareInts("starts", r.Starts, want.Starts, limit)
		wantW := ref.Route(z, scale, want.Chosen, r)
		finite := l.compareOrNaN("weights", w, wantW, "route", 1)

		dw := l.random(n, active, 1)
		dz := l.out(l.act, n, experts)
		l.s.RouteBackward(dz, dst, l.in(tensor.F32, dw), zt, st, r)
		if finite {
			wantZ, wantScale := ref.RouteBackward(dw, z, scale, want.Chosen, r)
			l.compareRowsOf("dz", dz, wantZ, dw)
			if scale.V != nil {
				dscale.Add(wantScale)
				l.compare("dscale", "route", dst, dscale, n)
			}
		} else if scale.V != nil { // what NaN did to it is not looked at
			l.s.Upload(dst, singles(dscale))
		}
		l.dismiss(r)
	}
}

// compareOrNaN is compare where NaN must be NaN. It reports whether there is none.
func (l *lab) compareOrNaN(name string, t device.Tensor, want ref.Mat, op string, n int) bool {
	if !slices.ContainsFunc(want.V, math.IsNaN) {
		l.compare(name, op, t, want, n)
		return true
	}
	got := l.get(t)
	for i, w := range want.V {
		if math.IsNaN(w) != math.IsNaN(got.V[i]) {
			l.errorf("%s: element %d is %g, want %g", name, i, got.V[i], w)
			return false
		}
	}
	for r := range want.Rows {
		if !math.IsNaN(want.Row(r)[0]) {
			l.note(near.Rel(fmt.Sprintf("%s, row %d", name, r), got.Row(r), want.Row(r), l.tol(op, t.DType, n)))
		}
	}
	return false
}

// compareRowsOf compares rows of differences of terms: as large as those of from may they be off.
func (l *lab) compareRowsOf(name string, t device.Tensor, want, from ref.Mat) {
	got := l.get(t)
	for r := range want.Rows {
		size := 0.0
		for _, v := range from.Row(r) {
			size = max(size, math.Abs(v))
		}
		if err := near.Abs(fmt.Sprintf("%s, row %d", name, r), got.Row(r), want.Row(r), 4*size*tol("route", t.DType, 1)); err != nil {
			l.note(err)
			return
		}
	}
}

func checkGrouped(l *lab, n, experts, active, in, out int) {
	r, want := l.routed(n, experts, active)
	slots := n * active
	x, w, bias := l.random(slots, in, 1), l.random(experts*out, in, 1), l.random(experts, out, 1)
	xt, weight, bt := l.in(l.act, x), l.frozen(w), l.in(tensor.F32, bias)
	for _, d := range []tensor.DType{l.act, tensor.F32} {
		y, plain := l.out(d, slots, out), l.out(d, slots, out)
		l.s.GroupedMatMul(y, xt, weight, bt, r)
		l.s.GroupedMatMul(plain, xt, weight, device.Tensor{}, r)
		l.compare("y", "matmul", y, ref.Grouped(x, w, bias, want.Starts), in)
		l.compare("y without bias", "matmul", plain, ref.Grouped(x, w, ref.Mat{}, want.Starts), in)
	}
	dy, dx := l.random(slots, out, 1), l.random(slots, in, 1)
	dw, dbias := l.random(experts*out, in, 1), l.random(experts, out, 1)
	dyt, dxt, added := l.in(l.act, dy), l.out(l.act, slots, in), l.inout(l.act, dx)
	dwt, only, dbt := l.inout(tensor.F32, dw), l.inout(tensor.F32, dw), l.inout(tensor.F32, dbias)
	l.s.GroupedInputGrad(dxt, dyt, weight, r, false)
	l.s.GroupedInputGrad(added, dyt, weight, r, true)
	l.s.GroupedWeightGrad(dwt, dbt, dyt, xt, r)
	l.s.GroupedWeightGrad(only, device.Tensor{}, dyt, xt, r)
	wantX, wantW, wantB := ref.GroupedBackward(dy, x, w, want.Starts)
	l.compare("dx", "matmul", dxt, wantX, out)
	dx.Add(wantX)
	l.compare("dx, added", "matmul", added, dx, out)
	dw.Add(wantW)
	dbias.Add(wantB)
	l.compare("dw", "matmul", dwt, dw, slots)
	l.compare("dw without dbias", "matmul", only, dw, slots)
	l.compare("dbias", "matmul", dbt, dbias, slots)
}

// checkGroupedStored multiplies with experts as a file has them, of a number of rows that fills no panels.
func checkGroupedStored(l *lab, d tensor.DType, out int, tokens ...int) {
	const experts, in = 5, 256
	stored, w := l.store("experts", l.random(experts*out, in, 1), d)
	stored.info.Shape = []int{experts, out, in}
	weight, err := l.weight(device.WeightSpec{Name: "experts", Component: device.TeacherWeights, Parts: []device.Source{stored}, Experts: experts})
	if err != nil {
		l.errorf("Weight: %v", err)
		l.refused = err
		return
	}
	for _, n := range tokens {
		r, want := l.routed(n, experts, 2)
		x, dy := l.random(2*n, in, 1), l.random(2*n, out, 1)
		y, dx := l.out(l.act, 2*n, out), l.out(l.act, 2*n, in)
		l.s.GroupedMatMul(y, l.in(l.act, x), weight, device.Tensor{}, r)
		l.compare(fmt.Sprintf("products of %d tokens", n), "matmul", y, ref.Grouped(x, w, ref.Mat{}, want.Starts), in)
		l.s.GroupedInputGrad(dx, l.in(l.act, dy), weight, r, false)
		wantX, _, _ := ref.GroupedBackward(dy, x, w, want.Starts)
		l.compare(fmt.Sprintf("input gradient of %d tokens", n), "matmul", dx, wantX, out)
	}
}

// checkGroupedParam: a parameter's weight follows its value.
func checkGroupedParam(l *lab) {
	const n, experts, active, in, out = 9, 4, 2, 32, 24
	r, want := l.routed(n, experts, active)
	x := l.random(n*active, in, 1)
	xt := l.in(l.act, x)
	w := l.random(experts*out, in, 1)
	p := l.param("experts", w, true)
	for range 2 {
		y := l.out(l.act, n*active, out)
		l.s.GroupedMatMul(y, xt, p.Weight, device.Tensor{}, r)
		l.compare("y", "matmul", y, ref.Grouped(x, w, ref.Mat{}, want.Starts), in)
		w = l.random(experts*out, in, 1)
		round(w, l.act)
		l.s.Upload(p.Value, singles(w))
		l.s.RefreshWeight(p)
	}
}

func checkCombine(l *lab, n, experts, active, cols int) {
	r, want := l.routed(n, experts, active)
	x, w, before := l.random(n*active, cols, 1), l.random(n, active, 1), l.random(n, cols, 1)
	xt, wt := l.in(l.act, x), l.in(tensor.F32, w)
	for _, weights := range []ref.Mat{w, {}} {
		var t device.Tensor
		if weights.V != nil {
			t = wt
		}
		y, added := l.out(l.act, n, cols), l.inout(l.act, before)
		l.s.Combine(y, xt, t, r, false)
		l.s.Combine(added, xt, t, r, true)
		sum := ref.Combine(x, weights, want.Slots, active)
		l.compare("y", "combine", y, sum, active)
		sum.Add(before)
		l.compare("y, added", "combine", added, sum, active)
	}
	dy := l.random(n, cols, 1)
	dyt, dx, dw, over := l.in(l.act, dy), l.out(l.act, n*active, cols), l.out(tensor.F32, n, active), l.inout(l.act, x)
	l.s.CombineBackward(dx, dw, dyt, xt, wt, r)
	wantX, wantW := ref.CombineBackward(dy, x, w, want.Slots, active)
	l.compare("dx", "combine", dx, wantX, 1)
	l.compare("dw", "matmul", dw, wantW, cols)
	again := l.out(tensor.F32, n, active)
	l.s.CombineBackward(over, again, dyt, over, wt, r)
	l.compare("dx over x", "move", over, l.get(dx), 0)
	l.compare("dw of dx over x", "move", again, l.get(dw), 0)
}

// checkBalance counts the slots of two layers, and goes back from them to the logits of one.
func checkBalance(l *lab, n, experts, active int) {
	before := l.integers(1, experts)
	c := l.inout(tensor.F32, before)
	for range 2 {
		r, want := l.routed(n, experts, active)
		l.s.CountSlots(c, r)
		before.Add(ref.CountSlots(want.Starts))
	}
	l.compare("counts", "move", c, before, 0)
	z, dz, f := l.random(n, experts, 2), l.random(n, experts, 1), 0.3
	zt, dzt := l.in(tensor.F32, z), l.inout(l.act, dz)
	l.s.BalanceBackward(dzt, zt, l.in(tensor.F32, before), f)
	add := ref.BalanceBackward(z, before, f)
	dz.Add(add)
	from := ref.New(n, experts)
	for i, v := range dz.V {
		from.V[i] = math.Abs(v) + math.Abs(add.V[i])
	}
	l.compareRowsOf("dz", dzt, dz, from)
}
