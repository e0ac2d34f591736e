package safetensors

import (
	"errors"
	"io"
	"strings"

	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// scaleSuffixes are what the name of a matrix of 8-bit floats gains to name its scales.
var scaleSuffixes = []string{"_scale_inv", "_scale"}

// Dequantise makes f show matrices of F8_E4M3 as the float32 values that they stand for, as scheme says: values are decoded
// while they are read, and their scales, NAME_scale_inv (or NAME_scale), are no longer listed, nor are the scales of
// activations beside them. [tensor.Stored.Held] says what the file holds.
//
// A matrix without scales, scales of a wrong shape or type, and a scale that is not finite are faults of kind Load that name
// file and tensor.
func (f *File) Dequantise(scheme quant.FP8) error {
	used := map[string]bool{}
	var out []tensor.Stored
	for _, t := range f.Tensors() {
		if t.DType != tensor.F8_E4M3 {
			continue
		}
		scales, err := f.scalesOf(t)
		if err != nil {
			return err
		}
		r, err := newFP8Reader(t, scales, scheme)
		if err != nil {
			return err
		}
		used[t.Name], used[scales.Name] = true, true
		module := strings.TrimSuffix(t.Name, "weight")
		for _, name := range []string{"activation_scale", "input_scale"} {
			used[module+name] = true
		}
		info := t.Info
		info.DType, info.Size = tensor.F32, 4*t.Size
		out = append(out, tensor.Stored{Info: info, ReaderAt: r})
	}
	for _, t := range f.Tensors() {
		if !used[t.Name] {
			out = append(out, t)
		}
	}
	f.Set = stored.NewSet(out)
	return nil
}

// pathOf returns the file that holds a tensor.
func pathOf(t tensor.Stored) string { return t.ReaderAt.(*stored.Section).Path }

// scalesOf finds the scales of t.
func (f *File) scalesOf(t tensor.Stored) (found tensor.Stored, err error) {
	n := 0
	for _, suffix := range scaleSuffixes {
		if s, ok := f.Tensor(t.Name + suffix); ok {
			found, n = s, n+1
		}
	}
	switch {
	case n == 0:
		return found, fault.In(fault.Load, pathOf(t), "is of type %s and has no scales", t.DType).At("tensor %q", t.Name).
			WithHint("%q must hold them", t.Name+scaleSuffixes[0]).WithID("E-ST-070")
	case n > 1:
		return found, fault.In(fault.Load, pathOf(t), "has two tensors of scales, %q and %q", t.Name+scaleSuffixes[0], t.Name+scaleSuffixes[1]).
			At("tensor %q", t.Name).WithHint("one of them must go").WithID("E-ST-070")
	}
	return found, nil
}

// fp8Reader reads a matrix of 8-bit floats as little-endian float32.
type fp8Reader struct {
	held   tensor.Stored
	matrix *quant.FP8Matrix
}

func newFP8Reader(t, scales tensor.Stored, scheme quant.FP8) (*fp8Reader, error) {
	bad := func(of tensor.Stored, format string, args ...any) *fault.Error {
		return fault.In(fault.Load, pathOf(of), format, args...).At("tensor %q", of.Name).WithID("E-ST-071")
	}
	if len(t.Shape) != 2 {
		return nil, bad(t, "is of type %s and shape %v", t.DType, t.Shape).WithHint("8-bit floats are matrices")
	}
	if !scales.DType.IsFloat() {
		return nil, bad(scales, "holds scales of type %s", scales.DType).WithHint("scales are f32, bf16 or f16")
	}
	const most = 1 << 26 // 8-bit floats of more scales than these would not fit a machine
	if scales.Elements() > most {
		return nil, bad(scales, "holds %d scales, over the limit of %d", scales.Elements(), most)
	}
	raw, values := make([]byte, scales.Size), make([]float32, scales.Elements())
	if n, err := scales.ReadAt(raw, 0); n < len(raw) {
		return nil, err
	}
	tensor.Widen(values, raw, scales.DType)
	m, err := scheme.Matrix(t.Rows(), t.Cols(), values, scales.DType, scales.Shape)
	var f *fault.Error
	if errors.As(err, &f) {
		f.Path = pathOf(scales)
		return nil, f.At("tensor %q", scales.Name)
	}
	return &fp8Reader{t, m}, err
}

// Held describes the matrix as the file holds it.
func (r *fp8Reader) Held() tensor.Info { return r.held.Info }

// Holes implements tensor.Stored.Holes, of the matrix as the file holds it.
func (r *fp8Reader) Holes() ([]tensor.Hole, error) { return r.held.Holes() }

// Roundings sets the bounds of elements from number first on; see quant.Roundings.
func (r *fp8Reader) Roundings(dst []quant.Rounding, values []float32, first int64) {
	r.matrix.Roundings(dst, values, first)
}

// fp8Piece is how many elements are decoded at a time.
const fp8Piece = 1 << 16

// ReadAt implements io.ReaderAt over the float32 values.
func (r *fp8Reader) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fault.In(fault.IO, pathOf(r.held), "negative offset %d", off).At("tensor %q", r.held.Name)
	}
	size := 4 * r.held.Size
	if off >= size {
		return 0, io.EOF
	}
	short := int64(len(p)) > size-off
	p = p[:min(int64(len(p)), size-off)]
	src := make([]byte, min(fp8Piece, len(p)/4+2))
	var edge [4]byte
	for len(p) > 0 {
		first, skip := off/4, int(off%4)
		dst, count := p, min(len(p)/4, len(src))
		if skip != 0 || count == 0 { // part of one element
			dst, count = edge[:], 1
		}
		if m, err := r.held.ReadAt(src[:count], first); m < count {
			return n, err
		}
		r.matrix.Decode(dst, src[:count], first)
		done := 4 * count
		if skip != 0 || len(p) < 4 {
			done = copy(p, edge[skip:])
		}
		p, off, n = p[done:], off+int64(done), n+done
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

var _ io.ReaderAt = (*fp8Reader)(nil)
