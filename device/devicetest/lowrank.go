package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// lowPart is an adapter of columns [lo,hi) of a product's output.
type lowPart struct {
	lo, hi, rank int
	scale        float64
}

// lowShape are adapters of a product of x[n,in] with out columns.
type lowShape struct {
	n, in, out int
	parts      []lowPart
}

// lowShapes are of ranks that kernels know and of others, of stacks all of whose columns have an adapter and some, of several row blocks.
var lowShapes = []lowShape{
	{1, 1, 1, []lowPart{{0, 1, 1, 1}}},
	{5, 33, 7, []lowPart{{2, 7, 3, .5}}},
	{70, 64, 48, []lowPart{{0, 48, 8, 2}}},
	{130, 264, 200, []lowPart{{0, 64, 32, 2}, {64, 136, 32, 2}, {136, 200, 16, .25}}},
	{700, 40, 72, []lowPart{{8, 72, 40, 1}}},
	{65, 600, 136, []lowPart{{0, 72, 64, -1.5}, {72, 136, 72, 2}}},
	{33, 72, 64, []lowPart{{0, 64, 128, .5}}},
	{33, 72, 96, []lowPart{{0, 8, 8, 1}, {8, 24, 8, 2}, {24, 32, 16, 3}, {32, 48, 8, 4}, {64, 96, 8, 5}}},
	{17, 64, 40, []lowPart{{0, 16, 4, 2}, {16, 40, 12, 1}}},
	{0, 8, 8, []lowPart{{0, 8, 8, 2}}},
}

// lowGated are of gate and up, both with an adapter or one of them.
var lowGated = []lowShape{
	{1, 3, 2, []lowPart{{0, 1, 1, 2}}},
	{70, 64, 144, []lowPart{{0, 72, 32, 2}, {72, 144, 16, .5}}},
	{33, 40, 80, []lowPart{{40, 80, 40, 2}}},
	{33, 40, 80, []lowPart{{0, 40, 72, 2}}},
	{50, 40, 64, []lowPart{{0, 32, 64, 2}, {32, 64, 64, 2}}},
}

// lowProducts are those of gate and up that one kernel may make with their products, and small ones.
var lowProducts = []lowShape{
	{5, 16, 16, []lowPart{{0, 8, 8, 2}, {8, 16, 8, 2}}},
	{64, 64, 256, []lowPart{{0, 128, 8, 2}, {128, 256, 8, .5}}},
	{300, 200, 272, []lowPart{{0, 136, 32, 2}, {136, 272, 32, 2}}},
	{130, 72, 128, []lowPart{{64, 128, 16, .25}}},
	{257, 896, 144, []lowPart{{0, 72, 64, 2}, {72, 144, 40, 1}}},
}

func lowRankCases() []Case {
	var all []Case
	for _, s := range lowProducts {
		name := fmt.Sprintf("lowrank/%dx%dx%d, rank %d, with the product", s.n, s.in, s.out, s.parts[0].rank)
		all = append(all, both(name, func(l *lab) { checkLowRankProduct(l, s) })...)
	}
	for _, s := range lowShapes {
		name := fmt.Sprintf("lowrank/%dx%dx%d, %d adapters of rank %d", s.n, s.in, s.out, len(s.parts), s.parts[0].rank)
		all = append(all, both(name, func(l *lab) { checkLowRank(l, s) })...)
		all = append(all, both(name+" backward", func(l *lab) { checkLowRankGrads(l, s) })...)
	}
	for _, s := range lowGated {
		for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS} {
			name := fmt.Sprintf("lowrank/%dx%dx%d, rank %d, %v", s.n, s.in, s.out, s.parts[0].rank, act)
			all = append(all, both(name, func(l *lab) { checkLowRankGLU(l, s, act) })...)
		}
	}
	return all
}

// lowValues are those of adapters: A, and B and its gradient so far by part.
type lowValues struct {
	a, gradA ref.Mat
	b, gradB []ref.Mat
}

// lowRank makes the adapters of a shape.
func (l *lab) lowRank(s lowShape) (device.LowRank, lowValues) {
	var out device.LowRank
	var v lowValues
	rank := 0
	for _, p := range s.parts {
		b, grad := l.random(p.hi-p.lo, p.rank, 1/math.Sqrt(float64(p.rank))), l.random(p.hi-p.lo, p.rank, 1)
		out.Parts = append(out.Parts, device.LowRankPart{
			Lo: p.lo, Hi: p.hi, From: rank, To: rank + p.rank, Scale: p.scale, B: l.frozen(b), GradB: l.inout(tensor.F32, grad),
		})
		v.b, v.gradB = append(v.b, b), append(v.gradB, grad)
		rank += p.rank
	}
	v.a, v.gradA = l.random(rank, s.in, 1/math.Sqrt(float64(max(1, s.in)))), l.random(rank, s.in, 1)
	out.A, out.GradA = l.frozen(v.a), l.inout(tensor.F32, v.gradA)
	return out, v
}

// checkLowRank: u is the product with A, and what is added to y follows from u as stored. Columns of no part keep their bits, and so do
// all where B is zero.
func checkLowRank(l *lab, s lowShape) {
	low, v := l.lowRank(s)
	x, before := l.random(s.n, s.in, 1), l.random(s.n, s.out, 1)
	xt, y, u := l.in(l.act, x), l.inout(l.act, before), l.out(l.act, s.n, v.a.Rows)
	l.s.LowRank(y, device.Tensor{}, u, xt, low, 0)
	l.compare("u", "matmul", u, ref.Linear(x, v.a, ref.Mat{}), s.in)
	want, stored := before.Clone(), l.get(u)
	most := 1
	for i, p := range low.Parts {
		addColumns(want, p.Lo, ref.Scale(ref.Linear(stored.ColRange(p.From, p.To), v.b[i], ref.Mat{}), p.Scale))
		most = max(most, p.To-p.From)
	}
	l.compare("y", "matmul", y, want, most)
	alone := l.out(l.act, s.n, v.a.Rows)
	l.s.LowRank(device.Tensor{}, device.Tensor{}, alone, xt, low, 0)
	l.compare("u alone", "move", alone, stored, 0)
	for i, p := range low.Parts {
		low.Parts[i].B = l.frozen(ref.New(p.Hi-p.Lo, p.To-p.From))
	}
	same := l.inout(l.act, before)
	l.s.LowRank(same, device.Tensor{}, u, xt, low, 0)
	l.compare("y and zeros", "move", same, before, 0)
}

// addColumns adds m to the columns of dst from lo on.
func addColumns(dst ref.Mat, lo int, m ref.Mat) {
	for r := range m.Rows {
		for c, v := range m.Row(r) {
			dst.Row(r)[lo+c] += v
		}
	}
}

// checkLowRankGrads: the gradients of A, B and x, the first of which follow from du as stored, twice the same bits.
func checkLowRankGrads(l *lab, s lowShape) {
	low, v := l.lowRank(s)
	rank := v.a.Rows
	x, dy, u := l.random(s.n, s.in, 1), l.random(s.n, s.out, 1), l.random(s.n, rank, 1)
	xt, dyt, ut, du := l.in(l.act, x), l.in(l.act, dy), l.in(l.act, u), l.out(l.act, s.n, rank)
	again := low
	again.GradA, again.Parts = l.inout(tensor.F32, v.gradA), append([]device.LowRankPart(nil), low.Parts...)
	for i := range again.Parts {
		again.Parts[i].GradB = l.inout(tensor.F32, v.gradB[i])
	}
	l.s.LowRankWeightGrad(du, dyt, xt, ut, low)
	l.s.LowRankWeightGrad(l.out(l.act, s.n, rank), dyt, xt, ut, again)
	wantU := ref.New(s.n, rank)
	for i, p := range low.Parts {
		part := dy.ColRange(p.Lo, p.Hi)
		d, db, _ := ref.LinearBackward(part, u.ColRange(p.From, p.To), v.b[i])
		addColumns(wantU, p.From, ref.Scale(d, p.Scale))
		wantB := v.gradB[i].Clone()
		wantB.Add(ref.Scale(db, p.Scale))
		l.compare(fmt.Sprintf("gradient of B %d", i), "matmul", p.GradB, wantB, s.n)
		l.compare(fmt.Sprintf("gradient of B %d again", i), "move", again.Parts[i].GradB, l.get(p.GradB), 0)
	}
	l.compare("du", "matmul", du, wantU, s.out)
	stored := l.get(du)
	dx, da, _ := ref.LinearBackward(stored, x, v.a)
	wantA := v.gradA.Clone()
	wantA.Add(da)
	l.compare("gradient of A", "matmul", low.GradA, wantA, s.n)
	l.compare("gradient of A again", "move", again.GradA, l.get(low.GradA), 0)
	before := l.random(s.n, s.in, 1)
	written, added := l.out(l.act, s.n, s.in), l.inout(l.act, before)
	l.s.LowRankInputGrad(written, du, low, false)
	l.s.LowRankInputGrad(added, du, low, true)
	l.compare("dx", "matmul", written, dx, rank)
	dx.Add(before)
	l.compare("dx, added", "matmul", added, dx, rank)
}

// checkLowRankGLU: y is that without the gated unit, bit for bit, and the unit GLU of it as stored.
func checkLowRankGLU(l *lab, s lowShape, act device.Activation) {
	low, v := l.lowRank(s)
	x, before := l.random(s.n, s.in, 1), l.random(s.n, s.out, 1)
	xt, y, alone, u := l.in(l.act, x), l.inout(l.act, before), l.inout(l.act, before), l.out(l.act, s.n, v.a.Rows)
	m, again := l.out(l.act, s.n, s.out/2), l.out(l.act, s.n, s.out/2)
	l.s.LowRank(y, m, u, xt, low, act)
	l.s.LowRank(alone, device.Tensor{}, u, xt, low, 0)
	l.compare("y", "move", y, l.get(alone), 0)
	l.compare("m", gluTol(act), m, ref.GLU(l.get(y), act), 1)
	l.s.GLU(again, y, act)
	l.compare("GLU of y", "move", again, l.get(m), 0)
}

// checkLowRankProduct: a gated layer's product with what adapters add, of u as stored, and its unit. A stream that
// is no device.GatedAdapters, or does not serve these, makes the product first. One that does has with all B zero the
// bits of MatMulGLU.
func checkLowRankProduct(l *lab, s lowShape) {
	const act = device.SiLU
	low, v := l.lowRank(s)
	x, w := l.random(s.n, s.in, 1), l.random(s.out, s.in, 1/math.Sqrt(float64(s.in)))
	xt, weight := l.in(l.act, x), l.frozen(w)
	gu, m, u := l.out(l.act, s.n, s.out), l.out(l.act, s.n, s.out/2), l.out(l.act, s.n, v.a.Rows)
	l.s.LowRank(device.Tensor{}, device.Tensor{}, u, xt, low, 0)
	at, ok := l.s.(device.GatedAdapters)
	serves := ok && at.ServesLowRankGLU(m, gu, xt, u, weight, low, act)
	run := func(m, gu device.Tensor) {
		if serves {
			at.MatMulLowRankGLU(m, gu, xt, u, weight, low, act)
			return
		}
		l.s.MatMul(gu, xt, weight, device.Tensor{}, false)
		l.s.LowRank(gu, m, u, xt, low, act)
	}
	run(m, gu)
	want, stored := ref.Linear(x, w, ref.Mat{}), l.get(u)
	most := s.in
	for i, p := range low.Parts {
		addColumns(want, p.Lo, ref.Scale(ref.Linear(stored.ColRange(p.From, p.To), v.b[i], ref.Mat{}), p.Scale))
		most = max(most, s.in+p.To-p.From)
	}
	l.compare("gu", "matmul", gu, want, most)
	l.compare("m", gluTol(act), m, ref.GLU(l.get(gu), act), 1)
	if !serves {
		return
	}
	again, unit := l.out(l.act, s.n, s.out), l.out(l.act, s.n, s.out/2)
	run(unit, again)
	l.compare("gu again", "move", again, l.get(gu), 0)
	l.compare("m again", "move", unit, l.get(m), 0)
	for i, p := range low.Parts {
		low.Parts[i].B = l.frozen(ref.New(p.Hi-p.Lo, p.To-p.From))
	}
	run(m, gu)
	l.s.MatMulGLU(unit, again, xt, weight, act, true)
	l.compare("gu and zeros", "move", gu, l.get(again), 0)
	l.compare("m and zeros", "move", m, l.get(unit), 0)
}
