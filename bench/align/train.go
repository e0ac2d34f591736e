package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"apr/arch"
	"apr/bench/trial"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/distill"
	"apr/eval"
	"apr/model"
	"apr/optim"
	"apr/teacher"
	"apr/tensor"
	"apr/tokenizer"
	"apr/tokenizer/align"
	"apr/tokenizer/train"
)

// How a student learns.
const (
	plain     = "cross-entropy"
	moved     = "projected"
	withText  = "projected, the text elsewhere"
	ownTokens = "own tokenizer"
	sorted    = "sorted probabilities"
)

var ways = []string{plain, moved, withText, ownTokens, sorted}

// The teachers: with a tokenizer of another kind than the student's, and with the student's.
var teachers = [2]string{"teacher of pieces", "teacher of the student's tokenizer"}

// side is a tokenizer with the texts in its ids.
type side struct {
	tok  *tokenizer.Tokenizer
	rows *corpus.Rows
	held *corpus.Tokens
}

// table makes the models that a log lacks.
type table struct {
	*options
	dev    device.Device
	stream device.Stream
	log    *trial.Log[settings, record]
	sides  [2]side // of pieces, and byte-level
}

// tokenizerBytes is how much of the text the tokenizers are learned from.
const tokenizerBytes = 1 << 20

// make trains teachers and students.
func (o *options) make(ctx context.Context, l *trial.Log[settings, record]) error {
	seeds, err := numbers(o.seeds)
	if err != nil {
		return err
	}
	steps, err := numbers(o.TeacherSteps)
	if err != nil || len(steps) != 2 {
		return fmt.Errorf("-teacher-steps %s is not two numbers", o.TeacherSteps)
	}
	t := &table{options: o, log: l}
	if err := t.open(ctx); err != nil {
		return err
	}
	defer t.dev.Close()
	var big [2]*model.Model
	until := max(0, o.TeacherBits)
	for i, name := range teachers {
		j := job{how: name, side: &t.sides[i], size: teacherSize, steps: int(steps[i]), seed: 7, until: until}
		j.level = o.TeacherBits != 0
		m, r, err := t.train(ctx, j)
		if err != nil {
			return err
		}
		if big[i] = m.Frozen(); o.TeacherBits < 0 {
			until = r.Bits
		}
	}
	for _, seed := range seeds {
		for _, how := range ways {
			if slices.ContainsFunc(l.All(), func(r record) bool { return r.How == how && r.Seed == seed }) {
				continue
			}
			if _, _, err := t.train(ctx, job{how: how, side: &t.sides[1], size: studentSize, steps: o.Steps, seed: seed,
				big: big}); err != nil {
				return err
			}
		}
	}
	return nil
}

// open learns the tokenizers and encodes the texts.
func (t *table) open(ctx context.Context) (err error) {
	switch t.Backend {
	case "":
		t.dev, err = cpu.New(cpu.Options{})
	case "cuda": // in float32, lest rounding be what a table shows
		t.dev, err = cuda.Open(cuda.Options{Compute: cuda.F32})
	default:
		err = fmt.Errorf("-backend %s is neither cuda nor empty", t.Backend)
	}
	if err != nil {
		return err
	}
	t.stream = t.dev.NewStream()
	var texts []string
	size := 0
	_, err = corpus.Read(ctx, []string{t.text}, corpus.ReadOptions{}, func(d corpus.Document) error {
		if size < tokenizerBytes {
			texts, size = append(texts, d.Text), size+len(d.Text)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if t.sides[0].tok, err = train.Pieces(texts, t.IDs); err != nil {
		return err
	}
	if t.sides[1].tok, err = train.ByteLevel(texts, t.IDs); err != nil {
		return err
	}
	for i := range t.sides {
		s := &t.sides[i]
		enc, err := corpus.ForTokenizer(s.tok, "none")
		if err != nil {
			return err
		}
		opt := corpus.EncodeOptions{EOS: s.tok.EOS(), Vocab: s.tok.RealIDs()}
		all, _, err := corpus.Load(ctx, []string{t.text}, enc, opt)
		if err != nil {
			return err
		}
		if s.rows, err = corpus.Pack(all, t.Length); err != nil {
			return err
		}
		if s.held, _, err = corpus.Load(ctx, []string{t.options.held}, enc, opt); err != nil {
			return err
		}
		s.held = s.held.Head(t.HeldTokens, func(id int32) int {
			b, _ := s.tok.Bytes(id)
			return len(b)
		})
	}
	return nil
}

// size is what a model is made of beside its vocabulary.
type size struct{ hidden, layers, heads, width int }

var teacherSize, studentSize = size{128, 3, 4, 256}, size{64, 2, 2, 128}

// job is one training.
type job struct {
	how   string
	side  *side
	size  size
	steps int
	seed  uint64
	big   [2]*model.Model
	level bool    // the learning rate does not fall
	until float64 // bits per byte at which it ends, at most after mostSteps times its steps; 0: after its steps
}

// mostSteps is how many times its steps a teacher may take to be as good as it shall be, and scoredEvery the steps
// between two looks.
const mostSteps, scoredEvery = 4, 10

// schedule is how the rate goes, and how many steps there may be.
func (j job) schedule(peak float64) (optim.Schedule, int) {
	s, steps := optim.Schedule{Kind: optim.Cosine, Peak: peak, Warmup: j.steps / 20, Steps: j.steps, MinRatio: .1}, j.steps
	if j.until > 0 {
		steps *= mostSteps
	}
	if j.level {
		s.Kind, s.Steps = optim.Constant, steps
	}
	return s, steps
}

// enough reports whether a model is as good as it shall be after a step.
func (t *table) enough(ctx context.Context, m *model.Model, j job, step int) (bool, error) {
	if j.until == 0 || step%scoredEvery != 0 {
		return false, nil
	}
	bits, err := t.score(ctx, m.Frozen(), j.side)
	return err == nil && bits <= j.until, err
}

// train trains a model, scores it and writes it down.
func (t *table) train(ctx context.Context, j job) (*model.Model, record, error) {
	begun := time.Now()
	tok := j.side.tok
	c := arch.Qwen2(arch.Sizes{Hidden: j.size.hidden, Layers: j.size.layers, Heads: j.size.heads, KVHeads: j.size.heads,
		HeadDim: 32, Width: j.size.width, Vocab: tok.RealIDs(), MaxPositions: 4 * t.Length, Theta: 1e4, Eps: 1e-6, Tied: true,
		BOS: -1, EOS: int(tok.EOS()), DType: tensor.F32, InitRange: .02})
	m := model.NewTrainable(t.dev, c)
	m.Init(t.stream, j.seed)
	tr := distill.NewTrainer(m, t.stream, t.Rows, t.Length)
	defer tr.Free()
	tr.Loss.Vocab, tr.Loss.Spec = tok.RealIDs(), device.LossSpec{Temperature: 1}
	tr.MaxLossRatio = 3
	if big, err := t.teacher(j); err != nil {
		return nil, record{}, err
	} else if big != nil {
		tr.Teacher, tr.Loss.Spec.Alpha = big, t.Alpha
	}
	schedule, steps := j.schedule(t.Rate)
	tr.Optimizer = optim.Optimizer{
		Schedule: schedule, AdamW: device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}, MaxNorm: 1,
	}
	loader, err := corpus.NewLoader(j.side.rows, corpus.LoaderOptions{BatchRows: t.Rows, Shuffle: true, Seed: j.seed})
	if err != nil {
		return nil, record{}, err
	}
	r := record{How: j.how, Seed: j.seed}
	for k := range steps {
		if err := ctx.Err(); err != nil {
			return nil, r, err
		}
		b, err := loader.Next()
		if err != nil {
			return nil, r, err
		}
		rec, err := tr.Apply(ctx, b)
		if err != nil {
			return nil, r, fmt.Errorf("%s, seed %d: %w", j.how, j.seed, err)
		}
		r.Steps = k + 1
		if k%100 == 99 {
			fmt.Fprintf(os.Stderr, "%s, seed %d: step %d of %d, loss %.3f\n", j.how, j.seed, k+1, steps, rec.Loss)
		}
		if done, err := t.enough(ctx, m, j, k+1); err != nil {
			return nil, r, err
		} else if done {
			break
		}
	}
	if p, ok := tr.Teacher.(teacher.Partial); ok {
		counts := p.Counts()
		r.Taught = float64(counts.Taught) / float64(max(1, counts.Targets))
	}
	if r.Bits, err = t.score(ctx, m.Frozen(), j.side); err != nil {
		return nil, r, err
	}
	r.Seconds = time.Since(begun).Seconds()
	fmt.Fprintf(os.Stderr, "%s, seed %d: %.4f bits per byte, %.0f s\n", j.how, j.seed, r.Bits, r.Seconds)
	known := func(o record) bool { return o.How == r.How && o.Seed == r.Seed }
	if slices.ContainsFunc(t.log.All(), known) { // a teacher, again
		return m, r, nil
	}
	return m, r, t.log.Append(r)
}

// teacher returns what a student learns from; nil: the text alone.
func (t *table) teacher(j job) (teacher.Teacher, error) {
	if j.how == ownTokens {
		return &teacher.Resident{Model: j.big[1]}, nil
	}
	if j.how != moved && j.how != withText && j.how != sorted {
		return nil, nil
	}
	pair, err := align.NewPair(t.sides[1].tok, t.sides[0].tok)
	if err != nil {
		return nil, err
	}
	if j.how == moved && j.seed == 1 {
		fmt.Fprintln(os.Stderr, pair.W.Audit().Line())
	}
	inner := &kept{Resident: &teacher.Resident{Model: j.big[0]}}
	a := &teacher.Aligned{Inner: inner, Device: t.dev, Pair: pair, Most: 2 * t.Length, Temperature: 1}
	if a.Text = j.how == withText; j.how != sorted {
		a.Inner = inner.Resident
		return a, nil
	}
	return &inOrder{Aligned: a, inner: inner}, nil
}

// score returns the bits per byte of a model on the held-out text.
func (t *table) score(ctx context.Context, m *model.Model, s *side) (float64, error) {
	w, err := corpus.NewWindows(s.held, t.Length, t.Length)
	if err != nil {
		return 0, err
	}
	scores, err := eval.Compare(ctx, t.stream, nil, []eval.Subject{{Name: "model", Model: m}}, w,
		eval.Options{Vocab: s.tok.RealIDs()})
	if err != nil {
		return 0, err
	}
	return eval.BitsPerByte(scores[0].NatsPerToken(), s.held), nil
}

// kept is a teacher whose latest logits are kept.
type kept struct {
	*teacher.Resident
	latest []float32
	cols   int
}

// Logits keeps what it writes.
func (k *kept) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	k.Resident.Logits(s, lo, hi, dst)
	k.latest, k.cols = make([]float32, dst.Rows*dst.Cols), dst.Cols
	if err := s.Download(k.latest, dst); err != nil {
		panic(err)
	}
}

// inOrder is the control: at the positions that the projection teaches, the teacher's largest probability goes to the
// id that the student holds for the likeliest, the second to its second, whatever these ids are (Boizard et al. 2024,
// arXiv:2402.12030, compare both in this order). It exists here only.
type inOrder struct {
	*teacher.Aligned
	inner   *kept
	targets []int32 // of the kept positions
}

// Align keeps the targets, which stand for the teacher where it does not teach.
func (o *inOrder) Align(b corpus.Batch) error {
	o.targets = o.targets[:0]
	for i, m := range b.Mask {
		if m != 0 {
			o.targets = append(o.targets, b.Targets[i])
		}
	}
	return o.Aligned.Align(b)
}

// Logits writes the teacher's probabilities in the order of the student's, which dst holds.
func (o *inOrder) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	z := make([]float32, dst.Rows*dst.Cols)
	if err := s.Download(z, dst); err != nil {
		panic(err)
	}
	o.inner.latest = nil
	o.Aligned.Logits(s, lo, hi, dst)
	after := make([]float32, len(z))
	if err := s.Download(after, dst); err != nil {
		panic(err)
	}
	n := 0
	for r := range dst.Rows {
		mine, now := z[r*dst.Cols:(r+1)*dst.Cols], after[r*dst.Cols:(r+1)*dst.Cols]
		if slices.Equal(mine, now) { // it does not teach
			for i := range now {
				now[i] = device.ProjectFloor
			}
			now[o.targets[lo+r]] = 0
			continue
		}
		copy(now, reorder(mine, o.inner.latest[n*o.inner.cols:(n+1)*o.inner.cols]))
		n++
	}
	s.Upload(dst, after)
}

// reorder returns the logarithms of the probabilities of t, the largest at the largest of z and so on; −80 for the
// rest.
func reorder(z, t []float32) []float32 {
	order := make([]int, len(z))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case z[a] > z[b]:
			return -1
		case z[a] < z[b]:
			return 1
		}
		return 0
	})
	all := slices.Clone(t)
	slices.Sort(all)
	slices.Reverse(all)
	sum := 0.0
	for _, v := range all {
		sum += math.Exp(float64(v - all[0]))
	}
	out := make([]float32, len(z))
	for i := range out {
		out[i] = device.ProjectFloor
	}
	for k := range min(len(all), len(order)) {
		out[order[k]] = float32(max(device.ProjectFloor, float64(all[k]-all[0])-math.Log(sum)))
	}
	return out
}
