//go:build emulate

package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// rotaryTable puts a table of exactly n positions into device memory.
func (l *lab) rotaryTable(f *device.Frequencies, n int) RotaryTables {
	return RotaryTables{Table: l.floats(RotaryTable(f, n)), Rows: n}
}

// floats puts values into device memory.
func (l *lab) floats(values []float32) uint64 {
	ptr, bytes := l.alloc(4 * len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(bytes[4*i:], math.Float32bits(v))
	}
	return ptr
}

func TestRotate(t *testing.T) {
	const rows = 17
	for _, heads := range []int{1, 3, 4, 14} {
		for _, dim := range []int{2, 16, 24, 32, 64, 80, 128, 256} {
			low, high := frequencies(1e4, dim), frequencies(1e6, dim)
			for _, r := range []device.Rotary{
				{Table: low, SeqLen: 5}, {Table: high, SeqLen: 17, Offset: 3}, {Table: high, SeqLen: 1, Offset: 300}, {Table: high, SeqLen: 4096},
			} {
				r.HeadDim = dim
				t.Run(fmt.Sprintf("%d heads of %d, sequences of %d from %d", heads, dim, r.SeqLen, r.Offset), func(t *testing.T) {
					eachLayout(t, func(t *testing.T, l *lab) {
						table := l.rotaryTable(r.Table, r.Offset+min(r.SeqLen, rows))
						for _, d := range floatTypes {
							m := l.random(rows, heads*dim, 1)
							inverse := r
							inverse.Inverse = true
							x, y, none := l.apart().inout(d, m), l.apart().inout(d, m), l.apart().out(d, 0, heads*dim)
							Rotate(l.op(), x, r, table)
							Rotate(l.op(), y, inverse, table)
							Rotate(l.op(), none, r, table)
							near.CheckRel(t, "rotated", l.get(x).V, ref.Rotate(m, r, nil).V, tolerance(d, 1, 4, 2))
							near.CheckRel(t, "rotated back", l.get(y).V, ref.Rotate(m, inverse, nil).V, tolerance(d, 1, 4, 2))
						}
					})
				})
			}
		}
	}
}

// TestRotatePart: heads of which a part turns, positions of the rows' own, and the scale of queries.
func TestRotatePart(t *testing.T) {
	const rows = 9
	at := []int{0, 1, 2, 0, 1, 7, 8, 0, 3}
	for _, c := range []struct{ dim, pairs int }{{64, 32}, {64, 16}, {64, 8}, {64, 5}, {256, 64}, {24, 3}, {6, 1}} {
		table := &device.Frequencies{Inv: frequencies(1e4, 2*c.pairs).Inv, Factor: 1.3}
		for _, r := range []device.Rotary{{SeqLen: 5}, {SeqLen: 9, QBeta: .4, QLength: 2}, {SeqLen: 4, Offset: 6, QBeta: .1, QLength: 3}} {
			r.HeadDim, r.Table = c.dim, table
			for _, positions := range [][]int{nil, at} {
				t.Run(fmt.Sprintf("%d of %d, β %g, positions %v", 2*c.pairs, c.dim, r.QBeta, positions != nil), func(t *testing.T) {
					eachLayout(t, func(t *testing.T, l *lab) {
						n := max(9, r.Offset+r.SeqLen)
						tables := l.rotaryTable(table, n)
						if r.QBeta > 0 {
							tables.Scale = l.floats(RotaryScale(r, n))
						}
						r := r
						if positions != nil {
							plain := newLab(t) // without gaps
							tables.Positions = plain.ids(positions)
							r.Positions = device.Tensor{Buf: someBuffer{}}
						}
						for _, d := range floatTypes {
							m := l.random(rows, 3*c.dim, 1)
							inverse := r
							inverse.Inverse = true
							x, y := l.apart().inout(d, m), l.apart().inout(d, m)
							Rotate(l.op(), x, r, tables)
							Rotate(l.op(), y, inverse, tables)
							near.CheckRel(t, "rotated", l.get(x).V, ref.Rotate(m, r, positions).V, tolerance(d, 1, 6, 2))
							near.CheckRel(t, "rotated back", l.get(y).V, ref.Rotate(m, inverse, positions).V, tolerance(d, 1, 6, 2))
							checkFault(t, l, FaultNone, 0, 0)
						}
					})
				})
			}
		}
	}
}

// someBuffer makes a tensor one that is there.
type someBuffer struct{ device.Buffer }

// TestRotateOutside: a position that there is not is noted, and its row stays.
func TestRotateOutside(t *testing.T) {
	for _, position := range []int{5, -1, 1 << 30} {
		l := newLab(t)
		table := frequencies(1e4, 8)
		tables := l.rotaryTable(table, 5)
		tables.Positions = l.ids([]int{4, position})
		m := l.random(2, 8, 1)
		x := l.inout(tensor.F32, m)
		Rotate(l.op(), x, device.Rotary{HeadDim: 8, Table: table, SeqLen: 5, Positions: device.Tensor{Buf: someBuffer{}}}, tables)
		near.Check(t, "the row", l.get(x).Row(1), m.Row(1), 0)
		checkFault(t, l, FaultPosition, int64(position), 5)
	}
}
