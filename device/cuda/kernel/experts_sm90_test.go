//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// split is a way in which slots fall to experts.
type split struct {
	name  string
	slots []int // of each expert
}

var splits = []split{
	{"even", []int{64, 64, 64}},
	{"tails", []int{1, 127, 0, 128, 129, 63, 65}},
	{"all on one", []int{0, 0, 300, 0}},
	{"no slots at both ends", []int{0, 0, 40, 16, 0}},
	{"more than 32 experts", append(make([]int, 33), 5, 0, 7, 200)},
}

func (s split) routing(l *lab) (Routing, []int) {
	starts := []int{0}
	for _, n := range s.slots {
		starts = append(starts, starts[len(starts)-1]+n)
	}
	gap, lead := l.gap, l.lead
	l.gap, l.lead = 0, 0
	defer func() { l.gap, l.lead = gap, lead }()
	return Routing{Experts: len(s.slots), Active: 1, Starts: l.ids(starts)}, starts
}

// TestExpertsSM90: products of experts for compute capability 9.0 with the emulator's stand-ins for its instructions: slots that end within tiles
// and stages, experts without any, columns that fill no tile, whole products and parts of them, and slabs of experts.
func TestExpertsSM90(t *testing.T) {
	for i, s := range splits {
		for _, shape := range [][2]int{{264, 72}, {64, 200}, {8, 16}}[i%2 : i%2+2] {
			out, in := shape[0], shape[1]
			t.Run(fmt.Sprintf("%s, %d×%d", s.name, out, in), func(t *testing.T) {
				l := newLab(t)
				l.multiprocessors = 1 + i // so that blocks have several tiles, and different ones
				if i%2 == 0 {
					l.lead, l.gap = 8, 24
				}
				checkSM90(t, l, s, out, in)
			})
		}
	}
}

func checkSM90(t *testing.T, l *lab, s split, out, in int) {
	const d, tol = tensor.BF16, 4e-3
	r, starts := s.routing(l)
	slots, experts := starts[len(starts)-1], len(s.slots)
	half, middle := slots/2, experts/2
	x, w, bias, dy := l.random(slots, in, 1), l.random(experts*out, in, 1), l.random(experts, out, 1), l.random(slots, out, 1)
	xt, wt, bt, dyt := l.in(d, x), l.in(d, w), l.in(tensor.F32, bias), l.in(d, dy)
	want := ref.Grouped(x, w, bias, starts)

	y := l.out(d, slots, out)
	ExpertsSM90(l.op(), GemmNT, y, xt, Mat{}, wt, bt, false, r, 0)
	near.CheckRel(t, "y", l.get(y).V, want.V, tol)

	slabs := l.out(d, slots, out)
	for _, e := range [][2]int{{0, middle}, {middle, experts}} {
		b := bt.rows(e[0], e[1])
		for _, window := range [][2]int{{0, half}, {half, slots}} {
			lo, hi := window[0], window[1]
			matrices, part := wt.rows(e[0]*out, e[1]*out), r.Part(e[0], e[1])
			ExpertsSM90(l.op(), GemmNT, slabs.rows(lo, hi), xt.rows(lo, hi), Mat{}, matrices, b, false, part, lo)
		}
	}
	if !bytes.Equal(l.bytes(slabs), l.bytes(y)) {
		t.Error("slabs and parts have other bits")
	}

	tokens, rows, gathered, taken := 7, l.tokens(slots, 7), l.out(d, slots, in), l.out(d, slots, out)
	Embed(l.op(), gathered, xt.rows(0, tokens), rows)
	ExpertsSM90(l.op(), GemmNT, slabs, gathered, Mat{}, wt, bt, false, r, 0)
	ExpertsSM90(l.op(), GemmNT, taken, xt.rows(0, tokens), rows, wt, bt, false, r, 0)
	if !bytes.Equal(l.bytes(slabs), l.bytes(taken)) {
		t.Error("rows of tokens have other bits than their copies")
	}

	before := l.random(slots, in, 1)
	dx := l.inout(d, before)
	ExpertsSM90(l.op(), GemmNN, dx.rows(0, half), dyt.rows(0, half), Mat{}, wt, Mat{}, true, r, 0)
	ExpertsSM90(l.op(), GemmNN, dx.rows(half, slots), dyt.rows(half, slots), Mat{}, wt, Mat{}, false, r, half)
	back, grad, _ := ref.GroupedBackward(dy, x, w, starts)
	back.RowRange(0, half).Add(before.RowRange(0, half))
	near.CheckRel(t, "dx", l.get(dx).V, back.V, tol)

	old := l.random(experts*out, in, 1)
	dw, added := l.out(tensor.F32, experts*out, in), l.inout(tensor.F32, old)
	ExpertsWeightGradSM90(l.op(), dw, dyt.rows(0, half), xt.rows(0, half), false, r, 0)
	ExpertsWeightGradSM90(l.op(), dw, dyt.rows(half, slots), xt.rows(half, slots), true, r, half)
	ExpertsWeightGradSM90(l.op(), added, dyt, xt, true, r, 0)
	near.CheckRel(t, "dw", l.get(dw).V, grad.V, 4e-6)
	grad.Add(old)
	near.CheckRel(t, "dw added", l.get(added).V, grad.V, 4e-6)
}

// tokens says of each of n slots whose row of so many it takes.
func (l *lab) tokens(n, of int) Mat {
	gap, lead := l.gap, l.lead
	l.gap, l.lead = 0, 0
	defer func() { l.gap, l.lead = gap, lead }()
	ids := make([]int, n)
	for i := range ids {
		ids[i] = l.rng.IntN(of)
	}
	return l.ids(ids)
}

// TestExpertsSM90Bits: repeats and other numbers of multiprocessors give the same bits, and a slot's do not depend on the other slots.
func TestExpertsSM90Bits(t *testing.T) {
	const out, in = 24, 136
	l := newLab(t)
	r, starts := split{slots: []int{70, 0, 130, 9}}.routing(l)
	slots := starts[len(starts)-1]
	x, w, dy := l.in(tensor.BF16, l.random(slots, in, 1)), l.in(tensor.BF16, l.random(4*out, in, 1)), l.in(tensor.BF16, l.random(slots, out, 1))
	run := func(multiprocessors int) (all [3][]byte) {
		l.multiprocessors = multiprocessors
		y, dx, dw := l.out(tensor.BF16, slots, out), l.out(tensor.BF16, slots, in), l.out(tensor.F32, 4*out, in)
		ExpertsSM90(l.op(), GemmNT, y, x, Mat{}, w, Mat{}, false, r, 0)
		ExpertsSM90(l.op(), GemmNN, dx, dy, Mat{}, w, Mat{}, false, r, 0)
		ExpertsWeightGradSM90(l.op(), dw, dy, x, false, r, 0)
		return [3][]byte{l.bytes(y), l.bytes(dx), l.bytes(dw)}
	}
	first := run(1)
	for _, n := range []int{1, 3, 100} {
		for i, b := range run(n) {
			if !bytes.Equal(b, first[i]) {
				t.Errorf("result %d: other bits on %d multiprocessors", i, n)
			}
		}
	}
	alone, part := split{slots: []int{0, 0, 50, 0}}, l.out(tensor.BF16, 50, out)
	one, _ := alone.routing(l)
	ExpertsSM90(l.op(), GemmNT, part, x.rows(120, 170), Mat{}, w, Mat{}, false, one, 0)
	if !bytes.Equal(l.bytes(part), first[0][120*out*2:170*out*2]) {
		t.Error("fewer slots of an expert: other bits")
	}
}

// TestExpertsSM90Neighbours: NaN in the slots and in the matrix of an expert stays with it.
func TestExpertsSM90Neighbours(t *testing.T) {
	const out, in, d = 16, 72, tensor.BF16
	l := newLab(t)
	r, starts := split{slots: []int{70, 5, 90}}.routing(l)
	slots := starts[len(starts)-1]
	poison := func(m ref.Mat, lo, hi int) Mat {
		for i := range m.RowRange(lo, hi).V {
			m.RowRange(lo, hi).V[i] = math.NaN()
		}
		return l.in(d, m)
	}
	x, w, dy := poison(l.random(slots, in, 1), 70, 75), poison(l.random(3*out, in, 1), out, 2*out), poison(l.random(slots, out, 1), 70, 75)
	y, dx, dw := l.out(d, slots, out), l.out(d, slots, in), l.out(tensor.F32, 3*out, in)
	ExpertsSM90(l.op(), GemmNT, y, x, Mat{}, w, Mat{}, false, r, 0)
	ExpertsSM90(l.op(), GemmNN, dx, dy, Mat{}, w, Mat{}, false, r, 0)
	ExpertsWeightGradSM90(l.op(), dw, dy, x, false, r, 0)
	for _, c := range []struct {
		name   string
		m      Mat
		lo, hi int
	}{{"y", y, 70, 75}, {"dx", dx, 70, 75}, {"dw", dw, out, 2 * out}} {
		m := l.get(c.m)
		for i, v := range m.V {
			if row := i / m.Cols; (v != v) != (row >= c.lo && row < c.hi) {
				t.Fatalf("%s, row %d: %g", c.name, row, v)
			}
		}
	}
}
