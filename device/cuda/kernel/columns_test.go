//go:build emulate

package kernel

import (
	"testing"

	"apr/internal/near"
	"apr/tensor"
)

func TestBiasGrad(t *testing.T) {
	all := append([][2]int{{1000, 1}, {333, 520}, {40, 2304}, {2100, 264}, {33, 3001}}, shapes...)
	eachCase(t, all, func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		mdy, mb := l.random(rows, cols, 1), l.random(1, cols, 1)
		dy, dbias, again := l.apart().in(d, mdy), l.apart().inout(tensor.F32, mb), l.apart().inout(tensor.F32, mb)
		BiasGrad(l.op(), dbias, dy)
		BiasGrad(l.op(), again, dy)
		checkSame(t, l, "dbias", dbias, again)
		for r := range rows {
			for c, v := range mdy.Row(r) {
				mb.V[c] += v
			}
		}
		near.CheckRel(t, "dbias", l.get(dbias).V, mb.V, tolerance(tensor.F32, 0, 2, rows))
	})
}
