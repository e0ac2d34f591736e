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

// rounded is a matrix as rows of e4m3 numbers with scales, and what they stand for.
func (l *lab) rounded(rows, cols int) (Bytes, Mat, ref.Mat) {
	gap, lead := l.gap, l.lead
	defer func() { l.gap, l.lead = gap, lead }()
	b, watched := l.e4m3(rows, cols, cols)
	scale := l.out(tensor.F32, rows, 1)
	QuantizeRows(l.op(), b, scale, l.in(tensor.BF16, l.random(rows, cols, 1)))
	m, codes, scales := ref.New(rows, cols), l.bytes(watched), l.get(scale)
	for i, c := range codes {
		v := e4m3Values[c&127]
		if c&128 != 0 {
			v = -v
		}
		m.V[i] = v * scales.V[i/cols]
	}
	return b, scale, m
}

// TestExpertsE4M3: products of experts in 8-bit floats with the emulator's stand-ins, splits as of TestExpertsSM90.
func TestExpertsE4M3(t *testing.T) {
	for i, s := range splits {
		for _, shape := range [][2]int{{264, 80}, {64, 208}, {8, 16}, {200, 384}}[i%3 : i%3+2] {
			out, in := shape[0], shape[1]
			t.Run(fmt.Sprintf("%s, %d×%d", s.name, out, in), func(t *testing.T) {
				l := newLab(t)
				l.multiprocessors = 1 + i // so that blocks have several tiles, and different ones
				if i%2 == 0 {
					l.gap = 24
				}
				r, starts := s.routing(l)
				slots, experts := starts[len(starts)-1], len(s.slots)
				x, sx, exact := l.rounded(slots, in)
				w, sw, matrices := l.rounded(experts*out, in)
				bias := l.random(experts, out, 1)
				bt := l.in(tensor.F32, bias)
				y, plain := l.out(tensor.BF16, slots, out), l.out(tensor.BF16, slots, out)
				ExpertsE4M3(l.op(), y, x, sx, Mat{}, w, sw, bt, r, 0)
				near.CheckRel(t, "y", l.get(y).V, ref.Grouped(exact, matrices, bias, starts).V, 4e-3)
				ExpertsE4M3(l.op(), plain, x, sx, Mat{}, w, sw, Mat{}, r, 0)
				none := ref.New(experts, out)
				near.CheckRel(t, "y without bias", l.get(plain).V, ref.Grouped(exact, matrices, none, starts).V, 4e-3)

				const tokens = 5
				rows, byRows := l.tokens(slots, tokens), ref.New(slots, in)
				for i, row := range l.get(rows).V {
					copy(byRows.Row(i), exact.Row(int(row)))
				}
				ExpertsE4M3(l.op(), plain, x.part(0, tokens), sx.rows(0, tokens), rows, w, sw, Mat{}, r, 0)
				near.CheckRel(t, "y of tokens", l.get(plain).V, ref.Grouped(byRows, matrices, none, starts).V, 4e-3)

				slabs, half, middle := l.out(tensor.BF16, slots, out), slots/2, experts/2
				for _, e := range [][2]int{{0, middle}, {middle, experts}} {
					for _, n := range [][2]int{{0, half}, {half, slots}} {
						ExpertsE4M3(l.op(), slabs.rows(n[0], n[1]), x.part(n[0], n[1]), sx.rows(n[0], n[1]), Mat{},
							w.part(e[0]*out, e[1]*out), sw.rows(e[0]*out, e[1]*out), bt.rows(e[0], e[1]), r.Part(e[0], e[1]), n[0])
					}
				}
				if !bytes.Equal(l.bytes(slabs), l.bytes(y)) {
					t.Error("slabs and parts have other bits")
				}
			})
		}
	}
}

func (b Bytes) part(lo, hi int) Bytes {
	b.Ptr += uint64(lo * b.Stride)
	b.Rows = hi - lo
	return b
}
