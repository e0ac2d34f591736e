package devicetest

import (
	"fmt"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// linearCases are convolutions and delta rules.
func linearCases() []Case {
	var all []Case
	for _, c := range []struct{ batch, n, channels, taps int }{{1, 1, 1, 1}, {2, 7, 5, 3}, {3, 2, 65, 4}, {1, 130, 33, 4}, {1, 130, 34, 4}, {3, 2, 66, 4}, {2, 73, 300, 4}, {2, 17, 128, 2}, {2, 3, 9, 7}, {1, 0, 4, 4}} {
		s := device.Sequences{Batch: c.batch, Len: c.n}
		name := fmt.Sprintf("conv/%d sequences of %d, %d channels, %d taps", c.batch, c.n, c.channels, c.taps)
		all = append(all, both(name, func(l *lab) { checkConv(l, s, c.channels, c.taps, false) })...)
		all = append(all, both(name+", documents", func(l *lab) { checkConv(l, s, c.channels, c.taps, true) })...)
	}
	add := func(name string, d device.Delta, scale float64) {
		name = fmt.Sprintf("delta/%s%d sequences of %d, heads %d:%d of %d and %d", name, d.Batch, d.Len, d.KeyHeads, d.ValueHeads, d.KeyDim, d.ValueDim)
		all = append(all, both(name, func(l *lab) { checkDelta(l, d, scale, false) })...)
		all = append(all, both(name+", documents", func(l *lab) { checkDelta(l, d, scale, true) })...)
	}
	rule := func(batch, n, hk, hv, dk, dv int) device.Delta {
		return device.Delta{Sequences: device.Sequences{Batch: batch, Len: n}, KeyHeads: hk, ValueHeads: hv, KeyDim: dk, ValueDim: dv}
	}
	for i, n := range []int{0, 1, 2, 7, 9, 33, 63, 64, 65, 127, 128, 129} {
		heads := [][2]int{{1, 1}, {2, 4}, {2, 6}, {3, 3}}[i%4]
		add("", rule(1+i%3, n, heads[0], heads[1], []int{4, 16, 7}[i%3], []int{8, 16, 5}[i%3]), 1)
	}
	add("", rule(1, 70, 1, 2, 128, 128), 1)
	add("", rule(2, 150, 1, 2, 48, 40), 1)
	add("tiny, ", rule(2, 20, 2, 4, 8, 8), 3e-4) // eps counts
	add("large, ", rule(2, 20, 2, 4, 8, 8), 30)
	return all
}

// documentsOf returns First of documents of several lengths, of one position too.
func documentsOf(c device.Sequences) []int {
	return documents(device.Attn{Batch: c.Batch, QLen: c.Len})
}

func checkConv(l *lab, c device.Sequences, channels, taps int, docs bool) {
	var first []int
	if docs {
		first = documentsOf(c)
		c.First = l.ids(first)
	}
	n, k := c.Batch*c.Len, taps-1
	x, w, dy := l.random(n, channels, 1), l.random(channels, taps, 1), l.random(n, channels, 1)
	xt, wt, y := l.in(l.act, x), l.in(tensor.F32, w), l.out(l.act, n, channels)
	var none device.Tensor
	l.s.Conv(y, xt, wt, none, none, c)
	want, _ := ref.Conv(x, w, c, first, ref.Mat{})
	l.compare("y", "conv", y, want, taps)

	dw := l.random(channels, taps, 1)
	dx, dwt := l.out(l.act, n, channels), l.inout(tensor.F32, dw)
	l.s.ConvBackward(dx, dwt, l.in(l.act, dy), xt, wt, c)
	wantX, wantW := ref.ConvBackward(dy, x, w, c, first)
	l.compareScaled("dx", dx, wantX, 2*tol("conv", l.act, 2*taps)) // through the sum of the taps, and a sum of its own
	dw.Add(wantW)
	l.compare("dw", "conv", dwt, dw, n)
	if docs || k == 0 {
		return
	}
	from := l.random(c.Batch*k, channels, 1)
	ft, to, next := l.in(l.act, from), l.out(l.act, c.Batch*k, channels), l.out(l.act, n, channels)
	l.s.Conv(next, xt, wt, ft, to, c)
	want, last := ref.Conv(x, w, c, nil, from)
	l.compare("y behind other inputs", "conv", next, want, taps)
	l.compare("last inputs", "move", to, last, 0)
	over := l.inout(l.act, from)
	l.s.Conv(next, xt, wt, over, over, c)
	l.compare("last inputs over those before", "move", over, last, 0)
	alone := l.out(l.act, c.Batch*k, channels)
	l.s.Conv(next, xt, wt, none, alone, c)
	_, last = ref.Conv(x, w, c, nil, ref.Mat{})
	l.compare("last inputs behind none", "move", alone, last, 0)
}

func checkDelta(l *lab, d device.Delta, scale float64, docs bool) {
	var first []int
	if docs {
		first = documentsOf(d.Sequences)
		d.First = l.ids(first)
	}
	n, hv, state := d.Batch*d.Len, d.ValueHeads, d.KeyDim*d.ValueDim
	u, ba, do := l.random(n, d.Channels(), scale), l.random(n, 2*hv, 1.5), l.random(n, d.Inner(), 1)
	logA, dt := l.random(1, hv, 1), l.random(1, hv, 1)
	ut, bat, at, tt := l.in(l.act, u), l.in(l.act, ba), l.in(tensor.F32, logA), l.in(tensor.F32, dt)
	var none device.Tensor
	o := l.out(l.act, n, d.Inner())
	l.s.DeltaNet(o, ut, bat, at, tt, none, none, d)
	want, _ := ref.DeltaNet(u, ba, logA, dt, d, first, ref.Mat{})
	terms := d.KeyDim + min(d.Len, device.DeltaChunk)
	l.compare("o", "delta", o, want, terms)

	dLogA, ddt := l.random(1, hv, 1), l.random(1, hv, 1)
	du, dba, dat, dtt := l.out(l.act, n, d.Channels()), l.out(l.act, n, 2*hv), l.inout(tensor.F32, dLogA), l.inout(tensor.F32, ddt)
	states := l.s.Temp("states", device.Scratch, tensor.F32, d.Batch*hv*d.Chunks(), state)
	l.s.DeltaNetBackward(du, dba, dat, dtt, l.in(l.act, do), ut, bat, at, tt, states, d)
	l.s.Release(states)
	wantU, wantBA, wantLogA, wantDT := ref.DeltaNetBackward(do, u, ba, logA, dt, d, first)
	// Gradients of q and k are what is left of terms that l2 cancels in part.
	allowed := 4 * tol("delta", l.act, terms+d.ValueDim)
	kd := d.KeyHeads * d.KeyDim
	for _, part := range []struct {
		name   string
		lo, hi int
	}{{"dq", 0, kd}, {"dk", kd, 2 * kd}, {"dv", 2 * kd, d.Channels()}} {
		l.compareScaled(part.name, du.ColRange(part.lo, part.hi), wantU.ColRange(part.lo, part.hi), allowed)
	}
	l.compareScaled("db", dba.ColRange(0, hv), wantBA.ColRange(0, hv), allowed)
	l.compareScaled("da", dba.ColRange(hv, 2*hv), wantBA.ColRange(hv, 2*hv), allowed)
	dLogA.Add(wantLogA)
	ddt.Add(wantDT)
	allowed += tol("delta", tensor.F32, n)
	l.compareScaled("dLogA", dat, dLogA, allowed)
	l.compareScaled("ddt", dtt, ddt, allowed)
	if docs {
		return
	}
	from := l.random(d.Batch*hv, state, 1)
	next, to, over := l.out(l.act, n, d.Inner()), l.out(tensor.F32, d.Batch*hv, state), l.inout(tensor.F32, from)
	l.s.DeltaNet(next, ut, bat, at, tt, l.in(tensor.F32, from), to, d)
	want, last := ref.DeltaNet(u, ba, logA, dt, d, nil, from)
	l.compare("o behind a state", "delta", next, want, terms)
	l.compare("state", "delta", to, last, terms)
	l.s.DeltaNet(next, ut, bat, at, tt, over, over, d)
	l.compare("state over that before", "move", over, l.get(to), 0)
}

// convolved are the operands of Conv and its backward.
type convolved struct {
	y, x, w, from, to, dx, dw, dy device.Tensor
	c                             device.Sequences
}

// ruled are the operands of DeltaNet and its backward.
type ruled struct {
	o, u, ba, logA, dt, from, to, du, dba, dLogA, ddt, do, states device.Tensor
	d                                                             device.Delta
}

func linearRefusals() []Refusal {
	const documents, taps = "documents of sequences that go on", "the taps are not those of the channels"
	both := []wrong[convolved]{
		{"taps of another number of channels", taps, func(k *desk, a *convolved) { a.w = k.single(5, 3) }},
		{"no taps", taps, func(k *desk, a *convolved) { a.w = k.single(4, 0) }},
		{"w of another type", noFloat32, func(k *desk, a *convolved) { a.w = k.narrow(4, 3) }},
		{"rows", wrongShapes, func(_ *desk, a *convolved) { a.c.Len = 4 }},
		{"a negative batch", "a number of rows is negative", func(_ *desk, a *convolved) { a.c.Batch, a.c.Len = -2, -5 }},
		{"fewer first keys", wrongShapes, func(k *desk, a *convolved) { a.c.First = k.ids(9) }},
		{"no x", noTensor, func(_ *desk, a *convolved) { a.x = device.Tensor{} }},
		{"given back", given, func(k *desk, a *convolved) { a.x = k.gone(k.act, 10, 4) }},
	}
	all := refusals(device.OpConv, func(k *desk) convolved {
		return convolved{y: k.acts(10, 4), x: k.acts(10, 4), w: k.single(4, 3), from: k.acts(4, 4), to: k.acts(4, 4), c: device.Sequences{Batch: 2, Len: 5}}
	}, func(s device.Stream, a convolved) { s.Conv(a.y, a.x, a.w, a.from, a.to, a.c) }, append(both,
		wrong[convolved]{"columns of y", wrongShapes, func(k *desk, a *convolved) { a.y = k.acts(10, 5) }},
		wrong[convolved]{"y of another type", wrongTypes, func(k *desk, a *convolved) { a.y = k.others(10, 4) }},
		wrong[convolved]{"inputs before of another number", wrongShapes, func(k *desk, a *convolved) { a.from = k.acts(6, 4) }},
		wrong[convolved]{"last inputs of another type", wrongTypes, func(k *desk, a *convolved) { a.to = k.others(4, 4) }},
		wrong[convolved]{"documents", documents, func(k *desk, a *convolved) { a.c.First = k.ids(10) }},
	)...)
	all = append(all, refusals(device.OpConvBackward, func(k *desk) convolved {
		return convolved{dx: k.acts(10, 4), dw: k.single(4, 3), dy: k.acts(10, 4), x: k.acts(10, 4), w: k.single(4, 3), c: device.Sequences{Batch: 2, Len: 5}}
	}, func(s device.Stream, a convolved) { s.ConvBackward(a.dx, a.dw, a.dy, a.x, a.w, a.c) }, append(both,
		wrong[convolved]{"rows of dx", wrongShapes, func(k *desk, a *convolved) { a.dx = k.acts(9, 4) }},
		wrong[convolved]{"dy of another type", wrongTypes, func(k *desk, a *convolved) { a.dy = k.others(10, 4) }},
		wrong[convolved]{"columns of dw", wrongShapes, func(k *desk, a *convolved) { a.dw = k.single(4, 2) }},
		wrong[convolved]{"dw of another type", noFloat32, func(k *desk, a *convolved) { a.dw = k.narrow(4, 3) }},
	)...)...)
	rules := []wrong[ruled]{
		{"heads", "heads do not divide", func(_ *desk, a *ruled) { a.d.KeyHeads = 3 }},
		{"no key heads", "heads do not divide", func(_ *desk, a *ruled) { a.d.KeyHeads = 0 }},
		{"heads of nothing", "heads have no values", func(_ *desk, a *ruled) { a.d.KeyDim = 0 }},
		{"columns of u", wrongShapes, func(k *desk, a *ruled) { a.u = k.acts(10, 31) }},
		{"columns of ba", wrongShapes, func(k *desk, a *ruled) { a.ba = k.acts(10, 4) }},
		{"ba of another type", wrongTypes, func(k *desk, a *ruled) { a.ba = k.others(10, 8) }},
		{"logA of another length", noVector, func(k *desk, a *ruled) { a.logA = k.single(1, 8) }},
		{"dt of another type", noFloat32, func(k *desk, a *ruled) { a.dt = k.narrow(1, 4) }},
		{"rows", wrongShapes, func(_ *desk, a *ruled) { a.d.Batch = 1 }},
		{"fewer first keys", wrongShapes, func(k *desk, a *ruled) { a.d.First = k.ids(9) }},
		{"given back", given, func(k *desk, a *ruled) { a.u = k.gone(k.act, 10, 32) }},
	}
	operands := func(k *desk) ruled {
		d := device.Delta{Sequences: device.Sequences{Batch: 2, Len: 5}, KeyHeads: 2, ValueHeads: 4, KeyDim: 3, ValueDim: 5}
		return ruled{
			o: k.acts(10, 20), u: k.acts(10, 32), ba: k.acts(10, 8), logA: k.single(1, 4), dt: k.single(1, 4), from: k.single(8, 15), to: k.single(8, 15),
			du: k.acts(10, 32), dba: k.acts(10, 8), dLogA: k.single(1, 4), ddt: k.single(1, 4), do: k.acts(10, 20), states: k.single(8, 15), d: d,
		}
	}
	all = append(all, refusals(device.OpDeltaNet, operands, func(s device.Stream, a ruled) {
		s.DeltaNet(a.o, a.u, a.ba, a.logA, a.dt, a.from, a.to, a.d)
	}, append(rules,
		wrong[ruled]{"columns of o", wrongShapes, func(k *desk, a *ruled) { a.o = k.acts(10, 16) }},
		wrong[ruled]{"o of another type", wrongTypes, func(k *desk, a *ruled) { a.o = k.others(10, 20) }},
		wrong[ruled]{"a state for each sequence", wrongShapes, func(k *desk, a *ruled) { a.from = k.single(2, 15) }},
		wrong[ruled]{"a state in bfloat16", noFloat32, func(k *desk, a *ruled) { a.to = k.narrow(8, 15) }},
		wrong[ruled]{"documents", documents, func(k *desk, a *ruled) { a.d.First = k.ids(10) }},
	)...)...)
	return append(all, refusals(device.OpDeltaNetBackward, operands, func(s device.Stream, a ruled) {
		s.DeltaNetBackward(a.du, a.dba, a.dLogA, a.ddt, a.do, a.u, a.ba, a.logA, a.dt, a.states, a.d)
	}, append(rules,
		wrong[ruled]{"columns of du", wrongShapes, func(k *desk, a *ruled) { a.du = k.acts(10, 30) }},
		wrong[ruled]{"dba of another type", wrongTypes, func(k *desk, a *ruled) { a.dba = k.others(10, 8) }},
		wrong[ruled]{"columns of do", wrongShapes, func(k *desk, a *ruled) { a.do = k.acts(10, 16) }},
		wrong[ruled]{"states of fewer chunks", wrongShapes, func(k *desk, a *ruled) { a.states = k.single(7, 15) }},
		wrong[ruled]{"states with gaps", "a tensor has gaps between its rows", func(k *desk, a *ruled) { a.states = k.single(8, 20).ColRange(0, 15) }},
		wrong[ruled]{"states in bfloat16", noFloat32, func(k *desk, a *ruled) { a.states = k.narrow(8, 15) }},
		wrong[ruled]{"ddt of another length", noVector, func(k *desk, a *ruled) { a.ddt = k.single(1, 8) }},
		wrong[ruled]{"no do", noTensor, func(_ *desk, a *ruled) { a.do = device.Tensor{} }},
	)...)...)
}
