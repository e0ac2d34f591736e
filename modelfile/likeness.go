package modelfile

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// closeLimit is the largest relative difference of the matrices of close models. Codes of 4 bits cost 0.08 to 0.15, fine-tuning
// 0.0004 to 0.05; independent numbers of equal norm differ by √2.
const closeLimit = 0.5

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
			return nil
		}
	}
	k.Close = c
	if 2*len(l.Others) <= l.Tensors {
		k.Alike = l
	}
	return nil
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
