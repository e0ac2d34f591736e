package selfcheck

import (
	"math"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/internal/ref"
	"apr/modelfile"
)

// Exact reads a model in float64.
func Exact(f *modelfile.Files) (*ref.Net, error) {
	n := &ref.Net{Arch: f.Config, Params: map[string]ref.Mat{}}
	for _, s := range arch.Slots(f.Config) {
		v, err := f.ReadFloat32(s.Name)
		if err != nil {
			return nil, err
		}
		n.Params[s.Name] = Mat(s, v)
	}
	return n, nil
}

// Mat returns the values of a slot as the reference has them: matrices of experts below each other, a vector as one row.
func Mat(s arch.Slot, v []float32) ref.Mat {
	rows := 1
	for _, n := range s.Shape[:len(s.Shape)-1] {
		rows *= n
	}
	return ref.Of(rows, len(v)/rows, v)
}

// ExactStep is one step's loss and gradient in float64, row by row: see ref.StepLoss. teacher may be nil when alpha is 0.
func ExactStep(student, teacher *ref.Net, b corpus.Batch, vocab int, spec device.LossSpec) (loss float64, sums device.Scalars, grads map[string]ref.Mat) {
	invN := 1 / float64(b.TargetCount())
	type part struct {
		sums  device.Scalars
		grads map[string]ref.Mat
	}
	parts := make([]part, b.Rows)
	each(b.Rows, func(r int) {
		row := b.Slice(r, r+1)
		if row.TargetCount() == 0 {
			return
		}
		ids := make([]int, row.SeqLen)
		for i, id := range row.Tokens {
			ids[i] = int(id)
		}
		var starts []int
		for _, at := range row.Starts {
			starts = append(starts, int(at))
		}
		trace := student.ForwardDocuments(ids, 1, starts)
		var kept, targets []int
		for i, on := range row.Mask {
			if on != 0 {
				kept, targets = append(kept, i), append(targets, int(row.Targets[i]))
			}
		}
		z := ref.Embed(trace.Logits.ColRange(0, vocab), kept)
		var t ref.Mat
		if teacher != nil {
			t = ref.Embed(teacher.ForwardDocuments(ids, 1, starts).Logits.ColRange(0, vocab), kept)
		}
		var dz ref.Mat
		parts[r].sums, dz = ref.Loss(z, t, targets, invN, spec)
		wide := ref.New(row.SeqLen, student.Arch.Vocab) // zero where no target is, and beyond the real ids
		for i, at := range kept {
			copy(wide.Row(at), dz.Row(i))
		}
		parts[r].grads = trace.Backward(wide)
	})
	for _, p := range parts {
		if p.grads == nil {
			continue
		}
		sums.CE, sums.D, sums.Positions = sums.CE+p.sums.CE, sums.D+p.sums.D, sums.Positions+p.sums.Positions
		if grads == nil {
			grads = p.grads
			continue
		}
		for name, g := range p.grads {
			grads[name].Add(g)
		}
	}
	loss = invN * (1 - spec.Alpha) * sums.CE
	if spec.Alpha != 0 {
		loss += invN * spec.Alpha * spec.Temperature * spec.Temperature * sums.D
	}
	return loss, sums, grads
}

// GradNorm is ‖g‖₂ over all tensors.
func GradNorm(grads map[string]ref.Mat) float64 {
	sum := 0.0
	for _, g := range grads {
		n := ref.Norm(g)
		sum += n * n
	}
	return math.Sqrt(sum)
}

// RelativeL2 is ‖got−want‖₂/‖want‖₂; of two that are both zero, 0. NaN where anything is not finite.
func RelativeL2(got []float32, want []float64) float64 {
	if len(got) != len(want) || len(got) == 0 {
		return math.NaN()
	}
	var d, n float64
	for i, g := range got {
		x := float64(g) - want[i]
		d, n = d+x*x, n+want[i]*want[i]
	}
	if d == 0 && n == 0 {
		return 0
	}
	if r := math.Sqrt(d / n); !math.IsInf(r, 0) {
		return r
	}
	return math.NaN()
}

// worse is the larger of two figures, NaN if one is.
func worse(a, b float64) float64 { return math.Max(a, b) }
