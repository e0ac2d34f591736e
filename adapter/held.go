package adapter

import (
	"math"
	"strconv"

	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// heldRows are the rows of each matrix that held reads.
const heldRows = 16

// holding is how often the matrices of a model hold an adapter: Σ⟨W, D⟩ / Σ⟨D, D⟩ over the first rows of each
// W, D = scale·B·A. It is some number for the model that the adapter was trained on, and 1 more once the adapter is
// merged into it, which changes no norm, and so not Identity.
type holding struct {
	known    bool    // some matrix was read, and D is not zero
	times    float64 // the number
	ratio    float64 // by how much relative errors of 1 in W change it: the root mean square of W over |D|
	rounding float64 // the largest relative rounding error of the types that W is stored in
}

// within returns the tolerance of times: 0 if nothing can be said. For a large adapter it is 0.25: codes of a few bits,
// with errors of a tenth of W, change times by less than a thirtieth. A small adapter is judged only in a model whose
// types change times by at most a thousandth. A float32 model whose values once were codes has larger errors: it is
// refused by mistake about once in a thousand times.
func (h holding) within() float64 {
	if !h.known {
		return 0
	}
	if h.ratio < 1./3 {
		return 0.25
	}
	if t := max(1e-5, 8*h.rounding*h.ratio); t <= 1e-3 {
		return t
	}
	return 0
}

// rounding is the relative rounding error of a type.
func rounding(d tensor.DType) float64 {
	switch d {
	case tensor.F32:
		return 0x1p-24
	case tensor.F16:
		return 0x1p-11
	case tensor.BF16:
		return 0x1p-9
	}
	return 0.1 // codes
}

// held measures how often the matrices of f hold the adapter.
func (a *Adapter) held(f *modelfile.Files) (h holding, err error) {
	var dot, dd, ww, n float64
	for _, m := range a.Modules {
		rows := min(heldRows, m.Slot.Shape[0])
		w, err := firstRows(f, m.Slot.Name, rows, m.Slot.Shape[1])
		if err != nil {
			return h, err
		}
		if w == nil {
			continue
		}
		if t, ok := f.File.Tensor(m.Slot.Name); ok {
			h.rounding = max(h.rounding, rounding(t.Held().DType))
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
		return h, nil
	}
	h.known, h.times, h.ratio = true, dot/dd, math.Sqrt(ww/n)/math.Sqrt(dd)
	return h, nil
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
	h, err := a.held(f)
	a.Times = ""
	if h.known {
		a.Times = strconv.FormatFloat(h.times, 'g', -1, 64)
	}
	return err
}

// CheckApart refuses a model that the adapter of path was merged into already.
func (a *Adapter) CheckApart(path string, f *modelfile.Files) error {
	was, err := strconv.ParseFloat(a.Times, 64)
	if err != nil { // not recorded
		return nil
	}
	is, err := a.held(f)
	if err != nil || math.Abs(is.times-was-1) >= is.within() {
		return err
	}
	return fault.In(fault.Invalid, path, "was merged into %s, where it would be added a second time", f.Path).
		WithHint("give the model that the adapter was trained on, or leave the adapter out").WithID("E-ADAPTER-025")
}
