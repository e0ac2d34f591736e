package distill

import (
	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
	"apr/tensor"
)

// chunkLogits is how many rows of the teacher's logits exist at a time.
const chunkLogits = 256

// spans is what a step of a teacher.Chunks needs: the likelihoods that both models give to spans of text decide what
// the gradient of −ln q(y) is multiplied by at each target,
//
//	L       = 1/N·(Σ_i (1−α)·CE_i + α·T²·Σ_c D(u_c, v_c))
//	∂L/∂z_i = 1/N·((1−α) + α·T²·w_c)·(q − e_y),  w_c = −∂D/∂v_c
//
// for target i in span c; outside of spans w is 0. v_c must be known before the first gradient of its span, so the
// student's body and head run once more before the step's own pass, and the host waits for them.
type spans struct {
	reader   *teacher.LogProbs
	weights  device.Tensor // F32 [n, 1], by kept position
	identity device.Tensor // I32 [C, 1]: 0, 1, 2, …
	starts   device.Tensor // I32 [2, 1]
	dev      device.Device
	sum      float64 // Σ D of the step
	failed   error   // the likelihoods of the step are not known
	host     []float32
	targets  []int32
}

// newSpans reserves memory for steps of n positions, of which c are in a chunk.
func newSpans(dev device.Device, s device.Stream, n, c int) *spans {
	column := func(name string, d tensor.DType, n int) device.Tensor {
		return dev.Alloc("spans."+name, device.Batch, d, n, 1)
	}
	x := &spans{dev: dev, reader: teacher.NewLogProbs(dev, n), weights: column("weights", tensor.F32, n),
		identity: column("identity", tensor.I32, c), starts: column("starts", tensor.I32, 2)}
	numbers := make([]int32, c)
	for i := range numbers {
		numbers[i] = int32(i)
	}
	s.UploadInts(x.identity, numbers)
	return x
}

// free gives the memory back.
func (x *spans) free() {
	x.reader.Free()
	x.dev.Free(x.weights, x.identity, x.starts)
}

// measure finds the weights of the targets of a batch that is loaded, and the sum of its spans' divergences.
func (t *Trainer) measure(c *teacher.Chunks, b corpus.Batch) {
	theirs, mine, err := t.likelihoods(c, b)
	x := t.spans
	if x.failed = err; err != nil {
		return
	}
	x.weigh(c, theirs, mine, t.Loss.Spec)
	t.stream.Upload(x.weights.RowRange(0, len(x.host)), x.host)
}

// likelihoods returns ln p of the teacher's tokens and ln q of the targets of a batch that is loaded; none on a device
// that computes nothing.
func (t *Trainer) likelihoods(c *teacher.Chunks, b corpus.Batch) (theirs, mine []float32, err error) {
	s := t.stream
	if t.spans == nil {
		t.spans = newSpans(t.Student.Device(), s, b.Rows*b.SeqLen, t.Loss.ChunkRows)
	}
	x := t.spans
	x.targets = x.targets[:0]
	for i, m := range b.Mask {
		if m != 0 {
			x.targets = append(x.targets, b.Targets[i])
		}
	}
	s.Phase(device.PhaseTeacher)
	if theirs, err = c.Likelihoods(s, b.Rows); err != nil {
		return nil, nil, err
	}
	s.Phase(device.PhaseForward)
	for _, m := range t.batch.Micro {
		if m.Hi > m.Lo {
			t.readTargets(m)
		}
	}
	if !c.Dry {
		mine, err = x.reader.Host(s, len(x.targets))
	}
	return theirs, mine, err
}

// readTargets reads ln q of the targets of a micro-batch, as the step's own pass computes it.
func (t *Trainer) readTargets(m model.MicroBatch) {
	s, v := t.stream, t.Loss.Vocab
	saved := t.Student.Forward(s, m.Tokens, t.Recompute)
	x := saved.Hidden
	if !m.Keep.IsZero() {
		x = s.Temp("hidden.kept", device.Activations, x.DType, m.Hi-m.Lo, x.Cols)
		s.Gather(x, saved.Hidden, m.Keep)
	}
	c := min(t.Loss.ChunkRows, saved.Hidden.Rows)
	z := s.Temp("logits.student", device.Logits, tensor.F32, c, rowLength(v)).ColRange(0, v)
	for lo := m.Lo; lo < m.Hi; lo += c {
		hi := min(lo+c, m.Hi)
		part := z.RowRange(0, hi-lo)
		t.Student.TrainingLogits(s, part, x.RowRange(lo-m.Lo, hi-m.Lo), t.Loss.before+lo)
		t.spans.reader.Read(s, part, t.spans.targets[lo:hi], lo)
	}
	s.Release(z)
	if !m.Keep.IsZero() {
		s.Release(x)
	}
	saved.ReleaseTo(s)
}

// weigh computes, from ln p of the teacher's tokens and ln q of the targets, the weight of each target and the sum of
// divergences, in float64.
func (x *spans) weigh(c *teacher.Chunks, theirs, mine []float32, spec device.LossSpec) {
	ce, d := spec.Weights()
	x.host, x.sum = x.host[:0], 0
	for range x.targets {
		x.host = append(x.host, float32(ce))
	}
	if c.Dry {
		return
	}
	for _, at := range c.Spans {
		u, v := total(theirs, at.TeacherFrom, at.TeacherTo), total(mine, at.From, at.To)
		div, w := teacher.SpanLoss(u, v, spec.Temperature)
		x.sum += div
		for i := at.From; i < at.To; i++ {
			x.host[i] = float32(ce + d*w)
		}
	}
}

// total is the sum of a range in float64.
func total(all []float32, lo, hi int32) (sum float64) {
	for _, v := range all[lo:hi] {
		sum += float64(v)
	}
	return sum
}

// scale multiplies the gradients of targets from the at-th on by their weights.
func (x *spans) scale(s device.Stream, dz device.Tensor, at int) {
	n := dz.Rows
	s.UploadInts(x.starts, []int32{0, int32(n)})
	id := x.identity.RowRange(0, n)
	each := device.Routing{Experts: 1, Active: 1, Chosen: id, Slots: id, Rows: id, Starts: x.starts}
	s.Combine(dz, dz, x.weights.RowRange(at, at+n), each, false)
}

// checkChunk refuses what --align chunk does not go with.
func (in *inputs) checkChunk(c Config) error {
	if c.Loss.Divergence != device.ForwardKL && (c.Loss.Divergence != device.JSD || c.Loss.Beta != 0) {
		return fault.New(fault.Unavailable, "not built: --align chunk with another divergence than forward-kl").
			WithHint("--divergence forward-kl").WithID("E-ALIGN-017")
	}
	if c.Loss.Alpha == 1 {
		return fault.New(fault.Usage, "--align chunk with --alpha 1: targets that are in no span would learn nothing").
			WithHint("an --alpha below 1 trains them by cross-entropy").WithID("E-ALIGN-012")
	}
	if in.studentConfig.FinalCap != 0 {
		return fault.New(fault.Unavailable, "not built: --align chunk for a student whose logits are capped (%g)",
			in.studentConfig.FinalCap).WithHint("--align project").WithID("E-ALIGN-017")
	}
	return nil
}
