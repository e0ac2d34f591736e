package modelfile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/arch"
)

// Likeness says how many tensors of two different models of equal shapes are alike: equal, or rounded to other types. It is
// judged by a sample of each; the tensor that made the models different is not alike.
type Likeness struct {
	Tensors int
	Alike   int
	Others  []string // that are not alike
}

// String names the tensors that are not alike, up to a few.
func (l *Likeness) String() string {
	const most = 4
	text := fmt.Sprintf("%d of %d tensors are those of the other model", l.Alike, l.Tensors)
	if len(l.Others) == 0 {
		return text
	}
	text += "; different: " + strings.Join(l.Others[:min(most, len(l.Others))], ", ")
	if more := len(l.Others) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Closeness says how far two different models of equal shapes are from each other, whichever of them was made from the
// other. It is judged by a sample of each matrix.
type Closeness struct {
	Difference float64 // the largest relative difference ‖a−b‖/max(‖a‖,‖b‖) of a matrix
	Tensor     string  // that matrix
}

// String says that the models are close, and how close.
func (c *Closeness) String() string {
	return fmt.Sprintf("close: by a sample, no matrix differs from the other model's by more than %.2g (relative, %s)", c.Difference, c.Tensor)
}

// closeLimit is the largest relative difference of the matrices of close models. Codes of 4 bits cost 0.08 to 0.15, of
// 3 and 2 bits up to 0.4 and 0.8, noise twice as large as the values 0.89, fine-tuning 0.0004 to 0.05; independent
// numbers differ by 1 and more, those of equal norm by √2, with an error of a hundredth in a sample.
const closeLimit = 0.9

// lookAgain judges a sample of each tensor of models that are different. It keeps how many tensors are alike, if at least half
// are, and how close matrices are, if all are close. It stops when neither can be any longer: models that have nothing to do
// with each other cost little.
func (k *Kinship) lookAgain(ctx context.Context, a, b *Files, pairs []tensorPair) error {
	l, c := &Likeness{Tensors: len(pairs)}, &Closeness{}
	for _, p := range pairs {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := takeSample(a, b, p)
		if err != nil {
			return err
		}
		if s.alike && p.name != k.Tensor {
			l.Alike++
		} else {
			l.Others = append(l.Others, p.name)
		}
		switch {
		case c == nil || len(p.shape) < 2:
		case !(s.difference <= closeLimit):
			c = nil
		case s.difference >= c.Difference:
			c.Difference, c.Tensor = s.difference, p.name
		}
		if c == nil && 2*len(l.Others) > l.Tensors {
			k.Moved, err = movedLayers(ctx, a, b)
			return err
		}
	}
	k.Close = c
	if 2*len(l.Others) <= l.Tensors {
		k.Alike = l
	}
	return nil
}

// movedLayers returns how many layers of b are those of a in another place: their first matrix is close to that of
// another layer and to none at its own. It is 0 unless half of the layers are.
func movedLayers(ctx context.Context, a, b *Files) (int, error) {
	x, err := firstMatrices(ctx, a)
	if err != nil {
		return 0, err
	}
	y, err := firstMatrices(ctx, b)
	if err != nil || len(x) != len(y) {
		return 0, err
	}
	moved := 0
	for i := range y {
		at := slices.IndexFunc(x, func(values []float32) bool { return nearTo(values, y[i]) })
		if at >= 0 && !nearTo(x[i], y[i]) {
			moved++
		}
	}
	if 2*moved < len(y) {
		return 0, nil
	}
	return moved, nil
}

// firstMatrices returns a sample of the first matrix of each layer.
func firstMatrices(ctx context.Context, f *Files) (all [][]float32, err error) {
	layer := -1
	for _, s := range arch.Slots(f.Config) {
		if s.Layer <= layer || s.Layer < 0 || len(s.Shape) < 2 || s.Role == arch.Norm {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		layer = s.Layer
		r, err := f.stretches(s.Name)
		if err != nil {
			return nil, err
		}
		sample, err := r.read(0, min(r.t.Rows(), max(1, 4*fewErrors/max(1, r.t.Cols()))))
		if err != nil {
			return nil, err
		}
		all = append(all, sample.values)
	}
	return all, nil
}

// nearTo reports whether two samples are of close matrices.
func nearTo(x, y []float32) bool {
	if len(x) != len(y) {
		return false
	}
	t := &tally{n: len(x)}
	for i, v := range x {
		d := float64(v) - float64(y[i])
		t.dd, t.aa, t.bb = t.dd+d*d, t.aa+float64(v)*float64(v), t.bb+float64(y[i])*float64(y[i])
	}
	return t.difference() <= closeLimit
}

// sample is what a few rows of a pair of tensors say.
type sample struct {
	alike      bool    // equal, or rounded
	difference float64 // relative
}

// takeSample judges the first, middle and last rows of a pair of tensors, each about as many values as show how rounding
// errors are spread.
func takeSample(a, b *Files, p tensorPair) (sample, error) {
	x, y, err := readers(a, b, p)
	if err != nil {
		return sample{}, err
	}
	rows := p.rows()
	n := min(rows, max(1, 4*fewErrors/max(1, x.t.Cols())))
	out, all := sample{alike: true}, &tally{}
	for _, lo := range slices.Compact([]int{0, (rows - n) / 2, rows - n}) {
		s, err := x.read(lo, lo+n)
		if err != nil {
			return sample{}, err
		}
		t, err := y.read(lo, lo+n)
		if err != nil {
			return sample{}, err
		}
		part := compare(s, t)
		all.dd, all.aa, all.bb = all.dd+part.dd, all.aa+part.aa, all.bb+part.bb
		out.alike = out.alike && (part.same() || roundedOne(s, t))
	}
	out.difference = all.difference()
	return out, nil
}
