//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func TestEmbedBackward(t *testing.T) {
	for _, c := range []struct{ n, rows, cols int }{
		{1, 1, 1}, {3, 11, 31}, {31, 1, 8}, {32, 1, 8}, {33, 1, 8}, {40, 2, 264}, {257, 11, 127}, {700, 5, 33}, {1024, 9, 32},
		{1025, 200, 8}, {2500, 50, 16}, {3000, 3, 1}, {5200, 7000, 8}, {64, 9, 896}, {0, 4, 8}, {96, 3, 40},
	} {
		t.Run(fmt.Sprintf("%d ids of %d, %d wide", c.n, c.rows, c.cols), func(t *testing.T) {
			eachLayout(t, func(t *testing.T, l *lab) {
				for _, d := range floatTypes {
					ids := make([]int, c.n)
					for i := range ids {
						ids[i] = min(l.rng.IntN(c.rows), l.rng.IntN(c.rows)) // lower ids come more often
					}
					checkEmbedBackward(t, l, d, ids, nil, c.rows, c.cols)
				}
			})
		})
	}
}

// checkEmbedBackward compares with float64; positions in skip are out of range and add nothing.
func checkEmbedBackward(t *testing.T, l *lab, d tensor.DType, ids []int, skip map[int]bool, rows, cols int) {
	t.Helper()
	mdx, mg := l.random(len(ids), cols, 1), l.random(rows, cols, 1)
	dx, grad, again, column := l.apart().in(d, mdx), l.apart().inout(tensor.F32, mg), l.apart().inout(tensor.F32, mg), l.ids(ids)
	EmbedBackward(l.op(), grad, column, dx)
	if len(skip) == 0 {
		checkFault(t, l, FaultNone, 0, 0)
	}
	EmbedBackward(l.op(), again, column, dx)
	checkSame(t, l, "grad", grad, again)
	most := map[int]int{}
	for i, id := range ids {
		if !skip[i] {
			ref.EmbedBackward(mg, []int{id}, mdx.RowRange(i, i+1))
			most[id]++
		}
	}
	n := 0
	for _, m := range most {
		n = max(n, m)
	}
	near.CheckRel(t, "grad", l.get(grad).V, mg.V, tolerance(tensor.F32, 0, 2, n))
}

func TestEmbedBackwardOutOfRange(t *testing.T) {
	for _, bad := range []int{-1, 7, 1<<31 - 1, -1 << 31} {
		for _, n := range []int{3, 50, 1030} {
			l := newLab(t)
			ids, skip := make([]int, n), map[int]bool{}
			for i := range ids {
				if ids[i] = i % 7; i%3 == 1 {
					ids[i], skip[i] = bad, true
				}
			}
			checkEmbedBackward(t, l, tensor.F32, ids, skip, 7, 8)
			checkFault(t, l, FaultID, int64(bad), 7)
		}
	}
}

// TestEmbedBackwardOrder: the rows of one id are added in ascending order, which sums of very different numbers show.
func TestEmbedBackwardOrder(t *testing.T) {
	l := newLab(t)
	dx, ids := l.apart().in(tensor.F32, ref.Of(5, 1, []float64{1, 0x1p30, 5, -0x1p30, 2})), l.ids([]int{2, 2, 0, 2, 2})
	grad := l.apart().inout(tensor.F32, ref.New(3, 1))
	EmbedBackward(l, grad, ids, dx)
	near.Check(t, "grad", l.get(grad).V, []float64{5, 0, 2}, 0)
}
