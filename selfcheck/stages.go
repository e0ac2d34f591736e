package selfcheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"apr/corpus"
	"apr/device"
	"apr/distill"
	"apr/generate"
	"apr/internal/ref"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/teacher"
	"apr/tensor"
)

// exactLimit is how many parameters a model may have to be computed in float64 here.
const exactLimit = 20_000_000

// ids returns n ids below vocab, by seed.
func ids(n, vocab int, seed uint64) []int32 {
	rng := rand.New(rand.NewPCG(seed, 5))
	out := make([]int32, n)
	for i := range out {
		out[i] = rng.Int32N(int32(vocab))
	}
	return out
}

// logits returns the logits of every position of one sequence, over the first vocab ids.
func logits(dev device.Device, s device.Stream, m *model.Model, seq []int32, vocab int) ([]float32, error) {
	tokens := dev.Alloc("check.ids", device.Batch, tensor.I32, len(seq), 1)
	defer dev.Free(tokens)
	s.UploadInts(tokens, seq)
	x := s.Temp("check.hidden", device.Activations, dev.Info().Activations, len(seq), m.Config.Hidden)
	defer s.Release(x)
	m.Hidden(s, x, model.Tokens{IDs: tokens, Rows: 1, SeqLen: len(seq)})
	z := s.Temp("check.logits", device.Logits, tensor.F32, len(seq), vocab)
	defer s.Release(z)
	m.Logits(s, z, x)
	host := make([]float32, len(seq)*vocab)
	return host, s.Download(host, z)
}

// vocabulary returns how many ids a model computes logits of that mean anything. Without a tokenizer, which is another
// stage's failure, all do.
func vocabulary(f *modelfile.Files) int {
	tok, err := f.Tokenizer()
	if err != nil {
		return f.Config.Vocab
	}
	return tok.RealIDs()
}

// overLargest returns the largest |got−want| over the largest |want|; NaN if anything is not finite.
func overLargest(got []float32, want []float64) float64 {
	var diff, largest float64
	for i, g := range got {
		diff = worse(diff, math.Abs(float64(g)-want[i]))
		largest = worse(largest, math.Abs(want[i]))
	}
	if len(got) == 0 || len(got) != len(want) || math.IsInf(diff, 0) {
		return math.NaN()
	}
	return diff / largest
}

// logitError measures how far rows of v logits are from those wanted, and says how: in float32 by the largest difference
// over the largest logit, in narrower types by 1 − the smallest cosine of two rows.
func (c *check) logitError(got []float32, want []float64, v int) (worst float64, what string) {
	if c.Device.Info().Activations.BlockBytes() == 4 {
		return overLargest(got, want), "largest difference over the largest"
	}
	if len(got) == 0 || len(got) != len(want) {
		return math.NaN(), ""
	}
	for lo := 0; lo < len(got); lo += v {
		var gg, ww, gw float64
		for i := lo; i < lo+v; i++ {
			g, w := float64(got[i]), want[i]
			gg, ww, gw = gg+g*g, ww+w*w, gw+g*w
		}
		worst = worse(worst, 1-gw/math.Sqrt(gg*ww))
	}
	return worst, "1 − the smallest cosine of a row"
}

// forward compares the logits of 48 positions with float64.
func (c *check) forward(context.Context) (figure, error) {
	f, m, note := c.f, c.m, ""
	if c.m == nil {
		return figure{}, errNoModel
	}
	if n := f.Config.Parameters(); n > exactLimit {
		f, note = c.tinyT, fmt.Sprintf(", of the tiny model: float64 of %d parameters takes too long", n)
		var err error
		if m, err = model.LoadFrozen(c.Device, f, device.StudentWeights); err != nil {
			return figure{}, err
		}
	}
	exact, err := Exact(f)
	if err != nil {
		return figure{}, err
	}
	n, v := min(48, f.Config.MaxPositions), vocabulary(f)
	seq := ids(n, v, 1)
	got, err := logits(c.Device, c.s, m, seq, v)
	if err != nil {
		return figure{}, err
	}
	want := exact.Forward(widen(seq), 1).Logits.ColRange(0, v)
	worst, what := c.logitError(got, want.V, v)
	return figure{worst, c.tol.logits, fmt.Sprintf("%d logits against float64, %s%s", len(got), what, note)}, nil
}

func widen(seq []int32) []int {
	out := make([]int, len(seq))
	for i, id := range seq {
		out[i] = int(id)
	}
	return out
}

// tinyBatch has three rows, a third of whose targets do not count.
func tinyBatch(vocab int) corpus.Batch {
	const rows, seqLen = 3, 16
	b := corpus.Batch{Rows: rows, SeqLen: seqLen, Tokens: ids(rows*seqLen, vocab, 2), Targets: ids(rows*seqLen, vocab, 3), Mask: make([]uint8, rows*seqLen)}
	for i := range b.Mask {
		if i%3 != 1 {
			b.Mask[i] = 1
		}
	}
	return b
}

// tinyStep takes one step of the tiny pair on the device and in float64.
type tinyStep struct {
	rec         distill.Record
	loss        float64
	sums        device.Scalars
	grads       map[string]ref.Mat
	student     *model.Model
	exact, big  *ref.Net
	bigLogits   []ref.Mat // of each row
	batch       corpus.Batch
	vocab       int
	spec        device.LossSpec
	trainer     *distill.Trainer
	lr, maxNorm float64
}

func (c *check) takeStep(ctx context.Context) (*tinyStep, error) {
	if c.tinyT == nil || c.tinyS == nil {
		return nil, errNoModel
	}
	t := &tinyStep{spec: device.LossSpec{Alpha: 0.6, Temperature: 2}, lr: 1e-3, maxNorm: 0.5}
	_, vocab, err := teacher.Align(c.tinyT, c.tinyS, c.tinyS.Path, c.tinyS.Config.Vocab)
	if err != nil {
		return nil, err
	}
	t.vocab, t.batch = vocab, tinyBatch(vocab)
	big, err := model.LoadFrozen(c.Device, c.tinyT, device.TeacherWeights)
	if err != nil {
		return nil, err
	}
	t.student = model.NewTrainable(c.Device, tinyStudent)
	if err := t.student.LoadWeights(c.s, c.tinyS); err != nil {
		return nil, err
	}
	if t.big, err = Exact(c.tinyT); err != nil {
		return nil, err
	}
	if t.exact, err = Exact(c.tinyS); err != nil {
		return nil, err
	}
	t.trainer = distill.NewTrainer(t.student, c.s, t.batch.Rows, t.batch.SeqLen)
	t.trainer.Teacher, t.trainer.MicroRows = &teacher.Resident{Model: big}, 2
	t.trainer.Loss.Spec, t.trainer.Loss.Vocab, t.trainer.Loss.ChunkRows = t.spec, vocab, 16
	// A first step has full size whatever the gradient, unless it is small beside Eps: 1e-3 keeps the rounding of gradients
	// that are nearly zero from deciding the direction of a step.
	t.trainer.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Constant, Peak: t.lr, Steps: 1},
		AdamW:    device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-3, WeightDecay: 0.1}, MaxNorm: t.maxNorm,
	}
	if t.rec, err = t.trainer.Apply(ctx, t.batch); err != nil {
		return nil, err
	}
	t.loss, t.sums, t.grads = ExactStep(t.exact, TaughtBy(t.big, vocab), nil, t.batch, vocab, t.spec)
	return t, nil
}

// gradient compares every tensor's gradient with float64, and float64's own with central differences of its loss.
func (c *check) gradient(ctx context.Context) (figure, error) {
	t, err := c.takeStep(ctx)
	if err != nil {
		return figure{}, err
	}
	defer t.trainer.Free()
	worst, where := 0.0, ""
	for _, p := range t.student.Parts() {
		got := make([]float32, p.Elements())
		if err := c.s.Download(got, p.Of(p.Param.Grad)); err != nil {
			return figure{}, err
		}
		if d := RelativeL2(got, t.grads[p.Name].V); !(d <= worst) {
			worst, where = d, p.Name
		}
	}
	own, err := t.differences()
	if err != nil {
		return figure{}, err
	}
	return figure{worst, c.tol.gradient, fmt.Sprintf("relative L2 of %d tensors against float64, worst %s; float64 against central differences %.1g", len(t.student.Parts()), where, own)}, nil
}

// differences compares derivatives of float64 with (L(w+h) − L(w−h))/2h at the largest gradient of each tensor. They must
// agree to 1e-5.
func (t *tinyStep) differences() (worst float64, err error) {
	const h = 1e-5
	for r := range t.batch.Rows {
		t.bigLogits = append(t.bigLogits, t.big.Forward(widen(t.batch.Slice(r, r+1).Tokens), 1).Logits)
	}
	for name, g := range t.grads {
		at := 0
		for i, v := range g.V {
			if math.Abs(v) > math.Abs(g.V[at]) {
				at = i
			}
		}
		w := t.exact.Params[name].V
		was := w[at]
		var l [2]float64
		for i, d := range []float64{h, -h} {
			w[at] = was + d
			l[i] = t.lossOnly()
		}
		w[at] = was
		if g.V[at] == 0 {
			return math.NaN(), fmt.Errorf("the gradient of %s is zero everywhere", name)
		}
		worst = worse(worst, math.Abs((l[0]-l[1])/(2*h)-g.V[at])/math.Abs(g.V[at]))
	}
	if !(worst <= 1e-5) {
		return worst, fmt.Errorf("float64 itself disagrees with central differences by %g", worst)
	}
	return worst, nil
}

// lossOnly is the loss of the step in float64.
func (t *tinyStep) lossOnly() float64 {
	var sums device.Scalars
	for r := range t.batch.Rows {
		row := t.batch.Slice(r, r+1)
		z := t.exact.Forward(widen(row.Tokens), 1).Logits
		tz := t.bigLogits[r]
		for i, on := range row.Mask {
			if on != 0 {
				p := ref.LossAt(z.Row(i)[:t.vocab], tz.Row(i)[:t.vocab], int(row.Targets[i]), t.spec)
				sums.CE, sums.D, sums.Positions = sums.CE+p.CE, sums.D+p.D, sums.Positions+1
			}
		}
	}
	return ((1-t.spec.Alpha)*sums.CE + t.spec.Alpha*t.spec.Temperature*t.spec.Temperature*sums.D) / float64(sums.Positions)
}

// step compares loss, terms and gradient norm of the step, and every weight after it, with float64.
func (c *check) step(ctx context.Context) (figure, error) {
	t, err := c.takeStep(ctx)
	if err != nil {
		return figure{}, err
	}
	defer t.trainer.Free()
	n, norm := float64(t.sums.Positions), GradNorm(t.grads)
	worst := 0.0
	for _, p := range [][2]float64{{t.rec.Loss, t.loss}, {t.rec.MeanCE, t.sums.CE / n}, {t.rec.MeanD, t.sums.D / n}, {float64(t.rec.Targets), n}} {
		worst = worse(worst, math.Abs(p[0]-p[1])/math.Abs(p[1])/c.tol.loss)
	}
	worst = worse(worst, math.Abs(t.rec.GradNorm-norm)/norm/c.tol.gradient)
	sc := device.Scalars{LR: t.lr, Scale: ref.ClipScale(norm, t.maxNorm), BiasCorr1: 0.1, BiasCorr2: 0.05}
	for _, p := range t.student.Parts() {
		w := t.exact.Params[p.Name]
		before := slices.Clone(w.V)
		ref.AdamW(w, t.grads[p.Name], ref.New(w.Rows, w.Cols), ref.New(w.Rows, w.Cols), len(p.Shape) == 2, t.trainer.Optimizer.AdamW, sc)
		got := make([]float32, p.Elements())
		if err := c.s.Download(got, p.Of(p.Param.Value)); err != nil {
			return figure{}, err
		}
		for i := range got { // what the step added, which is small beside the weight
			got[i], w.V[i] = float32(float64(got[i])-before[i]), w.V[i]-before[i]
		}
		worst = worse(worst, RelativeL2(got, w.V)/c.tol.update)
	}
	return figure{worst, 1, fmt.Sprintf("loss %.6f (float64 %.6f), gradient norm %.6f (%.6f), what AdamW adds to each of %d tensors; in parts of what is allowed", t.rec.Loss, t.loss, t.rec.GradNorm, norm, len(t.student.Parts()))}, nil
}

// loss asks for losses and gradients that are known: uniform logits, equal ones, and by hand.
func (c *check) loss(ctx context.Context) (figure, error) {
	const v = 1000
	uniform, other := make([]float32, v), make([]float32, v)
	for i := range other {
		other[i] = float32(math.Sin(float64(i)) * 3)
	}
	h := 0.0
	for _, l := range ref.LogSoftmax(func() (x []float64) {
		for _, o := range other {
			x = append(x, float64(o))
		}
		return x
	}(), 1) {
		h -= math.Exp(l) * l
	}
	lnV := math.Log(v)
	worst := 0.0
	for _, k := range []struct {
		z, t  []float32
		alpha float64
		ce, d float64 // −1: not asked
	}{
		{uniform, uniform, 0.5, lnV, 0}, {other, other, 1, -1, 0}, {uniform, other, 1, lnV, lnV - h}, {uniform, nil, 0, lnV, -1},
	} {
		sc, grad, err := c.lossOf(ctx, k.z, k.t, 7, device.LossSpec{Alpha: k.alpha, Temperature: 1})
		if err != nil {
			return figure{}, err
		}
		for _, p := range [][2]float64{{sc.CE, k.ce}, {sc.D, k.d}} {
			if p[1] >= 0 {
				worst = worse(worst, math.Abs(p[0]-p[1])/lnV)
			}
		}
		sum := 0.0
		for _, g := range grad {
			sum += float64(g)
		}
		worst = worse(worst, math.Abs(sum)) // Σ ∂L/∂z = 0
	}
	_, grad, err := c.lossOf(ctx, make([]float32, 4), nil, 2, device.LossSpec{Temperature: 1})
	if err != nil {
		return figure{}, err
	}
	for i, want := range []float64{.25, .25, -.75, .25} {
		worst = worse(worst, math.Abs(float64(grad[i])-want))
	}
	return figure{worst, 1e-5, "ln V, KL(p‖p) = 0, KL(p‖uniform) = ln V − H(p), gradients ¼ and −¾, sums 0"}, nil
}

// lossOf runs the loss over one row.
func (c *check) lossOf(ctx context.Context, z, t []float32, target int32, spec device.LossSpec) (device.Scalars, []float32, error) {
	v, s := len(z), c.s
	up := func(x []float32) device.Tensor {
		y := s.Temp("check.loss", device.Logits, tensor.F32, 1, v)
		s.Upload(y, x)
		return y
	}
	zt := up(z)
	defer s.Release(zt)
	var tt device.Tensor
	if t != nil {
		tt = up(t)
		defer s.Release(tt)
	}
	y := s.Temp("check.target", device.Batch, tensor.I32, 1, 1)
	defer s.Release(y)
	s.UploadInts(y, []int32{target})
	s.SetScalars(device.Scalars{InvN: 1})
	s.Loss(zt, zt, tt, y, spec)
	sc, err := s.Wait(ctx)
	if err != nil {
		return sc, nil, err
	}
	grad := make([]float32, v)
	return sc, grad, s.Download(grad, zt)
}

// generation compares each greedily generated id with the logits of a whole forward.
func (c *check) generation(ctx context.Context) (figure, error) {
	if c.m == nil {
		return figure{}, errNoModel
	}
	v := vocabulary(c.f)
	prompt := ids(8, v, 4)
	r, err := generate.Generate(ctx, c.m, c.s, prompt, generate.Options{MaxTokens: 16, RepeatPenalty: 1, Vocab: v}, nil)
	if err != nil {
		return figure{}, err
	}
	if len(r.IDs) != 16 {
		return figure{}, fmt.Errorf("%d tokens generated, want 16", len(r.IDs))
	}
	seq := append(slices.Clone(prompt), r.IDs...)
	z, err := logits(c.Device, c.s, c.m, seq[:len(seq)-1], v)
	if err != nil {
		return figure{}, err
	}
	worst, largest, same := 0.0, 0.0, 0
	for i, id := range r.IDs {
		row := z[(len(prompt)-1+i)*v:][:v]
		top := float64(slices.Max(row))
		worst = worse(worst, top-float64(row[id]))
		largest = worse(largest, math.Abs(top))
		if float64(row[id]) == top {
			same++
		}
	}
	return figure{worst / largest, c.tol.near, fmt.Sprintf("%d of %d greedy tokens are the likeliest of a whole forward; how far below the others are, over the largest logit", same, len(r.IDs))}, nil
}

// parity compares logits with those of another device.
func (c *check) parity(context.Context) (figure, error) {
	if c.m == nil {
		return figure{}, errNoModel
	}
	other, name := c.Other, c.OtherName
	if other == nil {
		return figure{}, errors.New("there is no other device to compare with")
	}
	m, err := model.LoadFrozen(other, c.f, device.StudentWeights)
	if err != nil {
		return figure{}, err
	}
	v := vocabulary(c.f)
	seq := ids(16, v, 6)
	got, err := logits(c.Device, c.s, c.m, seq, v)
	if err != nil {
		return figure{}, err
	}
	want, err := logits(other, other.NewStream(), m, seq, v)
	if err != nil {
		return figure{}, err
	}
	wide := make([]float64, len(want))
	for i, w := range want {
		wide[i] = float64(w)
	}
	worst, what := c.logitError(got, wide, v)
	return figure{worst, c.tol.logits, fmt.Sprintf("%d logits of %s %s against %s, %s", len(got), c.Device.Info().Kind, c.Device.Info().ISA, name, what)}, nil
}
