// Package ref computes every operation of device.Stream, and forward and backward of any decoder that package arch
// describes, in float64, slowly and obviously: the judge in tests.
//
// A Net is a description with parameters. Its forward composes operations on a tape; each operation is a formula with the
// backward that belongs to it, and the backward of the whole runs them from last to first.
//
// Each function is the formula of its operation written as loops over dense matrices; nothing is fused, blocked, reused
// or run in parallel. Backwards are written from their formulas too, and the package's own tests compare them with
// central finite differences of the forwards and with goldens made by PyTorch in float64.
//
// Caveats. For tests only: shapes are not checked beyond what indexing does, and a whole model beyond a few million
// parameters takes minutes. The package shares the description structs of device (Attn, LossSpec ...) and of arch, and no
// code with any device or with model.
package ref

// Mat is a dense row-major matrix: element (r,c) is V[r·Cols+c]. A vector has one row.
type Mat struct {
	Rows, Cols int
	V          []float64
}

// New returns a matrix of zeros.
func New(rows, cols int) Mat { return Mat{rows, cols, make([]float64, rows*cols)} }

// Of returns the matrix with the given values, row after row.
func Of[F float32 | float64](rows, cols int, values []F) Mat {
	if len(values) != rows*cols {
		panic("ref: number of values is not rows·cols")
	}
	m := New(rows, cols)
	for i, v := range values {
		m.V[i] = float64(v)
	}
	return m
}

// Row returns row r; writing to it writes to m.
func (m Mat) Row(r int) []float64 { return m.V[r*m.Cols : (r+1)*m.Cols] }

// Clone returns a copy of m.
func (m Mat) Clone() Mat {
	return Mat{m.Rows, m.Cols, append([]float64(nil), m.V...)}
}

// RowRange returns rows [lo,hi) of m, sharing its values.
func (m Mat) RowRange(lo, hi int) Mat { return Mat{hi - lo, m.Cols, m.V[lo*m.Cols : hi*m.Cols]} }

// Add adds o to m, element by element.
func (m Mat) Add(o Mat) {
	for i, v := range o.V {
		m.V[i] += v
	}
}

// Stack returns the rows of all parts, one part below the other.
func Stack(parts ...Mat) Mat {
	out := Mat{Cols: parts[0].Cols}
	for _, p := range parts {
		out.Rows += p.Rows
		out.V = append(out.V, p.V...)
	}
	return out
}

// Beside returns the columns of all parts, side by side.
func Beside(parts ...Mat) Mat {
	cols := 0
	for _, p := range parts {
		cols += p.Cols
	}
	out := Mat{Rows: parts[0].Rows, Cols: cols}
	for r := range out.Rows {
		for _, p := range parts {
			out.V = append(out.V, p.Row(r)...)
		}
	}
	return out
}

// ColRange returns a copy of columns [lo,hi) of m.
func (m Mat) ColRange(lo, hi int) Mat {
	out := Mat{Rows: m.Rows, Cols: hi - lo}
	for r := range m.Rows {
		out.V = append(out.V, m.Row(r)[lo:hi]...)
	}
	return out
}
