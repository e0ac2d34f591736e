package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func headNormCases() []Case {
	var all []Case
	for _, s := range []struct{ rows, heads, dim int }{
		{1, 1, 1}, {3, 2, 2}, {17, 3, 16}, {2, 14, 31}, {65, 1, 64}, {5, 7, 65}, {130, 2, 128}, {3, 4, 256}, {2, 2, 512}, {0, 2, 16},
		{17, 1, 640}, {2, 1, 3585},
	} {
		name := fmt.Sprintf("headnorm/%d rows of %d heads of %d", s.rows, s.heads, s.dim)
		all = append(all, both(name, func(l *lab) { checkHeadNorm(l, s.rows, s.heads, s.dim, 1) })...)
	}
	all = append(all, both("headnorm/tiny values", func(l *lab) { checkHeadNorm(l, 3, 2, 32, 1e-4) })...) // eps dominates
	all = append(all, both("headnorm/large values", func(l *lab) { checkHeadNorm(l, 3, 2, 32, 1e4) })...)
	return append(all, both("headnorm/zeros", func(l *lab) { checkHeadNorm(l, 3, 2, 32, 0) })...)
}

// checkHeadNorm tests the norm with a weight and without one, into other memory and in place. Heads differ in size, so that
// what is divided by another head's norm is seen.
func checkHeadNorm(l *lab, rows, heads, dim int, scale float64) {
	const eps = 1e-6
	x, dy := l.random(rows, heads*dim, scale), l.random(rows, heads*dim, 1)
	for i := range x.V {
		x.V[i] *= float64(1 + i/dim%heads)
	}
	xt, dyt := l.in(l.act, x), l.in(l.act, dy)
	for _, w := range []ref.Mat{l.random(1, dim, 1), {}} {
		var wt, dwt device.Tensor
		dw := l.random(1, dim, 1)
		if w.V != nil {
			wt, dwt = l.in(tensor.F32, w), l.inout(tensor.F32, dw)
		}
		y, rstd, plain := l.out(l.act, rows, heads*dim), l.out(tensor.F32, rows, heads), l.out(l.act, rows, heads*dim)
		l.s.HeadNorm(y, rstd, xt, wt, dim, eps)
		l.s.HeadNorm(plain, device.Tensor{}, xt, wt, dim, eps)
		inPlace := l.inout(l.act, x)
		l.s.HeadNorm(inPlace, device.Tensor{}, inPlace, wt, dim, eps)
		wantY, wantR := ref.HeadNorm(x, w, dim, eps)
		l.compareHeads("y", y, wantY, dim)
		l.compareHeads("rstd", rstd, wantR, dim)
		l.compare("y without rstd", "move", plain, l.get(y), 0)
		l.compare("y over x", "move", inPlace, l.get(y), 0)

		dx, over := l.out(l.act, rows, heads*dim), l.inout(l.act, dy)
		l.s.HeadNormBackward(dx, dwt, dyt, xt, rstd, wt, dim)
		wantDX, wantDW := ref.HeadNormBackward(dy, x, l.get(rstd), w, dim)
		if dim == 1 { // what is left of 1−x̂² is rounding
			terms, kept := 0.0, l.get(rstd)
			for i, d := range dy.V {
				terms = max(terms, math.Abs(d*kept.V[i]))
			}
			if w.V != nil {
				terms *= math.Abs(w.V[0])
			}
			l.note(near.Abs("dx", l.get(dx).V, wantDX.V, terms*tol("rmsnorm", l.act, 1)))
		} else {
			l.compareHeads("dx", dx, wantDX, dim)
		}
		if w.V != nil {
			dw.Add(wantDW)
			l.compare("dw", "rmsnorm", dwt, dw, rows*heads)
			dwt = l.inout(tensor.F32, dw)
		}
		l.s.HeadNormBackward(over, dwt, over, xt, rstd, wt, dim)
		l.compare("dx over dy", "move", over, l.get(dx), 0)
	}
}

// compareHeads is compare head by head, for heads of different size.
func (l *lab) compareHeads(name string, t device.Tensor, want ref.Mat, dim int) {
	for h := 0; h < t.Cols; h += dim {
		hi := min(h+dim, t.Cols)
		l.compareRows(fmt.Sprintf("%s, columns from %d on", name, h), "rmsnorm", t.ColRange(h, hi), want.ColRange(h, hi), dim)
	}
}

func elementCases() []Case {
	var all []Case
	for _, s := range sizes {
		rows, cols := s[0], s[1]
		all = append(all, both(fmt.Sprintf("elements/%dx%d", rows, cols), func(l *lab) { checkElements(l, rows, cols) })...)
	}
	return all
}

// checkElements tests Add, Scale and SoftCap, into other memory and in place.
func checkElements(l *lab, rows, cols int) {
	x, y := l.random(rows, cols, 1), l.random(rows, cols, 1)
	xt, sum := l.in(l.act, x), l.inout(l.act, y)
	l.s.Add(sum, xt)
	y.Add(x)
	l.compare("sum", "add", sum, y, 0)

	scaled, over := l.out(l.act, rows, cols), l.inout(l.act, x)
	l.s.Scale(scaled, xt, -.3)
	l.s.Scale(over, over, -.3)
	l.compare("scaled", "add", scaled, ref.Scale(x, -.3), 0)
	l.compare("scaled in place", "move", over, l.get(scaled), 0)

	for _, c := range []struct{ size, cap float64 }{{60, 30}, {3, 30}, {1e-3, 2}, {1e4, 50}} {
		for _, d := range []tensor.DType{tensor.F32, l.act} {
			z := l.random(rows, cols, c.size)
			zt, capped := l.in(d, z), l.out(d, rows, cols)
			over := l.inout(d, z)
			l.s.SoftCap(capped, zt, c.cap)
			l.s.SoftCap(over, over, c.cap)
			l.compare(fmt.Sprintf("values of %g soft-capped at %g", c.size, c.cap), "softcap", capped, ref.SoftCap(z, c.cap), 0)
			l.compare("soft-capped in place", "move", over, l.get(capped), 0)
		}
	}
}

func dropoutCases() []Case {
	var all []Case
	for _, s := range sizes {
		rows, cols := s[0], s[1]
		all = append(all, both(fmt.Sprintf("dropout/%dx%d", rows, cols), func(l *lab) { checkDropout(l, rows, cols) })...)
	}
	return all
}

// checkDropout tests Dropout, into other memory and in place: which values are dropped is compared with the generator, and the share
// of them with the rate.
func checkDropout(l *lab, rows, cols int) {
	for i, d := range []device.Drop{{Rate: .3, Key: 1}, {Rate: .5, Key: 1 << 63, First: 7}, {Rate: 0, Key: 9}, {Rate: .99, Key: 3, First: 1 << 33}} {
		x := l.random(rows, cols, 1)
		for j := range x.V {
			if x.V[j] == 0 {
				x.V[j] = 1 // what is dropped shows
			}
		}
		xt, y, over := l.in(l.act, x), l.out(l.act, rows, cols), l.inout(l.act, x)
		l.s.Dropout(y, xt, d)
		l.s.Dropout(over, over, d)
		l.compare(fmt.Sprintf("dropped %d", i), "add", y, ref.Dropout(x, d), 0)
		l.compare("dropped in place", "move", over, l.get(y), 0)
		zeros, n := 0., float64(rows*cols)
		for _, v := range l.get(y).V {
			if v == 0 {
				zeros++
			}
		}
		if sigma := math.Sqrt(n * d.Rate * (1 - d.Rate)); !(math.Abs(zeros-n*d.Rate) <= 5*sigma) {
			l.note(fmt.Errorf("%g of %g values are dropped at a rate of %g", zeros, n, d.Rate))
		}
	}
}

// turning is a rotary embedding and the positions of rows, nil where it has none.
type turning struct {
	device.Rotary
	at []int
}

func rotaryCases() []Case {
	var all []Case
	add := func(heads int, r turning) {
		name := fmt.Sprintf("rotary/%d heads of %d, sequences of %d from %d", heads, r.HeadDim, r.SeqLen, r.Offset)
		if n := 2 * len(r.Table.Inv); n != r.HeadDim {
			name += fmt.Sprintf(", %d turn", n)
		}
		if r.Table.Factor != 0 {
			name += fmt.Sprintf(", factor %g", r.Table.Factor)
		}
		if r.QBeta != 0 {
			name += fmt.Sprintf(", queries scaled by %g and %d", r.QBeta, r.QLength)
		}
		if r.at != nil {
			name += ", at positions"
		}
		all = append(all, both(name, func(l *lab) { checkRotary(l, heads, r) })...)
	}
	for _, heads := range []int{1, 2, 3, 14} {
		for _, d := range []int{2, 16, 32, 64, 128} {
			low, high := frequencies(1e4, d), frequencies(1e6, d)
			add(heads, turning{Rotary: device.Rotary{HeadDim: d, Table: low, SeqLen: 5}})
			add(heads, turning{Rotary: device.Rotary{HeadDim: d, Table: high, SeqLen: 17, Offset: 3}})
			add(heads, turning{Rotary: device.Rotary{HeadDim: d, Table: high, SeqLen: 1, Offset: 300}})
		}
	}
	at := []int{0, 1, 2, 3, 4, 5, 0, 1, 2, 30, 31, 0, 0, 1, 7, 8, 39}
	for i, s := range []struct{ dim, turn int }{{2, 2}, {16, 4}, {64, 16}, {64, 62}, {128, 96}, {256, 64}, {256, 256}, {512, 128}, {512, 512}} {
		table := frequencies(1e4, s.turn)
		if i%2 == 0 {
			table.Factor = 1.3
		}
		add(1+i%3, turning{Rotary: device.Rotary{HeadDim: s.dim, Table: table, SeqLen: 17, Offset: i}})
		add(2, turning{Rotary: device.Rotary{HeadDim: s.dim, Table: table, SeqLen: 40}, at: at})
		add(1, turning{Rotary: device.Rotary{HeadDim: s.dim, Table: table, SeqLen: 9, Offset: 2, QBeta: .4, QLength: 3}})
		add(2, turning{Rotary: device.Rotary{HeadDim: s.dim, Table: table, SeqLen: 40, QBeta: .1, QLength: 16}, at: at})
	}
	still := &device.Frequencies{Inv: []float64{1, .25, 0, 0}} // pairs that do not turn
	add(2, turning{Rotary: device.Rotary{HeadDim: 8, Table: still, SeqLen: 17}})
	for name, bad := range map[string][]int{"beyond the last": {0, 3, 1}, "negative": {0, 1, -1}} {
		all = append(all, Case{Name: "rotary/a position " + name, check: func(l *lab) {
			x := l.in(l.act, l.random(3, 4, 1))
			checkError(l, func() {
				l.s.Rotate(x, device.Rotary{HeadDim: 4, Table: frequencies(1e4, 4), SeqLen: 3, Positions: l.ids(bad)})
			})
		}})
	}
	return all
}

// frequencies returns the table θ^(−2i/turn) of turn values.
func frequencies(theta float64, turn int) *device.Frequencies {
	f := &device.Frequencies{Inv: make([]float64, turn/2)}
	for i := range f.Inv {
		f.Inv[i] = math.Pow(theta, -2*float64(i)/float64(turn))
	}
	return f
}

func checkRotary(l *lab, heads int, r turning) {
	const rows = 17
	m := l.random(rows, heads*r.HeadDim, 1)
	if r.at != nil {
		r.Positions = l.ids(r.at)
	}
	inverse := r
	inverse.Inverse = true
	x, y := l.inout(l.act, m), l.inout(l.act, m)
	l.s.Rotate(x, r.Rotary)
	l.s.Rotate(y, inverse.Rotary)
	// An angle pos·θ^(−2i/d) from a float32 inverse frequency is off by one unit of itself, its product by another.
	angle := float64(r.Offset+r.SeqLen) * 2 * unitF32
	allowed := tol("rotary", l.act, 1) + angle*math.Sqrt2
	l.compareScaled("rotated", x, ref.Rotate(m, r.Rotary, r.at), allowed)
	l.compareScaled("rotated back", y, ref.Rotate(m, inverse.Rotary, r.at), allowed)
}
