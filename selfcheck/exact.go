package selfcheck

import (
	"maps"
	"math"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/distill"
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

// Teaching gives a teacher's logits over the ids that both models share, for one row of a batch, whose ids and starts of documents
// these are.
type Teaching func(row corpus.Batch, ids, starts []int) ref.Mat

// TaughtBy is a teacher of one model over vocab ids.
func TaughtBy(n *ref.Net, vocab int) Teaching {
	return func(_ corpus.Batch, ids, starts []int) ref.Mat {
		return n.ForwardDocuments(ids, 1, starts).Logits.ColRange(0, vocab)
	}
}

// Mixed is teacher.Ensemble in float64: the logits of Σ wₖ·softmax(tₖ/T), or, with temperature 0, Σ wₖ·tₖ.
func Mixed(all []Teaching, weights []float64, temperature float64) Teaching {
	return func(row corpus.Batch, ids, starts []int) (sum ref.Mat) {
		for i, t := range all {
			logits := t(row, ids, starts)
			switch {
			case temperature > 0:
				sum = ref.Mix(sum, logits, weights[i], temperature)
			case i == 0:
				sum = ref.Scale(logits, weights[0])
			default:
				sum.Add(ref.Scale(logits, weights[i]))
			}
		}
		return sum
	}
}

// ByRoute is teacher.Routed in float64.
func ByRoute(all []Teaching) Teaching {
	return func(row corpus.Batch, ids, starts []int) ref.Mat { return all[row.Routes[0]](row, ids, starts) }
}

// Guided is distill.Hidden and distill.Maps in float64: what a step compares layer by layer.
type Guided struct {
	Weight  float64
	Pairs   []distill.Compared
	Maps    []distill.Pair // whose attention maps are compared
	Each    float64        // weight of the divergence of one of Maps
	Teacher *ref.Net
}

// add adds the gradients of one row's pairs to grads and, over the student's blocks and attention, to those returned.
func (h *Guided) add(trace *ref.Pass, ids, starts, kept []int, invN float64, sums *device.Scalars, grads map[string]ref.Mat) (map[int]ref.Mat, map[int]ref.MapGrads) {
	if h == nil {
		return nil, nil
	}
	big, d := h.Teacher.ForwardDocuments(ids, 1, starts), map[int]ref.Mat{}
	attended, counts := map[int]ref.MapGrads{}, make([]bool, len(ids))
	for _, at := range kept {
		counts[at] = true
	}
	for _, p := range h.Maps {
		sum, dq, dk, dsinks := ref.AttentionDivergence(trace.Map(p.Student), big.Map(p.Teacher), counts, h.Each, invN)
		sums.Sums[device.AttentionTransfer] += sum
		if more, ok := attended[p.Student]; ok {
			dq.Add(more.Q)
			dk.Add(more.K)
			dsinks.Add(more.Sinks)
		}
		attended[p.Student] = ref.MapGrads{Q: dq, K: dk, Sinks: dsinks}
	}
	for _, c := range h.Pairs {
		x, t := ref.Embed(trace.Blocks[c.Student], kept), ref.Embed(big.Blocks[c.Teacher], kept)
		sum, dx, dp := ref.HiddenError(x, t, ref.Of(c.Rows, c.Cols, c.P), h.Weight, invN, distill.HiddenEps)
		sums.Sums[device.HiddenStates] += sum
		grads[c.Name] = dp
		if _, ok := d[c.Student]; !ok {
			d[c.Student] = ref.New(len(ids), dx.Cols)
		}
		ref.EmbedBackward(d[c.Student], kept, dx)
	}
	return d, attended
}

// ExactStep is one step's loss and gradient in float64, row by row: see ref.StepLoss. teacher may be nil when alpha is 0, and guided
// where nothing is compared layer by layer.
func ExactStep(student *ref.Net, teacher Teaching, guided *Guided, b corpus.Batch, vocab int, spec device.LossSpec) (loss float64, sums device.Scalars, grads map[string]ref.Mat) {
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
			t = ref.Embed(teacher(row, ids, starts), kept)
			untaught(t, z)
		}
		var dz ref.Mat
		parts[r].sums, dz = ref.Loss(z, t, targets, invN, spec)
		wide := ref.New(row.SeqLen, student.Arch.Vocab) // zero where no target is, and beyond the real ids
		for i, at := range kept {
			copy(wide.Row(at), dz.Row(i))
		}
		more := map[string]ref.Mat{}
		blocks, attended := guided.add(trace, ids, starts, kept, invN, &parts[r].sums, more)
		parts[r].grads = trace.BackwardFrom(wide, blocks, attended)
		maps.Copy(parts[r].grads, more)
	})
	for _, p := range parts {
		if p.grads == nil {
			continue
		}
		sums.CE, sums.D, sums.Positions = sums.CE+p.sums.CE, sums.D+p.sums.D, sums.Positions+p.sums.Positions
		for i, v := range p.sums.Sums {
			sums.Sums[i] += v
		}
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
	if guided != nil {
		loss += invN * (guided.Weight*sums.Sums[device.HiddenStates] + guided.Each*sums.Sums[device.AttentionTransfer])
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
