package prune

import (
	"io"

	"apr/modelfile"
	"apr/tensor"
)

// file is a teacher's file with the tensors of the cut model.
type file struct {
	tensor.File
	list   []tensor.Stored
	byName map[string]tensor.Stored
}

// Tensors implements tensor.File.
func (f *file) Tensors() []tensor.Stored { return f.list }

// Tensor implements tensor.File.
func (f *file) Tensor(name string) (tensor.Stored, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// taker reads rows and columns of a teacher's tensor.
type taker struct {
	path string
	base tensor.Stored
	part
	info tensor.Info
}

// ReadAt implements io.ReaderAt over the cut tensor.
func (t *taker) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= t.info.Size {
		return 0, io.EOF
	}
	row := int64(t.info.Cols() * t.info.DType.BlockBytes())
	n := min(int64(len(p)), t.info.Size-off)
	lo, hi := off/row, (off+n+row-1)/row
	raw := make([]byte, (hi-lo)*row)
	for r := lo; r < hi; {
		run, err := t.run(raw[(r-lo)*row:], int(r), int(hi))
		if err != nil {
			return 0, err
		}
		r += int64(run)
	}
	copy(p, raw[off-lo*row:][:n])
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// run reads rows from lo on that are neighbours in the teacher's tensor too, and returns how many.
func (t *taker) run(dst []byte, lo, hi int) (int, error) {
	first, n := lo, hi-lo
	if t.rows != nil {
		first = t.rows[lo]
		for n = 1; lo+n < hi && t.rows[lo+n] == first+n; n++ {
		}
	}
	cols, rowBytes := t.base.Cols(), t.base.DType.RowBytes(t.base.Cols())
	base := t.base
	base.Shape, base.Size = []int{n, cols}, int64(n)*rowBytes
	base.ReaderAt = io.NewSectionReader(t.base, int64(first)*rowBytes, base.Size)
	values, err := modelfile.ReadFloat32(t.path, base)
	if err != nil {
		return 0, err
	}
	out := values
	if t.cols != nil {
		out = make([]float32, 0, n*len(t.cols))
		for r := range n {
			for _, c := range t.cols {
				out = append(out, values[r*cols+c])
			}
		}
	}
	if t.factor != 1 {
		for i, x := range out {
			out[i] = float32((float64(x)+t.offset)*t.factor - t.offset)
		}
	}
	tensor.Narrow(dst[:len(out)*t.info.DType.BlockBytes()], out, t.info.DType)
	return n, nil
}
