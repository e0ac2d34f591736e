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

// floatTypes are those of activations.
var floatTypes = []tensor.DType{tensor.BF16, tensor.F32}

// shapes are those of operations that work element by element or row by row.
var shapes = [][2]int{{1, 1}, {3, 31}, {17, 32}, {1, 33}, {65, 64}, {2, 65}, {257, 127}, {3, 256}, {17, 640}, {0, 33}, {0, 64}}

// eachCase runs f for both types, every layout and all shapes.
func eachCase(t *testing.T, shapes [][2]int, f func(t *testing.T, l *lab, d tensor.DType, rows, cols int)) {
	for _, d := range floatTypes {
		t.Run(d.String(), func(t *testing.T) {
			eachLayout(t, func(t *testing.T, l *lab) {
				for _, s := range shapes {
					l.t.Helper()
					t.Run(fmt.Sprintf("%dx%d", s[0], s[1]), func(t *testing.T) {
						in := newLab(t)
						in.lead, in.gap = l.lead, l.gap
						f(t, in, d, s[0], s[1])
					})
				}
			})
		})
	}
}

// apart puts the rows of matrices to come further apart than those before, unless they are packed.
func (l *lab) apart() *lab {
	if l.gap > 0 {
		l.gap += 8
	}
	return l
}

// tolerance is own units of the type and three times the square root of n units of float32, as in device/devicetest.
func tolerance(d tensor.DType, ownBF16, ownF32 float64, n int) float64 {
	own := ownF32 * 0x1p-24
	if d == tensor.BF16 {
		own = ownBF16 * 0x1p-8
	}
	return own + 3*math.Sqrt(float64(n))*0x1p-24
}

// checkRows compares row by row, for rows of different size.
func checkRows(t *testing.T, name string, got, want ref.Mat, tol float64) {
	t.Helper()
	for r := range want.Rows {
		near.CheckRel(t, fmt.Sprintf("%s, row %d", name, r), got.Row(r), want.Row(r), tol)
	}
}

// checkSame fails unless two runs gave the same bits.
func checkSame(t *testing.T, l *lab, name string, x, y Mat) {
	t.Helper()
	if !bytes.Equal(l.bytes(x), l.bytes(y)) {
		t.Errorf("%s: a second run gave other bits", name)
	}
}

// checkFault fails unless the record holds this fault, and clears it.
func checkFault(t *testing.T, l *lab, code, value, limit int64) {
	t.Helper()
	if r := l.rec(); r.Fault != code || r.FaultValue != value || r.FaultLimit != limit {
		t.Errorf("fault %d: %d of %d, want %d: %d of %d", r.Fault, r.FaultValue, r.FaultLimit, code, value, limit)
	}
	*l.rec() = Record{}
}

func TestZeroCopy(t *testing.T) {
	eachCase(t, shapes, func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		m := l.random(rows, cols, 1)
		x, y, z := l.apart().in(d, m), l.apart().out(d, rows, cols), l.apart().out(d, rows, cols)
		Copy(l.op(), y, x)
		Zero(l.op(), z)
		near.Check(t, "copy", l.get(y).V, m.V, 0)
		near.Check(t, "zero", l.get(z).V, ref.New(rows, cols).V, 0)
		for _, other := range floatTypes {
			from := l.random(rows, cols, 1)
			src, dst := l.apart().in(other, from), l.apart().out(d, rows, cols)
			Copy(l.op(), dst, src)
			l.lead, l.gap = 0, 0 // of the two only src has gaps
			packed := l.out(d, rows, cols)
			Copy(l.op(), packed, src)
			l.lead, l.gap = 8, 8
			want := l.inout(d, from) // rounds once more
			near.Check(t, "converted from "+other.String(), l.get(dst).V, l.get(want).V, 0)
			near.Check(t, "packed from "+other.String(), l.get(packed).V, l.get(want).V, 0)
		}
	})
}

func TestCopyInts(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) {
		m := ref.New(5, 7)
		for i := range m.V {
			m.V[i] = float64(l.rng.Int32() - 1<<30)
		}
		x, y := l.apart().in(tensor.I32, m), l.apart().out(tensor.I32, 5, 7)
		Copy(l.op(), y, x)
		near.Check(t, "copy", l.get(y).V, m.V, 0)
		Zero(l.op(), y)
		near.Check(t, "zero", l.get(y).V, ref.New(5, 7).V, 0)
	})
}

// TestCopySpecial: infinities and NaN stay what they are, halves go to even, and what is beyond bfloat16 becomes infinite.
func TestCopySpecial(t *testing.T) {
	in := []float64{math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat32, -math.MaxFloat32, 1 + 0x1p-8, 1 + 0x3p-8,
		0x1p-130, math.Copysign(0, -1), 3.5, 0x1p-133, 65504, 1e-45, 7, 8, 9}
	l := newLab(t)
	src, dst := l.apart().in(tensor.F32, ref.Of(1, 16, in)), l.apart().out(tensor.BF16, 1, 16)
	Copy(l.op(), dst, src)
	for i, got := range l.get(dst).V {
		want := float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(in[i]))))
		if got != want && !(got != got && want != want) || math.Signbit(got) != math.Signbit(want) && want == want {
			t.Errorf("%g became %g, want %g", in[i], got, want)
		}
	}
}

func TestGatherScatterEmbed(t *testing.T) {
	eachCase(t, shapes, func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		m := l.random(rows+3, cols, 1)
		pick := l.rng.Perm(rows + 3)[:rows]
		ids, src := l.ids(pick), l.apart().in(d, m)
		dst, back := l.apart().out(d, rows, cols), l.apart().out(d, rows+3, cols)
		Gather(l.op(), dst, src, ids)
		Scatter(l.op(), back, dst, ids)
		want, scattered := ref.Embed(m, pick), ref.New(rows+3, cols)
		ref.EmbedBackward(scattered, pick, want)
		near.Check(t, "gather", l.get(dst).V, want.V, 0)
		near.Check(t, "scatter", l.get(back).V, scattered.V, 0)
		for _, other := range floatTypes {
			table := l.random(11, cols, 1)
			w := l.apart().in(other, table)
			many := make([]int, rows)
			for i := range many {
				many[i] = l.rng.IntN(11)
			}
			y, rounded := l.apart().out(d, rows, cols), l.apart().inout(d, ref.Embed(table, many))
			Embed(l.op(), y, w, l.ids(many))
			near.Check(t, "embed from "+other.String(), l.get(y).V, l.get(rounded).V, 0)
		}
		checkFault(t, l, FaultNone, 0, 0)
	})
}

// TestRowVector: ids may also stand side by side.
func TestRowVector(t *testing.T) {
	l := newLab(t)
	m := l.random(5, 8, 1)
	src, dst, ids := l.apart().in(tensor.F32, m), l.apart().out(tensor.F32, 3, 8), l.apart().in(tensor.I32, ref.Of(1, 3, []float64{4, 0, 2}))
	Gather(l, dst, src, ids)
	near.Check(t, "gather", l.get(dst).V, ref.Embed(m, []int{4, 0, 2}).V, 0)
}

func TestRowsOutOfRange(t *testing.T) {
	for _, cols := range []int{5, 64} {
		for _, bad := range []int{-1, 4, math.MaxInt32, math.MinInt32} {
			l := newLab(t)
			m := l.random(4, cols, 1)
			ids, src := l.ids([]int{2, bad, 0}), l.apart().in(tensor.F32, m)
			want := ref.Embed(m, []int{2, 0, 0})
			clear(want.Row(1))
			dst := l.apart().out(tensor.F32, 3, cols)
			Gather(l.op(), dst, src, ids)
			checkFault(t, l, FaultRow, int64(bad), 4)
			near.Check(t, "gather", l.get(dst).V, want.V, 0)
			Embed(l.op(), dst, src, ids)
			checkFault(t, l, FaultID, int64(bad), 4)
			near.Check(t, "embed", l.get(dst).V, want.V, 0)

			back, scattered := l.apart().out(tensor.F32, 4, cols), ref.New(4, cols)
			copy(scattered.Row(2), want.Row(0))
			copy(scattered.Row(0), want.Row(2))
			Scatter(l.op(), back, dst, ids)
			checkFault(t, l, FaultRow, int64(bad), 4)
			near.Check(t, "scatter", l.get(back).V, scattered.V, 0)
		}
	}
}

func fill(x []float64, v float64) {
	for i := range x {
		x[i] = v
	}
}
