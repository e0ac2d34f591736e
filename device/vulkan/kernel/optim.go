package kernel

// SquaresBlock is how many elements Squares sums up at a time; its sums are [blocks, SquaresSums]: of large, ordinary
// and small ones, and how many are not finite. Scales of the first and third are SquaresScale and its inverse.
const (
	SquaresBlock = 8192
	SquaresSums  = 4
	SquaresScale = 0x1p120
)

// flat returns m, which is dense, as rows of SquaresBlock elements; the last may be shorter, so that n is the
// elements in all.
func flat(m Mat) (rows Mat, n int) {
	n = m.Rows * m.Cols
	return Mat{Buf: m.Buf, At: m.At, Rows: ceil(n, SquaresBlock), Cols: SquaresBlock, Row: SquaresBlock}, n
}

// Squares writes the sums of each block of x, which is dense.
func Squares(q Queue, sums, x Mat) {
	rows, n := flat(x)
	byRows(q, rows.Rows, func(lo, hi int) {
		q.Launch(Launch{"squares", []Mat{sums.Range(lo, hi), piece(rows, n, lo, hi)}, []uint32{uint32(min(n,
			hi*SquaresBlock) - lo*SquaresBlock)}, hi - lo})
	}, rows)
}

// piece returns blocks [lo,hi) of n elements as one row.
func piece(rows Mat, n, lo, hi int) Mat {
	cols := min(n, hi*SquaresBlock) - lo*SquaresBlock
	return Mat{Buf: rows.Buf, At: rows.At + lo*SquaresBlock, Rows: 1, Cols: cols, Row: cols}
}

// Update holds the constants of AdamW in float32.
type Update struct{ Decay, Beta1, Rest1, Beta2, Rest2, Scale, Step, Bias, Eps float64 }

// AdamW updates w, m and v by g; all are dense.
func AdamW(q Queue, w, g, m, v Mat, u Update) {
	rows, n := flat(w)
	at := func(t Mat, lo, hi int) Mat {
		t, _ = flat(t)
		return piece(t, n, lo, hi)
	}
	byRows(q, rows.Rows, func(lo, hi int) {
		k := min(n, hi*SquaresBlock) - lo*SquaresBlock
		q.Launch(Launch{"adamw", []Mat{at(w, lo, hi), at(g, lo, hi), at(m, lo, hi), at(v, lo, hi)},
			[]uint32{uint32(k), f(u.Decay), f(u.Beta1), f(u.Rest1), f(u.Beta2), f(u.Rest2), f(u.Scale), f(u.Step),
				f(u.Bias), f(u.Eps)}, ceil(k, 1024)})
	}, rows)
}
