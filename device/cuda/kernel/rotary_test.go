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
)

// rotaryTable puts a table of exactly n positions into device memory.
func (l *lab) rotaryTable(f *device.Frequencies, n int) uint64 {
	values := RotaryTable(f, n)
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
