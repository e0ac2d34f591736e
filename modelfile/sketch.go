package modelfile

import (
	"context"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

// Sketch is what is kept of a model to tell it from others when its file is gone.
type Sketch struct {
	Rows   [][]float32 // of the embedding, see EmbeddingRows with SketchRows and all of its ids
	Values []float32   // up to 64 of each tensor but embedding and head, in the order of the slots
}

// SketchRows is how many rows of the embedding a sketch has.
const SketchRows = 16

// sketchSide is from how many rows, and columns of each, the values of a tensor come.
const sketchSide = 8

// The tensors of a file that hold a sketch.
const (
	sketchRowsName   = "apr.sketch.embedding"
	sketchValuesName = "apr.sketch.values"
)

// sketched are the slots that a sketch has values of. Embedding and head may have other rows.
func sketched(c arch.Config) (all []arch.Slot) {
	for _, s := range arch.Slots(c) {
		if s.Role != arch.Embedding && s.Role != arch.Head {
			all = append(all, s)
		}
	}
	return all
}

// NewSketch reads the sketch of a model.
func NewSketch(f *Files) (s Sketch, err error) {
	if s.Rows, err = EmbeddingRows(f, SketchRows, f.Config.Vocab); err != nil {
		return s, err
	}
	for _, slot := range sketched(f.Config) {
		values, err := sketchOf(f, slot)
		if err != nil {
			return s, err
		}
		s.Values = append(s.Values, values...)
	}
	return s, nil
}

// sketchOf returns the values of a slot.
func sketchOf(f *Files, slot arch.Slot) (values []float32, err error) {
	r, err := f.stretches(slot.Name)
	if err != nil {
		return nil, err
	}
	rows, cols := r.t.Rows(), r.t.Cols()
	m, n := min(rows, sketchSide), min(cols, sketchSide)
	if rows == 1 {
		n = min(cols, sketchSide*sketchSide)
	}
	for i := range m {
		row, err := r.read(i*rows/m, i*rows/m+1)
		if err != nil {
			return nil, err
		}
		for j := range n {
			values = append(values, row.values[j*cols/n])
		}
	}
	return values, nil
}

// Sources are the tensors that hold a sketch.
func (s Sketch) Sources() (out []tensor.Source) {
	add := func(name string, shape []int, values []float32) {
		raw := make([]byte, 4*len(values))
		tensor.Narrow(raw, values, tensor.F32)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: shape}, raw))
	}
	var rows []float32
	for _, r := range s.Rows {
		rows = append(rows, r...)
	}
	add(sketchRowsName, []int{len(s.Rows), len(s.Rows[0])}, rows)
	add(sketchValuesName, []int{len(s.Values)}, s.Values)
	return out
}

// ReadSketch returns the sketch that a file holds; false: it has none, as files before there were any.
func ReadSketch(f *Files) (s Sketch, ok bool, err error) {
	rows, ok := f.Stored.Tensor(sketchRowsName)
	values, too := f.Stored.Tensor(sketchValuesName)
	if !ok || !too {
		return s, false, nil
	}
	if len(rows.Shape) != 2 || rows.Shape[1] != f.Config.Hidden || len(values.Shape) != 1 {
		return s, false, fault.In(fault.Load, f.Path, "has shapes %v and %v, which no sketch has", rows.Shape, values.Shape).
			At("tensor %q", sketchRowsName).WithID("E-MODEL-002")
	}
	all, err := ReadFloat32(f.Path, rows)
	if err != nil {
		return s, false, err
	}
	for i := range rows.Shape[0] {
		s.Rows = append(s.Rows, all[i*f.Config.Hidden:(i+1)*f.Config.Hidden])
	}
	s.Values, err = ReadFloat32(f.Path, values)
	return s, err == nil, err
}

// sketchClose is the largest relative difference of the matrices of close models by so few values each: those of other
// numbers measure 1 and more, with an error of about 0.1.
const sketchClose = 0.7

// Kinship compares the model of description c that s was made of with b, as Identify does with a file: the same is what
// has all values of the sketch; what rounding explains cannot be known, but how close it is.
func (s Sketch) Kinship(ctx context.Context, c arch.Config, b *Files) (Kinship, error) {
	ofA, ofB := commonBiases(c, b.Config)
	if field := differentShape(ofA, ofB); field != "" {
		return Kinship{Relation: Different, Field: field}, nil
	}
	k, closest, rest := Kinship{Relation: Same}, &Closeness{}, s.Values
	for _, slot := range sketched(c) {
		if err := ctx.Err(); err != nil {
			return k, err
		}
		values, err := sketchOf(b, slot)
		if err != nil {
			return k, err
		}
		if len(values) > len(rest) {
			return k, fault.New(fault.Load, "the sketch has %d values, fewer than its model's tensors",
				len(s.Values)).WithID("E-MODEL-002")
		}
		t := &tally{n: len(values)}
		for i, x := range values {
			y := float64(rest[i])
			t.dd, t.aa, t.bb = t.dd+(y-float64(x))*(y-float64(x)), t.aa+y*y, t.bb+float64(x)*float64(x)
		}
		rest = rest[len(values):]
		k.Values += int64(len(values))
		d := t.difference()
		if d >= k.Difference {
			k.Difference, k.Tensor = d, slot.Name
		}
		if len(slot.Shape) > 1 && closest != nil {
			switch {
			case !(d <= sketchClose):
				closest = nil
			case d >= closest.Difference:
				closest.Difference, closest.Tensor = d, slot.Name
			}
		}
	}
	cosine, _, err := s.Embedding(c, b)
	if err != nil {
		return k, err
	}
	if !(k.Difference <= sameLimit && (cosine == 0 || cosine >= 1-sameLimit)) {
		k.Relation, k.Close = Different, closest
	}
	if field := differentArithmetic(ofA, ofB); field != "" {
		k.Relation, k.Field, k.Close = Different, field, closest
	}
	return k, nil
}

// Embedding is EmbeddingLikeness of the model of description c that s was made of, by the rows of ids that b has,
// too; 0 and 0 where those are fewer than half of the sketch's: the angles between a few rows are alike by chance.
func (s Sketch) Embedding(c arch.Config, b *Files) (cosine, angles float64, err error) {
	var ids []int
	for i := range s.Rows { // in ascending order
		if id := i * c.Vocab / len(s.Rows); id < b.Config.Vocab {
			ids = append(ids, id)
		}
	}
	if 2*len(ids) < len(s.Rows) {
		return 0, 0, nil
	}
	rows, err := embeddingRowsOf(b, ids)
	if err != nil {
		return 0, 0, err
	}
	return MeanCosine(s.Rows[:len(ids)], rows), SameAngles(s.Rows[:len(ids)], rows), nil
}
