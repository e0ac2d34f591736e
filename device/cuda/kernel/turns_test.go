//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
)

// TestTurns: groups of every unit of 16, 4 and 2 bytes, of several layouts.
func TestTurns(t *testing.T) {
	for _, c := range []struct{ rows, groups, width int }{
		{1, 1, 1}, {3, 2, 8}, {5, 3, 7}, {2, 4, 2}, {17, 14, 64}, {3, 2, 256}, {65, 5, 12}, {1200, 1, 1}, {0, 3, 8}, {4, 0, 8},
	} {
		t.Run(fmt.Sprintf("%d rows of twice %d groups of %d", c.rows, c.groups, c.width), func(t *testing.T) {
			eachLayout(t, func(t *testing.T, l *lab) {
				for _, d := range floatTypes {
					n := c.groups * c.width
					m := l.random(c.rows, 2*n, 1)
					x := l.apart().in(d, m)
					a, b, again := l.apart().out(d, c.rows, n), l.apart().out(d, c.rows, n), l.apart().out(d, c.rows, 2*n)
					Deinterleave(l.op(), a, b, x, c.width)
					Interleave(l.op(), again, a, b, c.width)
					wantA, wantB := ref.Deinterleave(m, c.width)
					near.Check(t, "a", l.get(a).V, wantA.V, 0)
					near.Check(t, "b", l.get(b).V, wantB.V, 0)
					checkSame(t, l, "together again", again, x)
				}
			})
		})
	}
}
