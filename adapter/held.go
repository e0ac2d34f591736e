package adapter

import (
	"math"
	"strconv"

	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// heldRows are the rows of each matrix that Held reads.
const heldRows = 16

// Held returns how often the matrices of f hold the adapter: Σ⟨W, D⟩ / Σ⟨D, D⟩ over the first rows of each W,
// D = scale·B·A. It is some number for the model that the adapter was trained on, and 1 more once the adapter is
// merged into it, which changes no norm, and so not Identity. sure is false where the adapter is so small beside W
// that codes of a few bits, of which W may be made, hide it: an error of a tenth of W would change the number by more
// than a thirtieth.
func (a *Adapter) Held(f *modelfile.Files) (times float64, sure bool, err error) {
	var dot, dd, ww, n float64
	for _, m := range a.Modules {
		rows := min(heldRows, m.Slot.Shape[0])
		w, err := firstRows(f, m.Slot.Name, rows, m.Slot.Shape[1])
		if err != nil {
			return 0, false, err
		}
		if w == nil {
			continue
		}
		d := make([]float32, m.Slot.Shape[1])
		for r := range rows {
			m.delta(d, r)
			for i, x := range w[r*len(d) : (r+1)*len(d)] {
				x, y := float64(x), float64(d[i])
				dot, dd, ww, n = dot+x*y, dd+y*y, ww+x*x, n+1
			}
		}
	}
	if dd == 0 || n == 0 {
		return 0, false, nil
	}
	return dot / dd, 3*math.Sqrt(ww/n) < math.Sqrt(dd), nil
}

// delta writes row r of scale·B·A.
func (m Module) delta(d []float32, r int) {
	clear(d)
	for k, b := range m.B[r*m.Rank : (r+1)*m.Rank] {
		b *= float32(m.Scale)
		for i, x := range m.A[k*len(d) : (k+1)*len(d)] {
			d[i] += b * x
		}
	}
}

// firstRows reads the first n rows of a matrix; nil where the file does not have it (a tied head), or cannot be read by
// rows.
func firstRows(f *modelfile.Files, name string, n, cols int) ([]float32, error) {
	if _, ok := f.File.Tensor(name); !ok {
		return nil, nil
	}
	src, err := f.Source(name)
	if err != nil {
		return nil, nil // a stream of blocks, which is not read by row: Merge says so
	}
	d := src.Info().DType
	raw := make([]byte, int64(n)*d.RowBytes(cols))
	if err := src.ReadRows(raw, 0, n); err != nil {
		return nil, err
	}
	part := tensor.Stored{Info: tensor.Info{Name: name, DType: d, Shape: []int{n, cols}, Size: int64(len(raw))},
		ReaderAt: bytesAt(raw)}
	return modelfile.ReadFloat32(f.Path, part)
}

// Record notes the model that the adapter was trained on.
func (a *Adapter) Record(f *modelfile.Files) (err error) {
	a.Base = f.Path
	if a.Norms, err = Identity(f); err != nil {
		return err
	}
	times, sure, err := a.Held(f)
	a.Times = ""
	if sure {
		a.Times = strconv.FormatFloat(times, 'g', -1, 64)
	}
	return err
}

// CheckApart refuses a model that the adapter of path was merged into already.
func (a *Adapter) CheckApart(path string, f *modelfile.Files) error {
	was, err := strconv.ParseFloat(a.Times, 64)
	if err != nil { // not recorded
		return nil
	}
	is, sure, err := a.Held(f)
	if err != nil || !sure || math.Abs(is-was-1) > 0.25 {
		return err
	}
	return fault.In(fault.Invalid, path, "was merged into %s, where it would be added a second time", f.Path).
		WithHint("give the model that the adapter was trained on, or leave the adapter out").WithID("E-ADAPTER-025")
}
