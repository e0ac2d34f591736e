package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// mapPair are two attentions over the same rows whose maps are compared.
type mapPair struct {
	own, big     device.Attn
	scale        float64 // of q and k
	docs         func(device.Attn) []int
	sinks, their float64 // scales of the sinks of student and teacher; 0: none
	keep         int     // every keep-th row does not count; 0: all count
}

func (p mapPair) String() string {
	s := fmt.Sprintf("%d rows of %d, heads %d:%d of %d and %d:%d of %d, windows %d and %d, caps %g and %g, sinks %g and %g",
		p.own.Batch, p.own.QLen, p.own.Heads, p.own.KVHeads, p.own.HeadDim, p.big.Heads, p.big.KVHeads, p.big.HeadDim, p.own.Window, p.big.Window, p.own.Cap, p.big.Cap, p.sinks, p.their)
	if p.docs != nil {
		s += ", documents"
	}
	if p.keep > 0 {
		s += fmt.Sprintf(", every %d-th masked", p.keep)
	}
	if p.scale != 1 {
		s += fmt.Sprintf(", values times %g", p.scale)
	}
	return s
}

// mapCases compare attention maps of heads of several numbers and widths, with windows, documents, soft-caps, sinks and masks.
func mapCases() []Case {
	var all []Case
	add := func(p mapPair) {
		all = append(all, both("maps/"+p.String(), func(l *lab) { checkMaps(l, p) })...)
	}
	heads := [][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 3}, {14, 2}}
	for i, d := range []int{8, 16, 64, 80, 128, 256} {
		own, big := heads[i%5], heads[(i+2)%5]
		n := []int{1, 17, 33, 65, 70, 130}[i]
		p := mapPair{own: train(1+i%2, n, own, d), big: train(1+i%2, n, big, []int{32, 16, 128, 64, 24, 96}[i]), scale: 1}
		add(p)
		p.docs, p.keep = documents, 3
		add(p)
		p.own.Window, p.big.Window, p.own.Cap, p.big.Scale = n/2+3, n/2, 2, .2
		add(p)
		p.own.Window, p.big.Cap, p.sinks = 0, 1.5, 2
		add(p)
		p.docs, p.their, p.keep = nil, .5, 2
		add(p)
	}
	for _, p := range []mapPair{
		{own: train(2, 33, heads[2], 32), big: train(2, 33, heads[1], 32), scale: 0},          // equal scores
		{own: train(2, 33, heads[2], 32), big: train(2, 33, heads[2], 32), scale: 4, keep: 2}, // of few keys each, most probabilities vanish
		{own: train(1, 200, heads[1], 16), big: train(1, 200, heads[2], 16), scale: 1, keep: 5},
	} {
		add(p)
		p.own.Window, p.big.Window, p.sinks, p.docs = 1, 1, 1, documents
		add(p)
	}
	return all
}

func checkMaps(l *lab, p mapPair) {
	var first device.Tensor
	var docs []int
	if p.docs != nil {
		docs = p.docs(p.own)
		first = l.ids(docs)
	}
	own, mine := l.side(p.own, p.scale, p.sinks, first, docs)
	big, theirs := l.side(p.big, p.scale, p.their, first, docs)
	rows := p.own.Batch * p.own.QLen
	var named device.Tensor
	var counts []bool
	if p.keep > 0 {
		var list []int
		counts = make([]bool, rows)
		for r := range rows {
			if counts[r] = r%p.keep != p.keep-1; counts[r] {
				list = append(list, r)
			}
		}
		named = l.ids(list)
	}
	const weight = 40 // gradients are of the size of what they are added to
	sum, wantQ, wantK, wantB := ref.AttentionDivergence(mine, theirs, counts, weight, invN)
	dq, dk, db := l.random(wantQ.Rows, wantQ.Cols, .1), l.random(wantK.Rows, wantK.Cols, .1), l.random(1, p.own.Heads, .1)
	dqt, dkt := l.inout(l.act, dq), l.inout(l.act, dk)
	if p.sinks > 0 {
		own.Attn.DSinks = l.inout(tensor.F32, db)
	}
	wantQ.Add(dq)
	wantK.Add(dk)
	wantB.Add(db)
	l.start()
	l.s.CompareMaps(dqt, dkt, own, big, named, weight)

	loose := 1 + 4*p.scale*p.scale*max(1, p.own.ScoreScale()*math.Sqrt(float64(p.own.HeadDim)), p.big.ScoreScale()*math.Sqrt(float64(p.big.HeadDim)))
	score := loose * (tol("attention", tensor.F32, p.own.HeadDim+p.big.HeadDim) + l.rounding("scores", l.act))
	l.note(near.Abs("divergence", []float64{l.record().Sums[device.AttentionTransfer]}, []float64{sum}, 2*score*float64(rows)))
	allowed := 2 * (l.tol("attention", l.act, p.own.HeadDim+p.own.QLen*p.own.Heads/p.own.KVHeads) + score)
	l.compareScaled("dq", dqt, wantQ, allowed)
	l.compareScaled("dk", dkt, wantK, allowed)
	if p.sinks > 0 {
		l.compareScaled("dsinks", own.Attn.DSinks, wantB, 4*score+tol("attention", tensor.F32, rows))
	}
}

// side makes one side of a comparison, whose lse is Attention's.
func (l *lab) side(a device.Attn, scale, sinks float64, first device.Tensor, docs []int) (device.AttnMap, ref.Map) {
	n := a.Batch * a.QLen
	q, k, v := l.random(n, a.Heads*a.HeadDim, scale), l.random(n, a.KVHeads*a.HeadDim, scale), l.random(n, a.KVHeads*a.HeadDim, 1)
	a.First = first
	m := ref.Map{Q: q, K: k, Attn: a, First: docs}
	if sinks > 0 {
		b := l.random(1, a.Heads, sinks)
		a.Sinks, m.Sinks = l.in(tensor.F32, b), b.V
	}
	of := device.AttnMap{Q: l.in(l.act, q), K: l.in(l.act, k), LSE: l.out(tensor.F32, n, a.Heads), Attn: a}
	l.s.Attention(l.out(l.act, n, a.Heads*a.HeadDim), of.LSE, of.Q, of.K, l.in(l.act, v), a)
	return of, m
}

// compared are the operands of CompareMaps.
type compared struct {
	dq, dk   device.Tensor
	own, big device.AttnMap
	rows     device.Tensor
	weight   float64
}

func mapRefusals() []Refusal {
	operands := func(k *desk) compared {
		side := func(heads, d int) device.AttnMap {
			return device.AttnMap{Q: k.acts(6, heads*d), K: k.acts(6, d), LSE: k.single(6, heads), Attn: train(2, 3, [2]int{heads, 1}, d)}
		}
		return compared{k.acts(6, 8), k.acts(6, 4), side(2, 4), side(3, 8), k.ids(4), .5}
	}
	return refusals(device.OpCompareMaps, operands, func(s device.Stream, a compared) { s.CompareMaps(a.dq, a.dk, a.own, a.big, a.rows, a.weight) },
		wrong[compared]{"no lse", noTensor, func(_ *desk, a *compared) { a.big.LSE = device.Tensor{} }},
		wrong[compared]{"q given back", given, func(k *desk, a *compared) { a.own.Q = k.gone(k.act, 6, 8) }},
		wrong[compared]{"columns of dk", wrongShapes, func(k *desk, a *compared) { a.dk = k.acts(6, 8) }},
		wrong[compared]{"dq of another type", wrongTypes, func(k *desk, a *compared) { a.dq = k.others(6, 8) }},
		wrong[compared]{"other rows", wrongShapes, func(k *desk, a *compared) {
			a.big.Attn.Batch, a.big.Attn.QLen, a.big.Attn.KLen, a.big.Attn.KStride = 3, 2, 2, 2
		}},
		wrong[compared]{"keys before the first query", "queries and keys are not those of whole rows", func(_ *desk, a *compared) {
			a.big.Attn.Batch, a.big.Attn.KLen, a.big.Attn.KStride, a.big.Attn.QOffset, a.big.Attn.QLen = 1, 6, 6, 0, 6
			a.own.Attn.Batch, a.own.Attn.QLen, a.own.Attn.KLen, a.own.Attn.KStride = 1, 6, 6, 7
		}},
		wrong[compared]{"other documents", "the maps are of other documents", func(k *desk, a *compared) { a.own.Attn.First = k.ids(6) }},
		wrong[compared]{"a narrower window", "the student's window is narrower than the teacher's", func(_ *desk, a *compared) { a.own.Attn.Window, a.big.Attn.Window = 1, 2 }},
		wrong[compared]{"a window beside none", "the student's window is narrower than the teacher's", func(_ *desk, a *compared) { a.own.Attn.Window = 2 }},
		wrong[compared]{"sinks of the teacher alone", "the teacher has sinks and the student none", func(k *desk, a *compared) { a.big.Attn.Sinks = k.single(1, 3) }},
		wrong[compared]{"a gradient of the teacher's sinks", "a gradient of the teacher's sinks", func(k *desk, a *compared) { a.big.Attn.DSinks = k.single(1, 3) }},
		wrong[compared]{"a gradient without sinks", "a gradient of sinks that are not there", func(k *desk, a *compared) { a.own.Attn.DSinks = k.single(1, 2) }},
		wrong[compared]{"rows of floats", noIDs, func(k *desk, a *compared) { a.rows = k.single(4, 1) }},
		wrong[compared]{"more rows than there are", wrongShapes, func(k *desk, a *compared) { a.rows = k.ids(7) }},
		wrong[compared]{"weight NaN", noFactor, func(_ *desk, a *compared) { a.weight = math.NaN() }},
	)
}
