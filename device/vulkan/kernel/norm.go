package kernel

// Norm is RMSNorm over each group of dim columns: with delta, sum = x + delta and v = sum, else v = x; rstd =
// (mean(v²)+eps)^−½ and y = v·rstd·w. y, rstd, sum with delta, and w may be none.
func Norm(q Queue, y, rstd, sum, x, delta, w Mat, dim int, eps float64) {
	if dim == 0 {
		return
	}
	heads := x.Cols / dim
	byRows(q, x.Rows, func(lo, hi int) {
		q.Launch(Launch{"norm", []Mat{y.Range(lo, hi), rstd.Range(lo, hi), sum.Range(lo, hi), x.Range(lo, hi),
			delta.Range(lo, hi), w},
			[]uint32{uint32(dim), uint32(heads), f(eps), b(!y.IsZero()), b(!rstd.IsZero()), b(!delta.IsZero()),
				b(!w.IsZero())}, (hi - lo) * heads})
	}, y, sum, x, delta)
}

// NormBackward writes dx, or adds to it, and adds to dw unless that is none: the sums of 64 rows first, then those of
// the blocks.
func NormBackward(q Queue, dx, dw, dy, x, rstd, w Mat, dim int, add bool) {
	if dim == 0 || x.Rows == 0 {
		return
	}
	heads := x.Cols / dim
	if !dw.IsZero() {
		byRows(q, x.Rows, func(lo, hi int) {
			sums := q.Scratch(ceil(hi-lo, 64), dim)
			q.Launch(Launch{"norm_weight", []Mat{sums, dy.Range(lo, hi), x.Range(lo, hi), rstd.Range(lo, hi)},
				[]uint32{uint32(hi - lo), uint32(dim), uint32(heads)}, sums.Rows * ceil(dim, 64)})
			Columns(q, dw, sums)
		}, dy, x)
	}
	byRows(q, x.Rows, func(lo, hi int) {
		q.Launch(Launch{"norm_backward", []Mat{dx.Range(lo, hi), dy.Range(lo, hi), x.Range(lo, hi), rstd.Range(lo, hi), w},
			[]uint32{uint32(dim), uint32(heads), b(add), b(!w.IsZero())}, (hi - lo) * heads})
	}, dx, dy, x)
}
