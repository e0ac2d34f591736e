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

// lookAgain judges a sample of each tensor of models that are different, and keeps the result if at least half are alike. It
// stops when that can no longer be: models that have nothing to do with each other cost little.
func (k *Kinship) lookAgain(ctx context.Context, a, b *Files, pairs []tensorPair) error {
	l := &Likeness{Tensors: len(pairs)}
	for _, p := range pairs {
		if err := ctx.Err(); err != nil {
			return err
		}
		alike := p.name != k.Tensor
		if alike {
			var err error
			if alike, err = alikeBySample(a, b, p); err != nil {
				return err
			}
		}
		if alike {
			l.Alike++
		} else if l.Others = append(l.Others, p.name); 2*len(l.Others) > l.Tensors {
			return nil
		}
	}
	k.Alike = l
	return nil
}

// alikeBySample judges the first, middle and last rows of a pair of tensors, each about as many values as show how rounding
// errors are spread.
func alikeBySample(a, b *Files, p tensorPair) (bool, error) {
	x, y, err := readers(a, b, p)
	if err != nil {
		return false, err
	}
	rows := x.t.Rows()
	n := min(rows, max(1, 4*fewErrors/max(1, x.t.Cols())))
	for _, lo := range slices.Compact([]int{0, (rows - n) / 2, rows - n}) {
		s, err := x.read(lo, lo+n)
		if err != nil {
			return false, err
		}
		t, err := y.read(lo, lo+n)
		if err != nil {
			return false, err
		}
		if !compare(s, t).same() && !roundedOne(s, t) {
			return false, nil
		}
	}
	return true, nil
}
