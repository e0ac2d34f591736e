//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// TestHeadNorm: heads of every share of a warp, those that blocks take, with and without weights, in place, twice.
func TestHeadNorm(t *testing.T) {
	for _, c := range []struct{ rows, heads, dim int }{
		{1, 1, 8}, {3, 2, 16}, {5, 3, 64}, {40, 14, 64}, {7, 5, 128}, {3, 2, 256}, {2, 3, 264}, {3, 1, 512}, {2, 2, 1024}, {2, 1, 1032},
		{3, 1, 4096}, {3, 3, 1}, {4, 2, 7}, {2, 3, 33}, {2, 1, 1025}, {300, 12, 8}, {0, 2, 64},
	} {
		t.Run(fmt.Sprintf("%d rows of %d heads of %d", c.rows, c.heads, c.dim), func(t *testing.T) {
			eachLayout(t, func(t *testing.T, l *lab) {
				for _, d := range floatTypes {
					for _, weighted := range []bool{true, false} {
						checkHeadNorm(t, l, d, c.rows, c.heads, c.dim, weighted)
					}
				}
			})
		})
	}
}

func checkHeadNorm(t *testing.T, l *lab, d tensor.DType, rows, heads, dim int, weighted bool) {
	const eps = 1e-3
	mx, mdy := l.random(rows, heads*dim, 1), l.random(rows, heads*dim, 1)
	x, dy := l.apart().in(d, mx), l.apart().in(d, mdy)
	var mw, mdw ref.Mat
	var w, dw, again Mat
	if weighted {
		mw, mdw = l.random(1, dim, 1), l.random(1, dim, 1)
		w, dw, again = l.apart().in(tensor.F32, mw), l.apart().inout(tensor.F32, mdw), l.apart().inout(tensor.F32, mdw)
	}
	y, over, alone, rstd := l.apart().out(d, rows, heads*dim), l.apart().inout(d, mx), l.apart().out(d, rows, heads*dim), l.apart().out(tensor.F32, rows, heads)
	HeadNorm(l.op(), y, rstd, x, w, dim, eps)
	HeadNorm(l.op(), over, Mat{}, over, w, dim, eps)
	HeadNorm(l.op(), alone, Mat{}, x, w, dim, eps)
	wantY, wantR := ref.HeadNorm(mx, mw, dim, eps)
	checkRows(t, "y", l.get(y), wantY, tolerance(d, 1, 8, dim))
	checkRows(t, "rstd", l.get(rstd), wantR, tolerance(tensor.F32, 0, 8, dim))
	checkSame(t, l, "in place", y, over)
	checkSame(t, l, "without rstd", y, alone)

	kept := l.apart().in(tensor.F32, wantR)
	dx, inPlace := l.apart().out(d, rows, heads*dim), l.apart().inout(d, mdy)
	HeadNormBackward(l.op(), dx, dw, dy, x, kept, w, dim)
	HeadNormBackward(l.op(), inPlace, again, inPlace, x, kept, w, dim)
	wantX, wantW := ref.HeadNormBackward(mdy, mx, wantR, mw, dim)
	if dim > 1 { // of one value almost nothing is left
		checkRows(t, "dx", l.get(dx), wantX, tolerance(d, 2, 16, dim))
	}
	checkSame(t, l, "dx over dy", dx, inPlace)
	if weighted {
		mdw.Add(wantW)
		near.CheckRel(t, "dw", l.get(dw).V, mdw.V, tolerance(tensor.F32, 0, 8, rows*heads))
		checkSame(t, l, "dw", dw, again)
	}
}
