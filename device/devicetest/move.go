package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// sizes are the shapes of operations that work element by element or row by row.
var sizes = [][2]int{
	{1, 1}, {2, 2}, {3, 31}, {17, 32}, {1, 33}, {64, 63}, {65, 64}, {2, 65}, {257, 127}, {3, 256}, {17, 640}, {0, 33},
}

func deviceCases() []Case {
	return []Case{
		{Name: "device/info", check: func(l *lab) {
			i := l.dev.Info()
			if i.Kind == "" || i.Name == "" || i.Workers < 1 || (i.Activations != tensor.F32 && i.Activations != tensor.BF16) {
				l.errorf("incomplete: %+v", i)
			}
		}},
		{Name: "device/memory starts zeroed and is counted", check: checkMemory},
	}
}

func checkMemory(l *lab) {
	const rows, cols = 17, 33
	before, _ := l.dev.Memory()
	a := l.dev.Alloc("cache", device.KVCache, l.act, rows, cols)
	p := l.dev.Param(device.ParamSpec{Name: "p", Rows: rows, Cols: cols})
	zero := ref.New(rows, cols)
	for _, t := range []device.Tensor{a, p.Value, p.Grad, p.M, p.V} {
		l.compareScaled("new memory", t, zero, 0)
		if t.Rows != rows || t.Cols != cols {
			l.errorf("got %d×%d, want %d×%d", t.Rows, t.Cols, rows, cols)
		}
	}
	if p.Name != "p" || p.Weight == nil || p.Weight.Rows() != rows || p.Weight.Cols() != cols {
		l.errorf("parameter %+v has no fitting weight", p.ParamSpec)
	}
	now, peak := l.dev.Memory()
	for c, least := range map[device.Component]int64{
		device.KVCache: rows * l.act.RowBytes(cols), device.StudentWeights: 4 * rows * cols,
		device.Gradients: 4 * rows * cols, device.Moments: 8 * rows * cols,
	} {
		if grown := now[c] - before[c]; grown < least {
			l.errorf("memory of %s grew by %d bytes, want at least %d", c, grown, least)
		}
		if peak[c] < now[c] {
			l.errorf("memory of %s: peak %d is below what is held, %d", c, peak[c], now[c])
		}
	}
	l.dev.Free(a.RowRange(1, 2))
	if now, _ := l.dev.Memory(); now[device.KVCache] != before[device.KVCache] {
		l.errorf("freed memory is still counted: %d bytes, before %d", now[device.KVCache], before[device.KVCache])
	}
}

func moveCases() []Case {
	var all []Case
	for _, s := range sizes {
		rows, cols := s[0], s[1]
		name := fmt.Sprintf("%dx%d", rows, cols)
		all = append(all, both("move/"+name, func(l *lab) { checkMove(l, rows, cols) })...)
		all = append(all, both("gather/"+name, func(l *lab) { checkGather(l, rows, cols) })...)
		all = append(all, both("embed/"+name, func(l *lab) { checkEmbed(l, rows, cols) })...)
		all = append(all, both("argmax/"+name, func(l *lab) { checkArgMax(l, rows, cols) })...)
	}
	for _, s := range [][2]int{{1, 4097}, {5, 12289}, {1, 151665}, {2, 151936}} { // rows that a device may cut
		rows, cols := s[0], s[1]
		all = append(all, both(fmt.Sprintf("argmax/%dx%d", rows, cols), func(l *lab) { checkArgMax(l, rows, cols) })...)
	}
	for _, cols := range []int{1, 2, 65, 640, 9001} {
		all = append(all, both(fmt.Sprintf("argmax/not finite in %d", cols), func(l *lab) { checkArgMaxNotFinite(l, cols) })...)
	}
	return all
}

// checkMove tests Upload, Download, Zero and Copy.
func checkMove(l *lab, rows, cols int) {
	m := l.random(rows, cols, 1)
	x, y, z := l.in(l.act, m), l.out(l.act, rows, cols), l.out(l.act, rows, cols)
	l.s.Copy(y, x)
	l.s.Zero(z)
	l.compare("uploaded", "move", x, m, 0)
	l.compare("copy", "move", y, m, 0)
	l.compare("zero", "move", z, ref.New(rows, cols), 0)

	rounded := l.random(rows, cols, 1) // not representable in a narrower type: Upload rounds to nearest even
	l.s.Upload(y, singles(rounded))
	round(rounded, l.act)
	l.compare("converted", "move", y, rounded, 0)
}

func checkGather(l *lab, rows, cols int) {
	m := l.random(rows+3, cols, 1)
	pick := l.rng.Perm(rows + 3)[:rows]
	src, dst, back := l.in(l.act, m), l.out(l.act, rows, cols), l.out(l.act, rows+3, cols)
	ids := l.ids(pick)
	l.s.Gather(dst, src, ids)
	l.s.Scatter(back, dst, ids)
	want := ref.Embed(m, pick)
	scattered := ref.New(rows+3, cols)
	ref.EmbedBackward(scattered, pick, want)
	l.compare("gather", "move", dst, want, 0)
	l.compare("scatter", "move", back, scattered, 0)
}

func checkEmbed(l *lab, rows, cols int) {
	const vocab = 11 // fewer ids than rows: gradients of the same id add up
	w, ids := l.random(vocab, cols, 1), l.randomIDs(rows, vocab)
	y, weight, column := l.out(l.act, rows, cols), l.frozen(w), l.ids(ids)
	l.s.Embed(y, weight, column)
	l.compare("embed", "embed", y, ref.Embed(w, ids), 0)

	grad, dx := l.random(vocab, cols, 1), l.random(rows, cols, 1)
	g, d := l.inout(tensor.F32, grad), l.in(l.act, dx)
	l.s.EmbedBackward(g, column, d)
	ref.EmbedBackward(grad, ids, dx)
	l.compare("gradient", "add", g, grad, rows)
}

func checkArgMax(l *lab, rows, cols int) {
	m := l.random(rows, cols, 1)
	for r := range rows { // ties, at the front, at the end and everywhere
		switch row := m.Row(r); r % 4 {
		case 1:
			row[cols-1], row[cols/2] = 9, 9
		case 2:
			row[0], row[cols-1] = 9, 9
		case 3:
			for c := range row {
				row[c] = -5
			}
		}
	}
	best := l.argMax(m, true)
	want := ref.Best(m) // as the device read it
	l.compare("id in best", "move", best.ColRange(0, 1), want.ColRange(0, 1), 0)
	l.compare("largest", "move", best.ColRange(1, 2), want.ColRange(1, 2), 0)
	l.argMax(m, false)
}

// argMax checks the ids of ArgMax, with best, which it returns, or without.
func (l *lab) argMax(m ref.Mat, withBest bool) (best device.Tensor) {
	x := l.in(tensor.F32, m)
	ids := l.s.Temp("ids", device.Batch, tensor.I32, m.Rows, 1)
	if withBest {
		best = l.out(tensor.F32, m.Rows, 2)
	}
	l.s.ArgMax(ids, best, x)
	// Ids are read back through a gather from a matrix that counts its rows.
	count := ref.New(m.Cols, 1)
	for i := range count.V {
		count.V[i] = float64(i)
	}
	src := l.s.Temp("count", device.Activations, tensor.F32, m.Cols, 1)
	l.s.Upload(src, singles(count))
	got := l.out(tensor.F32, m.Rows, 1)
	l.s.Gather(got, src, ids)
	l.compare("argmax", "move", got, ref.Embed(count, ref.ArgMax(m)), 0)
	l.s.Release(ids, src)
	return best
}

// checkArgMaxNotFinite tests ArgMax of rows with NaN, +∞ and −∞ at both ends and between them.
func checkArgMaxNotFinite(l *lab, cols int) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, values := range [][]float64{{nan}, {inf}, {-inf}, {nan, inf}, {-inf, nan, -inf}} {
		m := l.random(5, cols, 1)
		for i, v := range values {
			at := min(i, cols-1)
			m.Row(0)[at], m.Row(1)[cols-1-at], m.Row(2)[(cols/2+i)%cols] = v, v, v
		}
		for c := range cols {
			m.Row(3)[c] = values[min(c, len(values)-1)]
		}
		m.Row(3)[cols-1] = values[len(values)-1]
		got, want := l.get(l.argMax(m, true)), ref.Best(m)
		for i, w := range want.V {
			if v := got.V[i]; v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
				l.errorf("argmax of %v in %d columns: row %d of best is %v, want %v", values, cols, i/2, got.Row(i/2), want.Row(i/2))
			}
		}
	}
}

func layerCases() []Case {
	var all []Case
	for _, s := range sizes {
		rows, cols := s[0], s[1]
		name := fmt.Sprintf("%dx%d", rows, cols)
		all = append(all, both("rmsnorm/"+name, func(l *lab) { checkRMSNorm(l, rows, cols, 1) })...)
		for _, act := range activations {
			all = append(all, both("glu/"+act.String()+" "+name, func(l *lab) { checkGLU(l, rows, cols, 1, act) })...)
		}
	}
	all = append(all, both("rmsnorm/tiny values", func(l *lab) { checkRMSNorm(l, 3, 64, 1e-4) })...) // eps dominates
	all = append(all, both("rmsnorm/large values", func(l *lab) { checkRMSNorm(l, 3, 64, 1e4) })...)
	all = append(all, both("rmsnorm/zeros", func(l *lab) { checkRMSNorm(l, 3, 64, 0) })...)
	for _, act := range activations {
		all = append(all, both("glu/"+act.String()+" large values", func(l *lab) { checkGLU(l, 3, 64, 60, act) })...) // σ underflows
	}
	return all
}

func checkRMSNorm(l *lab, rows, cols int, scale float64) {
	const eps = 1e-6
	x, delta, w := l.random(rows, cols, scale), l.random(rows, cols, scale), l.random(1, cols, 1)
	xt, dt, wt := l.in(l.act, x), l.in(l.act, delta), l.in(tensor.F32, w)
	norm := func(name string, v ref.Mat, sum, x, delta device.Tensor) (rstd device.Tensor) {
		y, rstd := l.out(l.act, rows, cols), l.s.Temp("rstd", device.Activations, tensor.F32, rows, 1)
		l.s.RMSNorm(y, rstd, sum, x, delta, wt, eps)
		if !sum.IsZero() {
			l.compare(name+" sum", "add", sum, v, 0)
			v = l.get(sum) // the norm is of the sum as stored
		}
		wantY, wantR := ref.RMSNorm(v, w, eps)
		l.compareRows(name+" y", "rmsnorm", y, wantY, cols)
		l.compareRows(name+" rstd", "rmsnorm", rstd, wantR, cols)
		return rstd
	}
	sum := x.Clone()
	sum.Add(delta)
	rstd := norm("plain", x, device.Tensor{}, xt, device.Tensor{})
	st := l.out(l.act, rows, cols)
	l.s.Release(norm("delta", sum, st, xt, dt))
	inPlace := l.inout(l.act, x)
	l.s.Release(norm("in place", sum, inPlace, inPlace, dt))

	only := l.out(l.act, rows, cols)
	l.s.RMSNorm(device.Tensor{}, device.Tensor{}, only, xt, dt, wt, eps)
	l.compare("only sum", "add", only, sum, 0)
	y := l.out(l.act, rows, cols)
	l.s.RMSNorm(y, device.Tensor{}, device.Tensor{}, xt, device.Tensor{}, wt, eps)
	wantY, _ := ref.RMSNorm(x, w, eps)
	l.compareRows("y without rstd", "rmsnorm", y, wantY, cols)

	dy, dx, dw := l.random(rows, cols, 1), l.random(rows, cols, scale), l.random(1, cols, 1)
	dyt, dxt, dwt := l.in(l.act, dy), l.inout(l.act, dx), l.inout(tensor.F32, dw)
	l.s.RMSNormBackward(dxt, dwt, dyt, xt, rstd, wt)
	wantDX, wantDW := ref.RMSNormBackward(dy, x, l.get(rstd), w)
	dx.Add(wantDX)
	dw.Add(wantDW)
	l.compareRows("dx", "rmsnorm", dxt, dx, cols)
	l.compare("dw", "rmsnorm", dwt, dw, rows)
	l.s.Release(rstd)
}

// compareRows is compare row by row, for rows of different size.
func (l *lab) compareRows(name, op string, t device.Tensor, want ref.Mat, n int) {
	got, allowed := l.get(t), l.tol(op, t.DType, n)
	for r := range want.Rows {
		if err := near.Rel(fmt.Sprintf("%s, row %d", name, r), got.Row(r), want.Row(r), allowed); err != nil {
			l.note(err)
			return
		}
	}
}

// activations are those of a gated unit.
var activations = []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid}

// gluTol returns the name of a gated unit's tolerance.
func gluTol(act device.Activation) string {
	if act == device.GELUTanh || act == device.OSS {
		return "gelu"
	}
	return "glu"
}

func checkGLU(l *lab, rows, cols int, scale float64, act device.Activation) {
	checkGated(l, l.random(rows, 2*cols, scale), act)
}

// clampedCases are OSS around its clamps: gates and ups beyond both, on them, and gates that are all far below.
func clampedCases() []Case {
	all := both("glu/oss beyond the clamps", func(l *lab) { checkGLU(l, 5, 130, 7, device.OSS) })
	all = append(all, both("glu/oss at the clamps", func(l *lab) {
		gu := ref.New(1, 2*81)
		for i := range 81 { // all pairs of nine values
			at := []float64{-7.0625, -7, -6.9375, -1, 0, 6.9375, 7, 7.0625, 40}
			gu.V[i], gu.V[81+i] = at[i/9], at[i%9]
		}
		checkGated(l, gu, device.OSS)
	})...)
	return append(all, both("glu/oss far below", func(l *lab) {
		gu := l.random(3, 2*64, 1)
		for i := range gu.V {
			if i%128 < 64 {
				gu.V[i] = -6 - 3*l.rng.Float64()
			}
		}
		checkGated(l, gu, device.OSS)
	})...)
}

// interleavedCases are groups of columns that take turns.
func interleavedCases() []Case {
	var all []Case
	for _, s := range []struct{ rows, groups, width int }{{1, 1, 1}, {3, 2, 8}, {17, 5, 1}, {2, 3, 7}, {65, 4, 64}, {5, 16, 256}, {0, 2, 8}, {3, 0, 4}} {
		name := fmt.Sprintf("interleave/%d rows, twice %d groups of %d", s.rows, s.groups, s.width)
		all = append(all, both(name, func(l *lab) { checkInterleave(l, s.rows, s.groups*s.width, s.width) })...)
	}
	return all
}

func checkInterleave(l *lab, rows, cols, width int) {
	x := l.random(rows, 2*cols, 1)
	xt, a, b, again := l.in(l.act, x), l.out(l.act, rows, cols), l.out(l.act, rows, cols), l.out(l.act, rows, 2*cols)
	l.s.Deinterleave(a, b, xt, width)
	l.s.Interleave(again, a, b, width)
	wantA, wantB := ref.Deinterleave(x, width)
	l.compare("even groups", "move", a, wantA, 0)
	l.compare("odd groups", "move", b, wantB, 0)
	l.compare("groups in turn", "move", again, x, 0)
}

// checkGated compares a gated unit of gu, and its backward.
func checkGated(l *lab, gu ref.Mat, act device.Activation) {
	rows, cols := gu.Rows, gu.Cols/2
	dm := l.random(rows, cols, 1)
	gut, dmt := l.in(l.act, gu), l.in(l.act, dm)
	m, dgu := l.out(l.act, rows, cols), l.out(l.act, rows, 2*cols)
	l.s.GLU(m, gut, act)
	l.s.GLUBackward(dgu, dmt, gut, act)
	inPlace := l.inout(l.act, gu)
	l.s.GLUBackward(inPlace, dmt, inPlace, act)
	l.compare("m", gluTol(act), m, ref.GLU(gu, act), 1)
	l.compare("dgu", gluTol(act), dgu, ref.GLUBackward(dm, gu, act), 1)
	l.compare("dgu over gu", "move", inPlace, l.get(dgu), 0)
}
