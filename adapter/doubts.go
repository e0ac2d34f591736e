package adapter

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"

	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// judge refuses an adapter that training cannot have made, and warns of a doubtful one. An A whose values are all equal
// was filled, not trained: the gradient of A differs from column to column.
func (a *Adapter) judge(path string, f *modelfile.Files) error {
	seen, silent := map[[sha256.Size]byte]string{}, 0
	for _, m := range a.Modules {
		if i := slices.IndexFunc(m.A, func(x float32) bool { return x != m.A[0] }); i < 0 && len(m.A) > 1 {
			return fault.In(fault.Invalid, path, "all %d values of A are %v, which those of no trained adapter are", len(m.A),
				m.A[0]).
				At("matrix %q", m.Slot.Name).WithHint("fetch the adapter again").WithID("E-ADAPTER-023")
		}
		if m.Scale == 0 || m.silent() {
			silent++
			continue
		}
		key := hashOf(m)
		if twin, ok := seen[key]; ok {
			a.warn(path, "A and B of %s are those of %s: was one copied over the other?", m.Slot.Name, twin)
		}
		seen[key] = m.Slot.Name
		copied, err := m.copies(f)
		if err != nil {
			return err
		}
		if copied != "" {
			a.warn(path, "%s of %s are the base's own matrix: the adapter copies what it is added to", copied, m.Slot.Name)
		}
	}
	switch {
	case silent == len(a.Modules):
		a.warn(path, "the adapter adds nothing: B is zero in all %d matrices, so that the merged model is the base", silent)
	case silent > 0:
		a.warn(path, "the adapter adds nothing to %d of %d matrices, whose B is zero", silent, len(a.Modules))
	}
	return nil
}

// maxWarnings is how many warnings of an adapter are listed.
const maxWarnings = 8

func (a *Adapter) warn(path, format string, args ...any) {
	if len(a.Warnings) < maxWarnings {
		a.Warnings = append(a.Warnings, path+": "+fmt.Sprintf(format, args...))
	}
}

// hashOf identifies the values of A and B.
func hashOf(m Module) (key [sha256.Size]byte) {
	h := sha256.New()
	for _, v := range [][]float32{m.A, m.B} {
		raw := make([]byte, 4*len(v))
		tensor.Narrow(raw, v, tensor.F32)
		h.Write(raw)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// copies says whether rows of A are the first rows of the base's matrix, or columns of B its first columns, times any
// number.
func (m Module) copies(f *modelfile.Files) (what string, err error) {
	name := m.Slot.Name
	out, in := m.Slot.Shape[0], m.Slot.Shape[1]
	n := min(m.Rank, out)
	w, err := firstRows(f, name, n, in)
	if w == nil || err != nil {
		return "", err
	}
	if alike(w, m.A[:n*in]) {
		return "the rows of A", nil
	}
	b, wide := make([]float32, 0, n*m.Rank), make([]float32, 0, n*m.Rank)
	for r := range n { // of the first rows, as far as they were read
		k := min(m.Rank, in)
		b, wide = append(b, m.B[r*m.Rank:r*m.Rank+k]...), append(wide, w[r*in:r*in+k]...)
	}
	if len(b) >= fewCompared && alike(wide, b) {
		return "the columns of B", nil
	}
	return "", nil
}

// fewCompared are too few values to say that they are others times a number.
const fewCompared = 16

// sameDirection is the cosine from which two matrices are one times a number; those of trained adapters and their base
// measure less than a tenth.
const sameDirection = 0.98

// alike reports whether a and b are one times a number.
func alike(a, b []float32) bool {
	var dot, aa, bb float64
	for i, x := range a {
		y := float64(b[i])
		dot, aa, bb = dot+float64(x)*y, aa+float64(x)*float64(x), bb+y*y
	}
	norm := math.Sqrt(aa) * math.Sqrt(bb)
	return norm > 0 && math.Abs(dot) >= sameDirection*norm
}

// bytesAt is an io.ReaderAt of bytes.
type bytesAt []byte

// ReadAt implements io.ReaderAt.
func (b bytesAt) ReadAt(p []byte, off int64) (int, error) { return copy(p, b[off:]), nil }
