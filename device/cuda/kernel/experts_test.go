//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// routed makes a routing of tokens to random experts, of which some get many tokens and the last two none.
func (l *lab) routed(tokens, experts, active int) (Routing, ref.Routed) {
	z := l.random(tokens, experts, 1)
	for t := range tokens {
		for e := range experts {
			z.Row(t)[e] -= float64(4 * e / experts)
			if e >= experts-2 && experts-2 >= active {
				z.Row(t)[e] = -100
			}
		}
	}
	want := ref.Sort(ref.Choose(z, active), experts, active)
	gap, lead := l.gap, l.lead
	l.gap, l.lead = 0, 0
	defer func() { l.gap, l.lead = gap, lead }()
	return Routing{
		Experts: experts, Active: active, Chosen: l.ids(want.Chosen), Slots: l.ids(want.Slots), Rows: l.ids(want.Rows), Starts: l.ids(want.Starts),
	}, want
}

// expertCase is the shape of a grouped product.
type expertCase struct{ tokens, experts, active, out, in int }

var expertShapes = []expertCase{
	{1, 4, 2, 24, 256}, {9, 5, 2, 17, 512}, {100, 2, 1, 33, 256}, {20, 37, 3, 16, 256},
}

// experts makes matrices of a type, plain if that is the type of activations, and returns their values as products of few slots read
// them, and as others do: rounded as Dequantize rounds.
func (l *lab) experts(d, act tensor.DType, rows, cols int) (w Experts, values, rounded ref.Mat) {
	if d == act {
		m := l.random(rows, cols, 1)
		return Experts{Plain: l.in(act, m)}, m, m
	}
	b, decoded := l.blocks(d, rows, cols, 0, l.randomBlocks(d, rows*int(d.RowBytes(cols)), false))
	values = ref.Of(rows, cols, decoded)
	if act == tensor.F32 {
		return Experts{Blocks: b}, values, values
	}
	for i, v := range decoded {
		decoded[i] = tensor.BF16ToF32(tensor.F32ToBF16(v))
	}
	return Experts{Blocks: b}, values, ref.Of(rows, cols, decoded)
}

// TestExperts: products of experts with matrices of every type, forward and backward, of few and of many slots.
func TestExperts(t *testing.T) {
	for _, act := range floatTypes {
		for _, d := range append([]tensor.DType{act}, blockTypes...) {
			t.Run(fmt.Sprintf("%v/%v", act, d), func(t *testing.T) {
				for i, c := range expertShapes {
					checkExperts(t, c, d, act, i%2 == 0)
				}
			})
		}
	}
}

func checkExperts(t *testing.T, c expertCase, d, act tensor.DType, gaps bool) {
	l := newLab(t)
	if gaps {
		l.lead, l.gap = 8, 24
	}
	r, want := l.routed(c.tokens, c.experts, c.active)
	slots := c.tokens * c.active
	w, values, rounded := l.experts(d, act, c.experts*c.out, c.in)
	if c.tokens > ExpertRowTokens {
		values = rounded
	}
	bias := l.random(c.experts, c.out, 1)
	bt := l.in(tensor.F32, bias)
	x := l.random(slots, c.in, 1)
	xt := l.in(act, x)
	for _, to := range floatTypes {
		if d != act && to != act {
			continue
		}
		tol := 4e-6
		if to == tensor.BF16 {
			tol = 4e-3
		}
		name := fmt.Sprintf("%+v to %v", c, to)
		y := l.out(to, slots, c.out)
		ExpertsNT(l.op(), y, xt, w, bt, r, 0)
		near.CheckRel(t, name, l.get(y).V, ref.Grouped(x, values, bias, want.Starts).V, tol)

		dy, before := l.random(slots, c.out, 1), l.random(slots, c.in, 1)
		dx, dyt := l.inout(to, before), l.in(act, dy)
		half := slots / 2 // as if rounding them all took too much memory
		ExpertsNN(l.op(), dx.rows(0, half), dyt.rows(0, half), w, true, r, 0)
		ExpertsNN(l.op(), dx.rows(half, slots), dyt.rows(half, slots), w, false, r, half)
		back, _, _ := ref.GroupedBackward(dy, x, rounded, want.Starts)
		back.RowRange(0, half).Add(before.RowRange(0, half))
		near.CheckRel(t, name+", dx", l.get(dx).V, back.V, tol)
	}
}

// TestExpertsWeightGrad: gradients of matrices and biases, written and added, of all slots at once and in two parts; experts without slots
// become zero or keep what they have.
func TestExpertsWeightGrad(t *testing.T) {
	for _, act := range floatTypes {
		for i, c := range expertShapes {
			t.Run(fmt.Sprintf("%v/%+v", act, c), func(t *testing.T) {
				l := newLab(t)
				if i%2 == 0 {
					l.lead, l.gap = 8, 24
				}
				in := c.in/2 + 1 // rows that are not aligned
				r, want := l.routed(c.tokens, c.experts, c.active)
				slots := c.tokens * c.active
				dy, x := l.random(slots, c.out, 1), l.random(slots, in, 1)
				dyt, xt := l.in(act, dy), l.in(act, x)
				before, biasBefore := l.random(c.experts*c.out, in, 1), l.random(c.experts, c.out, 1)
				dw, added, dbias := l.out(tensor.F32, c.experts*c.out, in), l.inout(tensor.F32, before), l.inout(tensor.F32, biasBefore)
				half := slots / 2
				ExpertsWeightGrad(l.op(), dw, dyt.rows(0, half), xt.rows(0, half), false, r, 0)
				ExpertsWeightGrad(l.op(), dw, dyt.rows(half, slots), xt.rows(half, slots), true, r, half)
				ExpertsWeightGrad(l.op(), added, dyt, xt, true, r, 0)
				ExpertsBias(l.op(), dbias, dyt, r, 0)
				_, wantW, wantBias := ref.GroupedBackward(dy, x, ref.New(c.experts*c.out, in), want.Starts)
				near.CheckRel(t, "dw", l.get(dw).V, wantW.V, 4e-6)
				wantW.Add(before)
				near.CheckRel(t, "dw added", l.get(added).V, wantW.V, 4e-6)
				wantBias.Add(biasBefore)
				near.CheckRel(t, "dbias", l.get(dbias).V, wantBias.V, 4e-6)
			})
		}
	}
}

// TestExpertsOrder: what a slot's product is depends neither on how experts are numbered nor on how many rows a tile has.
func TestExpertsOrder(t *testing.T) {
	for _, act := range floatTypes {
		for _, d := range []tensor.DType{act, tensor.Q4_K, tensor.Q6_K} {
			t.Run(fmt.Sprintf("%v/%v", act, d), func(t *testing.T) {
				const tokens, experts, active, out, in = 100, 4, 2, 16, 256
				l := newLab(t)
				chosen := make([]int, tokens*active)
				for n := range tokens {
					p := l.rng.Perm(experts)
					copy(chosen[n*active:], p[:active])
				}
				x, w := l.random(tokens, in, 1), l.random(experts*out, in, 1)
				content := l.randomBlocks(d, experts*out*max(1, int(d.RowBytes(in))), false)
				first := l.ordered(t, d, act, chosen, x, w, content, []int{0, 1, 2, 3})
				for i, row := range l.ordered(t, d, act, chosen, x, w, content, []int{2, 0, 3, 1}) {
					if !bytes.Equal(row, first[i]) {
						t.Fatalf("choice %d has other bits", i)
					}
				}
			})
		}
	}
}

// ordered multiplies with expert e stored as number as[e], and returns the bytes of the product of each choice.
func (l *lab) ordered(t *testing.T, d, act tensor.DType, chosen []int, x, w ref.Mat, content []byte, as []int) [][]byte {
	t.Helper()
	experts := len(as)
	out, active := w.Rows/experts, len(chosen)/x.Rows
	renamed, m, moved := make([]int, len(chosen)), ref.New(w.Rows, w.Cols), make([]byte, len(content))
	for i, e := range chosen {
		renamed[i] = as[e]
	}
	size := len(content) / experts
	for e, to := range as {
		copy(m.RowRange(to*out, (to+1)*out).V, w.RowRange(e*out, (e+1)*out).V)
		copy(moved[to*size:], content[e*size:(e+1)*size])
	}
	matrices := Experts{}
	if d == act {
		matrices.Plain = l.in(act, m)
	} else {
		matrices.Blocks, _ = l.blocks(d, w.Rows, w.Cols, 0, moved)
	}
	sorted := ref.Sort(renamed, experts, active)
	xs := ref.New(len(chosen), x.Cols)
	for slot, row := range sorted.Rows {
		copy(xs.Row(slot), x.Row(row))
	}
	r := Routing{Experts: experts, Active: active, Starts: l.ids(sorted.Starts)}
	const few = 60 // slots whose tiles have fewer rows
	y, xt, part := l.out(act, len(chosen), out), l.in(act, xs), l.out(act, few, out)
	ExpertsNT(l.op(), y, xt, matrices, Mat{}, r, 0)
	ExpertsNT(l.op(), part, xt.rows(0, few), matrices, Mat{}, r, 0)
	got, n := l.bytes(y), out*act.BlockBytes()
	if !bytes.Equal(l.bytes(part), got[:few*n]) {
		t.Error("smaller tiles have other bits")
	}
	rows := make([][]byte, len(chosen))
	for i, slot := range sorted.Slots {
		rows[i] = got[slot*n : (slot+1)*n]
	}
	return rows
}

// TestRoutePieces: choices that several blocks sort are in the same order as those that one does, by expert and then by token.
func TestRoutePieces(t *testing.T) {
	for _, c := range []struct{ tokens, experts, active int }{{341, 5, 3}, {342, 5, 3}, {1100, 9, 3}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			l := newLab(t)
			z := l.random(c.tokens, c.experts, 1)
			for i := range z.V { // many are equal
				z.V[i] = float64(int(z.V[i] * 4))
			}
			want := ref.Sort(ref.Choose(z, c.active), c.experts, c.active)
			ints := func(n int) Mat { return l.out(tensor.I32, n, 1) }
			n := c.tokens * c.active
			r := Routing{Experts: c.experts, Active: c.active, Renorm: true, Chosen: ints(n), Slots: ints(n), Rows: ints(n), Starts: ints(c.experts + 1)}
			Route(l.op(), l.out(tensor.F32, c.tokens, c.active), l.in(tensor.F32, z), Mat{}, r)
			for name, v := range map[string]struct {
				got  Mat
				want []int
			}{"chosen": {r.Chosen, want.Chosen}, "slots": {r.Slots, want.Slots}, "rows": {r.Rows, want.Rows}, "starts": {r.Starts, want.Starts}} {
				for i, x := range l.get(v.got).V {
					if int(x) != v.want[i] {
						t.Fatalf("%s[%d] is %g, want %d", name, i, x, v.want[i])
					}
				}
			}
		})
	}
}
