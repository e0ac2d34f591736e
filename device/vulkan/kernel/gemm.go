package kernel

// Weight is a matrix that products and gathers read: rows of elements as Form stores them.
type Weight struct {
	Data       Mat    // its Row and Cols are words
	Form       string // "f32", "bf16", "f16", "q8_0", "q4_k", "q6_k": the variant of kernels
	Rows, Cols int
}

// Range returns rows [lo,hi).
func (w Weight) Range(lo, hi int) Weight {
	w.Data, w.Rows = w.Data.Range(lo, hi), hi-lo
	return w
}

// Words returns the words of a row of n columns in a form.
func Words(form string, n int) int {
	switch form {
	case "bf16", "f16":
		return ceil(n, 2)
	case "q8_0":
		return scales(n/32) + n/32*8
	case "q4_k":
		return n / 256 * 36
	case "q6_k":
		return scales(n/256) + n/256*52
	}
	return n
}

// scales returns the words of the scales that a row has before its n blocks of Q8_0 or Q6_K: two in a word, and whole
// vectors of four words.
func scales(n int) int { return 4 * ceil(n, 8) }

// rowForms are the forms that have a kernel of their own for products with one row.
var rowForms = map[string]struct {
	multiple  int // columns are a multiple of it
	piece     int // columns that a lane reads at a time
	leastTeam int // lanes that share four rows, at least
}{"f32": {4, 8, 32}, "bf16": {8, 16, 32}, "q8_0": {32, 32, 8}, "q4_k": {256, 64, 8}, "q6_k": {256, 64, 8}}

// byVectors reports whether the product of w with one row x has a kernel of its own: these read four elements at once.
func (w Weight) byVectors(x Mat) bool {
	form, ok := rowForms[w.Form]
	return ok && w.Cols%form.multiple == 0 && x.At%4 == 0 && w.Data.At%4 == 0 && w.Data.Row%4 == 0
}

// team returns how many lanes share four rows of w in its product with one row: as few as give a large card enough
// lanes, since then more lanes read the same of x at a time, and none without a piece of a row. A device without wide
// tiles has no use for more lanes.
func (w Weight) team(wide bool) int {
	form := rowForms[w.Form]
	n := form.leastTeam
	for wide && n < rowLanes && n*form.piece < w.Cols && n*ceil(w.Rows, 4) < lanesWanted {
		n *= 2
	}
	return n
}

const (
	tile     = 64
	wideTile = 128
	fewRows  = 8 // products of up to so many rows are sums by gemv

	rowLanes    = 128     // of a group of a product with one row
	lanesWanted = 1 << 16 // of all groups of such a product, at least

	// Products with fewer wide tiles than the groups that a large card works on at a time are summed in parts, so that all
	// of it has work: up to groupsAtOnce tiles of parts, each of leastDepth products an element or more.
	groupsAtOnce = 256
	leastDepth   = 64
)

// PartialSums bounds the elements of all parts of a product.
const PartialSums = groupsAtOnce * wideTile * wideTile

// What the kernels with wide tiles need of an adapter.
const (
	WideLanes  = 256
	WideShared = 2 * 528 * 16 // bytes
)

// split divides the k products of each of m×n results into parts of depth products, of which the last one may have
// fewer. A part's sums span no more than limit elements. It depends on the shape alone, since other parts give other
// bits.
func split(m, n, k, limit int) (parts, depth int) {
	parts = min(groupsAtOnce/(ceil(m, wideTile)*ceil(n, wideTile)), k/leastDepth, limit/(m*n))
	depth = max(1, ceil(k, 16*max(1, parts))) * 16
	return max(1, ceil(k, depth)), depth
}

// product: y = Σ over k products + bias, or added to y, with tiles as wide as the device takes. Both kernels add in
// the same order.
func product(q Queue, kernel string, y, x, w, bias Mat, k int, add bool) {
	side, prefix := tile, "gemm_"
	if q.Wide() {
		side, prefix = wideTile, "wide_"
	}
	m, n := uint32(y.Rows), uint32(y.Cols)
	parts, depth := split(y.Rows, y.Cols, k, q.Limit())
	launch := func(y, bias Mat, add bool) {
		q.Launch(Launch{prefix + kernel, []Mat{y, x, w, bias}, []uint32{m, n, uint32(k), uint32(depth), b(add),
			b(!bias.IsZero())}, parts * ceil(int(m), side) * ceil(int(n), side)})
	}
	if parts == 1 {
		launch(y, bias, add)
		return
	}
	sums := Mat{Buf: q.Partials().Buf, Rows: parts * y.Rows, Cols: y.Cols, Row: y.Cols}
	launch(sums, Mat{}, false)
	q.Launch(Launch{"add_parts", []Mat{y, sums, bias}, []uint32{n, m, uint32(parts), b(add), b(!bias.IsZero())},
		y.Rows * ceil(y.Cols, 64)})
}

// MatMul: y = x·Wᵀ + bias, or added to y, over the first y.Cols rows of w.
func MatMul(q Queue, y, x Mat, w Weight, bias Mat, add bool) {
	if y.Rows == 0 || y.Cols == 0 {
		return
	}
	w = w.Range(0, y.Cols)
	byRows(q, w.Rows, func(wlo, whi int) {
		part, biased := w.Range(wlo, whi), bias.Columns(wlo, whi)
		byRows(q, y.Rows, func(lo, hi int) {
			matMul(q, y.Range(lo, hi).Columns(wlo, whi), x.Range(lo, hi), part, biased, add)
		}, y, x)
	}, w.Data)
}

func matMul(q Queue, y, x Mat, w Weight, bias Mat, add bool) {
	m, n, bind := uint32(y.Rows), uint32(y.Cols), []Mat{y, x, w.Data, bias}
	cols := uint32(w.Cols)
	if y.Rows == 1 && w.byVectors(x) {
		team := w.team(q.Wide())
		args := []uint32{n, cols, uint32(team), b(add), b(!bias.IsZero())}
		if w.Form[0] == 'q' {
			args = append(args, f(1<<23)) // see part_codes.wgsl
		}
		q.Launch(Launch{"row_" + w.Form, bind, args, ceil(y.Cols, 4*rowLanes/team)})
		return
	}
	if y.Rows <= fewRows {
		q.Launch(Launch{"gemv_" + w.Form, bind, []uint32{m, n, cols, b(add), b(!bias.IsZero())}, ceil(y.Cols, 8)})
		return
	}
	product(q, "nt_"+w.Form, y, x, w.Data, bias, w.Cols, add)
}

// InputGrad: dx = dy·W, or added to dx, over the first dy.Cols rows of w.
func InputGrad(q Queue, dx, dy Mat, w Weight, add bool) {
	if dx.Rows == 0 || dx.Cols == 0 {
		return
	}
	if dy.Cols == 0 && !add {
		Fill(q, dx, 0)
	}
	w = w.Range(0, dy.Cols)
	byRows(q, w.Rows, func(wlo, whi int) {
		part, more := w.Range(wlo, whi), add || wlo > 0
		byRows(q, dx.Rows, func(lo, hi int) {
			product(q, "nn_"+w.Form, dx.Range(lo, hi), dy.Range(lo, hi).Columns(wlo, whi), part.Data, Mat{}, whi-wlo, more)
		}, dx, dy)
	}, w.Data)
}

// WeightGrad: dw += dyᵀ·x.
func WeightGrad(q Queue, dw, dy, x Mat) {
	if dw.Rows == 0 || dw.Cols == 0 || dy.Rows == 0 {
		return
	}
	byRows(q, dw.Rows, func(wlo, whi int) {
		part := dw.Range(wlo, whi)
		byRows(q, dy.Rows, func(lo, hi int) {
			product(q, "tn", part, dy.Range(lo, hi).Columns(wlo, whi), x.Range(lo, hi), Mat{}, hi-lo, true)
		}, dy, x)
	}, dw)
}

// Columns: sum[c] += Σ_r x[r, c].
func Columns(q Queue, sum, x Mat) {
	if x.Cols == 0 {
		return
	}
	byRows(q, x.Rows, func(lo, hi int) {
		q.Launch(Launch{"columns", []Mat{sum, x.Range(lo, hi)}, []uint32{uint32(hi - lo), uint32(x.Cols)}, ceil(x.Cols,
			64)})
	}, x)
}
