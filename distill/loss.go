package distill

import (
	"slices"

	"apr/device"
	"apr/model"
	"apr/teacher"
	"apr/tensor"
)

// DefaultChunkRows returns the number of rows whose logits exist at one time unless another is asked for: 1024, and on
// a CPU 512, so that the chunks of both models stay nearer to the cores.
func DefaultChunkRows(info device.Info) int {
	if info.Kind == "cpu" {
		return 512
	}
	return 1024
}

// headed is a teacher whose Logits computes as many columns as a chunk has, at most HeadRows, whatever the vocabulary.
type headed interface{ HeadRows() int }

// rowLength is teacher.RowLength, productColumns teacher.ProductColumns.
func rowLength(v int) int { return teacher.RowLength(v) }

func productColumns(act tensor.DType, v int, heads ...int) int {
	return teacher.ProductColumns(act, v, heads...)
}

// columns is productColumns of a step.
func (l *Loss) columns(act tensor.DType, student *model.Model, t teacher.Teacher) int {
	heads := []int{student.Config.Vocab}
	if t != nil {
		h, ok := t.(headed)
		if !ok {
			return l.Vocab
		}
		heads = append(heads, h.HeadRows())
	}
	return productColumns(act, l.Vocab, heads...)
}

// Loss is the distillation objective over a chunk of rows at a time, so that no tensor of all rows × vocabulary
// exists: for C rows it holds the logits of both models, C·V float32 each, and, where activations are narrower, their
// gradient in that type, rounded once; in float32 it is written over the student's logits.
type Loss struct {
	Spec      device.LossSpec
	Vocab     int // V: ids that both models share; columns beyond have no logits and no gradient
	ChunkRows int // C; results do not depend on it but for the order of float32 sums

	before    int      // targets of the step before the first of the rows: dropout of the head depends on a target's place
	positions int      // of a micro-batch, counted or not: no more rows wait for a product; 0: those given
	own       *ownRows // of the step; nil: there are none
	spans     *spans   // weighs the gradients of the targets; nil: nothing does
}

// withoutLogits returns a teacher of draws on a device that computes its loss without logits of the teacher; else nil.
func withoutLogits(dev device.Device, t teacher.Teacher) *teacher.Drawn {
	if d, ok := t.(*teacher.Drawn); ok && !slices.Contains(dev.Info().Lacks, device.DrawsTeach) {
		return d
	}
	return nil
}

// gradientRows is how many rows' gradients wait for one pair of products where they have a buffer of their own: every
// product with dW reads and writes a float32 matrix of the vocabulary's size, so fewer and larger ones move less.
const gradientRows = 2048

// Backward computes, for kept hidden rows x [n, h] of the student and the n rows of the step from row `from` on,
//
//	z = cap(x·Wᵀ), t = teacher's logits, dz = ∂L/∂(x·Wᵀ), dx = dz·W, dW += dzᵀ·x
//
// chunk by chunk (the products with dz over some chunks at once), and adds the sums of CE and D to the stream's record.
// dx [n, h] is overwritten. targets [n,1] are the n targets. The teacher may be nil when Spec.Alpha is 0.
func (l *Loss) Backward(s device.Stream, student *model.Model, t teacher.Teacher, dx, x, targets device.Tensor, from int) {
	c, spec, columns := l.ChunkRows, l.Spec, l.columns(x.DType, student, t)
	drawn := withoutLogits(student.Device(), t)
	if drawn != nil {
		t = nil
	}
	spec.Cap = student.Config.FinalCap
	chunk := func(name string, d tensor.DType, rows int) device.Tensor {
		return s.Temp(name, device.Logits, d, rows, rowLength(l.Vocab)).ColRange(0, columns)
	}
	zs, group := chunk("logits.student", tensor.F32, c), c
	defer s.Release(zs)
	gs := zs
	if x.DType != tensor.F32 {
		group = min(max(gradientRows/c, 1)*c, max(l.positions, x.Rows))
		gs = chunk("logits.gradient", x.DType, group)
		defer s.Release(gs)
	}
	var ts device.Tensor
	if t != nil {
		ts = chunk("logits.teacher", tensor.F32, c)
		defer s.Release(ts)
	}
	for first := 0; first < x.Rows; first += group {
		last := min(first+group, x.Rows)
		for lo := first; lo < last; lo += c {
			hi := min(lo+c, last)
			z, dz := zs.RowRange(0, hi-lo), gs.RowRange(lo-first, hi-first)
			var tl device.Tensor
			_, partial := t.(teacher.Partial)
			if t != nil {
				tl = ts.RowRange(0, hi-lo)
			}
			if partial { // rows that it leaves are the student's own: no divergence, no gradient
				s.Phase(device.PhaseLoss)
				student.TrainingLogits(s, z, x.RowRange(lo, hi), l.before+from+lo)
				s.Copy(tl, z)
			}
			if t != nil {
				s.Phase(device.PhaseTeacher)
				t.Logits(s, from+lo, from+hi, tl)
			}
			s.Phase(device.PhaseLoss)
			if !partial {
				student.TrainingLogits(s, z, x.RowRange(lo, hi), l.before+from+lo)
			}
			if columns > l.Vocab {
				s.Zero(dz.ColRange(l.Vocab, columns))
				z, dz = z.ColRange(0, l.Vocab), dz.ColRange(0, l.Vocab)
				if t != nil {
					tl = tl.ColRange(0, l.Vocab)
				}
			}
			y, mid := targets.RowRange(lo, hi), hi-lo-l.own.in(from+lo, from+hi)
			if drawn != nil {
				drawn.Loss(s, from+lo, from+hi, dz, z, y, spec)
				continue
			}
			if mid == hi-lo {
				s.Loss(dz, z, tl, y, spec)
				if l.spans != nil {
					l.spans.scale(s, dz, from+lo)
				}
				continue
			}
			if mid > 0 {
				s.Loss(dz.RowRange(0, mid), z.RowRange(0, mid), tl.RowRange(0, mid), y.RowRange(0, mid), spec)
			}
			own := func(x device.Tensor) device.Tensor { return x.RowRange(mid, hi-lo) }
			l.own.loss(s, own(dz), own(z), own(tl), own(y), spec, from+lo+mid-l.own.first)
		}
		dz := gs.RowRange(0, last-first)
		student.HeadBackward(s, dx.RowRange(first, last), dz, x.RowRange(first, last), l.before+from+first)
	}
}
