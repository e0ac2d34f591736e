package kernel

// Fill sets all elements of m to the bits of value.
func Fill(q Queue, m Mat, value uint32) {
	byRows(q, m.Rows, func(lo, hi int) {
		q.Launch(Launch{"fill", []Mat{m.Range(lo, hi)}, []uint32{uint32(hi - lo), uint32(m.Cols), value}, chunks(hi-lo,
			m.Cols)})
	}, m)
}

// Copy copies src to dst, of one shape.
func Copy(q Queue, dst, src Mat) { move(q, dst, src, dst.Cols, 0, 0, 0, 0, 0) }

// Deinterleave: a and b are the even and the odd groups of width columns of x.
func Deinterleave(q Queue, a, b, x Mat, width int) {
	move(q, a, x, a.Cols, width, 0, 0, width, 2*width)
	move(q, b, x, a.Cols, width, 0, width, width, 2*width)
}

// Interleave is its inverse: it writes x.
func Interleave(q Queue, x, a, b Mat, width int) {
	move(q, x, a, a.Cols, width, 0, 0, 2*width, width)
	move(q, x, b, a.Cols, width, width, 0, 2*width, width)
}

// move copies cols columns of each row; see move.wgsl.
func move(q Queue, dst, src Mat, cols, width, to, from, skipDst, skipSrc int) {
	byRows(q, dst.Rows, func(lo, hi int) {
		q.Launch(Launch{"move", []Mat{dst.Range(lo, hi), src.Range(lo, hi)},
			[]uint32{uint32(hi - lo), uint32(cols), uint32(to), uint32(from), uint32(width), uint32(skipDst),
				uint32(skipSrc)}, chunks(hi-lo, cols)})
	}, dst, src)
}

// Embed: dst[i] = w[ids[i]−first] for the ids of w's rows, which are [first, first+w.Rows) of limit.
func Embed(q Queue, dst Mat, w Weight, ids Mat, first, limit int) {
	if dst.Cols == 0 {
		return
	}
	byRows(q, w.Rows, func(wlo, whi int) {
		byRows(q, dst.Rows, func(lo, hi int) {
			q.Launch(Launch{"embed_" + w.Form, []Mat{dst.Range(lo, hi), w.Data.Range(wlo, whi), part(ids, lo, hi), q.Faults()},
				[]uint32{uint32(hi - lo), uint32(w.Cols), uint32(first + wlo), uint32(first + whi),
					uint32(limit)}, (hi - lo) * ceil(w.Cols, 1024)})
		}, dst)
	}, w.Data)
}

// EmbedBackward: grad[ids[i]] += dx[i], in ascending i.
func EmbedBackward(q Queue, grad, ids, dx Mat) {
	byRows(q, grad.Rows, func(wlo, whi int) {
		byRows(q, dx.Rows, func(lo, hi int) {
			q.Launch(Launch{"embed_backward", []Mat{grad.Range(wlo, whi), part(ids, lo, hi), dx.Range(lo, hi), q.Faults()},
				[]uint32{uint32(hi - lo), uint32(grad.Cols), uint32(wlo), uint32(whi), uint32(grad.Rows)}, ceil(grad.Cols, 64)})
		}, dx)
	}, grad)
}

// part returns elements [lo,hi) of a vector of ids, a row or a column without gaps.
func part(ids Mat, lo, hi int) Mat {
	return Mat{Buf: ids.Buf, At: ids.At + lo, Rows: 1, Cols: hi - lo, Row: hi - lo}
}

// Gather: dst[i] = src[ids[i]].
func Gather(q Queue, dst, src, ids Mat) {
	byRows(q, src.Rows, func(wlo, whi int) {
		byRows(q, dst.Rows, func(lo, hi int) {
			q.Launch(Launch{"rows", []Mat{dst.Range(lo, hi), src.Range(wlo, whi), part(ids, lo, hi), q.Faults()},
				[]uint32{uint32(hi - lo), uint32(dst.Cols), uint32(wlo), uint32(whi), uint32(src.Rows), 0}, chunks(hi-lo,
					dst.Cols)})
		}, dst)
	}, src)
}

// Scatter zeroes dst: dst[ids[i]] = src[i].
func Scatter(q Queue, dst, src, ids Mat) {
	Fill(q, dst, 0)
	byRows(q, dst.Rows, func(wlo, whi int) {
		byRows(q, src.Rows, func(lo, hi int) {
			q.Launch(Launch{"rows", []Mat{dst.Range(wlo, whi), src.Range(lo, hi), part(ids, lo, hi), q.Faults()},
				[]uint32{uint32(hi - lo), uint32(dst.Cols), uint32(wlo), uint32(whi), uint32(dst.Rows), 1}, chunks(hi-lo,
					dst.Cols)})
		}, src)
	}, dst)
}

// ArgMax writes the first column of the largest number of each row to ids, and it with the value to best unless that
// is none.
func ArgMax(q Queue, ids, best, x Mat) {
	byRows(q, x.Rows, func(lo, hi int) {
		q.Launch(Launch{"argmax", []Mat{part(ids, lo, hi), best.Range(lo, hi), x.Range(lo, hi)},
			[]uint32{uint32(x.Cols), b(!best.IsZero())}, hi - lo})
	}, x)
}
