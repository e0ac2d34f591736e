package convert

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"slices"

	"apr/arch"
	"apr/format/gguf"
	"apr/internal/fault"
	"apr/tensor"
)

// Importance says how much errors of a matrix count, by slot: the mean square of each column's input, over the positions of some
// text; of experts, those of each expert behind each other. The squared error of an output is Σ over columns of error² times it,
// but for what columns have in common.
type Importance map[string][]float32

// ReadImatrix reads an importance matrix of llama.cpp for a model of description c: a GGUF file of llama-imatrix, with sums of squares and
// counts, or the older format of sums alone.
func ReadImatrix(path string, c arch.Config) (Importance, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.In(fault.NotFound, path, "cannot be read").Because(err)
	}
	var byName map[string][]float32
	if bytes.HasPrefix(raw, []byte("GGUF")) {
		byName, err = imatrixGGUF(path)
	} else {
		byName, err = imatrixOld(path, raw)
	}
	if err != nil {
		return nil, err
	}
	return placedImportance(path, byName, c)
}

// placedImportance finds the slots of GGUF's names. An entry for no matrix of the model, or of another width, is another model's.
func placedImportance(path string, byName map[string][]float32, c arch.Config) (Importance, error) {
	out, used := Importance{}, map[string]bool{}
	for _, s := range arch.Slots(c) {
		values, ok := byName[s.GGUF.Name]
		if !ok || len(s.Shape) < 2 || s.Bias {
			continue
		}
		used[s.GGUF.Name] = true
		cols, experts := s.Shape[len(s.Shape)-1], 1
		if len(s.Shape) > 2 {
			experts = s.Shape[0]
		}
		if len(values) != cols*experts {
			return nil, fault.In(fault.Invalid, path, "has %d values; the model needs %d", len(values), cols*experts).At("tensor %q", s.GGUF.Name).
				WithHint("the importance matrix is of another model").WithID("E-IMATRIX-001")
		}
		out[s.Name] = values
	}
	for name := range sorted(byName) {
		if !used[name] {
			return nil, fault.In(fault.Invalid, path, "is not a matrix of the model").At("tensor %q", name).
				WithHint("the importance matrix is of another model").WithID("E-IMATRIX-001")
		}
	}
	if len(out) == 0 {
		return nil, badImatrix(path, "has no entry")
	}
	return out, nil
}

func badImatrix(path, format string, args ...any) *fault.Error {
	return fault.In(fault.Format, path, "is no importance matrix: "+format, args...).WithHint("llama-imatrix writes them").WithID("E-IMATRIX-002")
}

// The suffixes of tensors of a GGUF file of importance.
const (
	sumsSuffix   = ".in_sum2"
	countsSuffix = ".counts"
)

// imatrixGGUF reads tensors NAME.in_sum2, [experts, columns], and NAME.counts, [experts, 1]. An expert without a count has no values.
func imatrixGGUF(path string) (map[string][]float32, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if kind, _, _ := f.Metadata().Str("general.type"); kind != "imatrix" {
		return nil, badImatrix(path, "general.type is %q", kind)
	}
	read := func(t tensor.Stored) ([]float32, error) {
		if t.DType != tensor.F32 {
			return nil, badImatrix(path, "%s is of type %v", t.Name, t.DType)
		}
		raw, values := make([]byte, t.Size), make([]float32, t.Elements())
		if n, err := t.ReadAt(raw, 0); n < len(raw) {
			return nil, fault.In(fault.IO, path, "cannot be read").At("tensor %q", t.Name).Because(err)
		}
		tensor.Widen(values, raw, tensor.F32)
		return values, nil
	}
	out := map[string][]float32{}
	for _, t := range f.Tensors() {
		name, ok := cutSuffix(t.Name, sumsSuffix)
		if !ok {
			continue
		}
		counts, ok := f.Tensor(name + countsSuffix)
		if !ok || counts.Elements() == 0 || t.Elements()%counts.Elements() != 0 {
			return nil, badImatrix(path, "%s has no counts", name)
		}
		sums, err := read(t)
		if err != nil {
			return nil, err
		}
		n, err := read(counts)
		if err != nil {
			return nil, err
		}
		if out[name], err = means(path, name, sums, n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func cutSuffix(name, suffix string) (string, bool) {
	if len(name) <= len(suffix) || name[len(name)-len(suffix):] != suffix {
		return name, false
	}
	return name[:len(name)-len(suffix)], true
}

// means divides sums by the counts of their experts.
func means(path, name string, sums, counts []float32) ([]float32, error) {
	each := len(sums) / len(counts)
	for i := range sums {
		n := counts[i/each]
		if n > 0 {
			sums[i] /= n
		} else {
			sums[i] = 0
		}
		if !(sums[i] >= 0 && sums[i] <= math.MaxFloat32) {
			return nil, badImatrix(path, "value %d of %s is %g", i, name, sums[i])
		}
	}
	return sums, nil
}

// maxImatrixName bounds the names of the older format.
const maxImatrixName = 4096

// imatrixOld reads the older format: i32 entries, then for each i32 length, name, i32 calls, i32 values, f32 values, which are means times
// calls. What follows them says of which text they are.
func imatrixOld(path string, raw []byte) (map[string][]float32, error) {
	next := func() (int, error) {
		if len(raw) < 4 {
			return 0, badImatrix(path, "it ends early")
		}
		n := int32(binary.LittleEndian.Uint32(raw))
		raw = raw[4:]
		return int(n), nil
	}
	entries, err := next()
	if err != nil || entries < 1 || entries > len(raw)/16+1 {
		return nil, badImatrix(path, "%d entries", entries)
	}
	out := map[string][]float32{}
	for range entries {
		length, err := next()
		if err != nil || length < 1 || length > min(maxImatrixName, len(raw)) {
			return nil, badImatrix(path, "a name of %d bytes", length)
		}
		name := string(raw[:length])
		raw = raw[length:]
		calls, err := next()
		if err != nil {
			return nil, err
		}
		n, err := next()
		if err != nil || calls < 1 || n < 1 || n > len(raw)/4 {
			return nil, badImatrix(path, "%d calls and %d values of %s", calls, n, name)
		}
		values := make([]float32, n)
		tensor.Widen(values, raw[:4*n], tensor.F32)
		raw = raw[4*n:]
		if out[name], err = means(path, name, values, []float32{float32(calls)}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// rows returns the weights of the errors of rows [lo,hi) of a slot of cols columns; nil: all errors count the same.
func (m Importance) rows(t tensor.Info, lo, hi int) []float32 {
	values := m[t.Name]
	cols := t.Cols()
	if len(values) == 0 || cols == 0 {
		return nil
	}
	each := t.Rows() / (len(values) / cols) // rows of an expert
	out := make([]float32, 0, (hi-lo)*cols)
	for r := lo; r < hi; r++ {
		e := r / each
		out = append(out, values[e*cols:(e+1)*cols]...)
	}
	return out
}

// missing lists the matrices that are made blocks of without importance. Gathered rows have none, unless the table is the head too.
func (m Importance) missing(plan []Choice) (names []string) {
	for _, c := range plan {
		if _, ok := m[c.Source.Name]; !ok && c.DType.IsQuantized() && c.Source.DType != c.DType {
			names = append(names, c.Source.Name)
		}
	}
	slices.Sort(names)
	return names
}
