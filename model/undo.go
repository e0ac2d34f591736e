package model

import (
	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// Undo turns a tensor as a file stores it into the one that the model computes with, for formats that store another: GGUF
// files of some families hold the rows of q and k in another order, or norms as their difference from 1. The zero Undo is
// that of a tensor that is stored as it is, as every tensor of qwen2 is in every format.
type Undo struct {
	Row func(i int) int // the row of the file that is row i of the tensor; nil: row i
	Add float32         // to every value
}

// undo returns how the named tensor of the file becomes the model's.
func (c *Container) undo(name string) Undo {
	if c.Undo == nil {
		return Undo{}
	}
	return c.Undo(name)
}

// row returns the row of the file that is row i of the tensor.
func (u Undo) row(i int) int {
	if u.Row == nil {
		return i
	}
	return u.Row(i)
}

// values applies u to all values of a tensor.
func (u Undo) values(stored []float32, cols int) []float32 {
	if u.Row == nil && u.Add == 0 {
		return stored
	}
	out := make([]float32, len(stored))
	for r := range len(stored) / max(cols, 1) {
		copy(out[r*cols:(r+1)*cols], stored[u.row(r)*cols:])
	}
	for i := range out {
		out[i] += u.Add
	}
	return out
}

// source applies u to a matrix that is read by rows, in the type of the file.
func (u Undo) source(s source) (device.Source, error) {
	if u.Add != 0 {
		return nil, fault.In(fault.Load, s.path, "stores a matrix less %g, which only vectors may be", u.Add).At("tensor %q", s.t.Name).WithID("E-MODEL-006")
	}
	if u.Row == nil {
		return s, nil
	}
	return reordered{s, u}, nil
}

// reordered is a matrix with its rows in the model's order.
type reordered struct {
	source
	undo Undo
}

func (r reordered) Info() tensor.Info { return r.t.Info }

func (r reordered) ReadRows(dst []byte, lo, hi int) error {
	for i := lo; i < hi; i++ {
		at := r.undo.row(i)
		if err := r.source.ReadRows(dst[int64(i-lo)*r.rowBytes:int64(i-lo+1)*r.rowBytes], at, at+1); err != nil {
			return err
		}
	}
	return nil
}
