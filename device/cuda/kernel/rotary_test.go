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
func (l *lab) rotaryTable(theta float64, headDim, n int) uint64 {
	values := RotaryTable(theta, headDim, n)
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
			for _, r := range []device.Rotary{
				{Theta: 1e4, SeqLen: 5}, {Theta: 1e6, SeqLen: 17, Offset: 3}, {Theta: 1e6, SeqLen: 1, Offset: 300}, {Theta: 1e6, SeqLen: 4096},
			} {
				r.HeadDim = dim
				t.Run(fmt.Sprintf("%d heads of %d, sequences of %d from %d", heads, dim, r.SeqLen, r.Offset), func(t *testing.T) {
					eachLayout(t, func(t *testing.T, l *lab) {
						table := l.rotaryTable(r.Theta, dim, r.Offset+min(r.SeqLen, rows))
						for _, d := range floatTypes {
							m := l.random(rows, heads*dim, 1)
							inverse := r
							inverse.Inverse = true
							x, y, none := l.apart().inout(d, m), l.apart().inout(d, m), l.apart().out(d, 0, heads*dim)
							Rotate(l.op(), x, r, table)
							Rotate(l.op(), y, inverse, table)
							Rotate(l.op(), none, r, table)
							near.CheckRel(t, "rotated", l.get(x).V, ref.Rotate(m, r).V, tolerance(d, 1, 4, 2))
							near.CheckRel(t, "rotated back", l.get(y).V, ref.Rotate(m, inverse).V, tolerance(d, 1, 4, 2))
						}
					})
				})
			}
		}
	}
}
