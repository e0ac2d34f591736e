package distill

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/optim"
	"apr/teacher"
	"apr/tokenizer"
	"apr/tokenizer/align"
)

// chunkConfig is a run of the gosrc teacher and a student with another tokenizer, by likelihoods of spans.
func chunkConfig(t *testing.T, pieces bool) Config {
	c := projectedConfig(t, pieces)
	c.Align, c.Loss.Temperature = AlignChunk, 2
	return c
}

// A run by likelihoods of spans says how much it teaches, and what it logs adds up; a run that is stopped and goes on
// gives the same student.
func TestChunk(t *testing.T) {
	for _, pieces := range []bool{false, true} {
		c := in(t, chunkConfig(t, pieces))
		c.Steps = 4
		_, q, err := runOnce(t, c, 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := studentBytes(t, c)
		for _, s := range q.steps {
			loss := .5*float64(s.CE) + .5*4*float64(s.KL)
			if s.Taught == nil || !(*s.Taught > .8 && *s.Taught <= 1) || !(s.KL > 0) ||
				!(math.Abs(float64(s.Loss)-loss) <= 1e-6*loss) {
				t.Errorf("step %d: taught %v, divergence %g, loss %g of %g", s.Step, s.Taught, float64(s.KL), float64(s.Loss), loss)
			}
		}
		contracttest.Cases(t, len(q.steps))
		if pieces {
			continue
		}
		c.Output = filepath.Join(t.TempDir(), "stopped")
		if _, _, err := runOnce(t, c, 1, 2); fault.KindOf(err) != fault.Stopped {
			t.Fatal(err)
		}
		c.Resume = ResumeAuto
		if _, _, err := runOnce(t, c, 2, 0); err != nil || !bytes.Equal(studentBytes(t, c), want) {
			t.Errorf("a run that was stopped gives another student, or %v", err)
		}
	}
}

// chunkModels are a teacher with byte-level tokens and a student with pieces, of so many ids.
type chunkModels struct {
	theirs, mine   *tokenizer.Tokenizer
	teacher, start string
	by             float32 // the student's weights are multiplied by it: another model than the teacher
}

func newChunkModels(t *testing.T, theirs, mine int) (m chunkModels) {
	m.by = 6
	m.theirs, m.mine = learnedOf(t, false, theirs), learnedOf(t, true, mine)
	m.teacher = narrowModel(t, m.theirs, m.theirs.RealIDs()+3)
	m.start = narrowModel(t, m.mine, m.mine.RealIDs()+5)
	return m
}

// step is a trainer of the student by the teacher, and a batch of rows of text.
func (m chunkModels) step(t *testing.T, d device.Device, text []string, seqLen int) (*Trainer, *model.Model,
	*align.Pair, corpus.Batch) {
	t.Helper()
	theirs, mine := m.theirs, m.mine
	pair, err := align.NewPair(mine, theirs)
	if err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	big := loadTeacher(t, d, m.teacher).Model
	student := loadStudent(t, d, s, m.start)
	scaleWeights(t, student, s, m.by)
	b := dryBatch(len(text), seqLen)
	for i, line := range text {
		ids := mine.Encode(line, tokenizer.PlainText)
		if len(ids) < seqLen+1 {
			t.Fatalf("%d ids", len(ids))
		}
		copy(b.Tokens[i*seqLen:(i+1)*seqLen], ids[:seqLen])
		copy(b.Targets[i*seqLen:(i+1)*seqLen], ids[1:seqLen+1])
	}
	for i := range 3 {
		b.Mask[seqLen/2+i] = 0
	}
	tr := NewTrainer(student, s, b.Rows, seqLen)
	tr.MicroRows, tr.Loss.ChunkRows, tr.Loss.Vocab = 1, 5, mine.RealIDs()
	tr.Loss.Spec = device.LossSpec{Alpha: .6, Temperature: 2}
	tr.Optimizer = optim.Optimizer{Schedule: optim.Schedule{Kind: optim.Constant, Steps: 1}}
	tr.Teacher = &teacher.Chunks{Inner: &teacher.Resident{Model: big}, Device: d, Pair: pair, Most: 2 * seqLen, Rows: 7,
		Fresh: true}
	return tr, big, pair, b
}

var chunkText = []string{
	"func (l *leg) checkpoint(out *Outcome) error { return l.run.save(l.folder(), st, tensors) } // and more of it here",
	"if err := r.dir.Sync(); err != nil { return fmt.Errorf(\"step %d: %w\", t.Steps, err) } // what else is there to say",
}

// TestChunkReference: loss and gradient of a step are those of float64: likelihoods of spans from the whole logits of
// both models, the coins' divergence, and the gradient of the logits that follows, taken back by the step itself from a
// cross-entropy whose targets are weighed.
func TestChunkReference(t *testing.T) {
	mine, theirs := 0, 0
	for _, ids := range [][2]int{{400, 700}, {450, 450}} {
		m, n := chunkReference(t, newChunkModels(t, ids[0], ids[1]))
		mine, theirs = max(mine, m), max(theirs, n)
	}
	if mine < 2 || theirs < 2 {
		t.Errorf("spans of up to %d and %d tokens: nothing is shown", mine, theirs)
	}
}

// chunkReference returns the most tokens of a span, of the student's and of the teacher's.
func chunkReference(t *testing.T, models chunkModels) (mine, theirs int) {
	const seqLen = 24
	d := newCPU(t)
	tr, big, pair, b := models.step(t, d, chunkText, seqLen)
	s, v := tr.stream, tr.Loss.Vocab
	c := tr.Teacher.(*teacher.Chunks)
	if err := c.Align(b); err != nil {
		t.Fatal(err)
	}
	tr.gradients(b, b.TargetCount())
	got := tr.spans.host
	sc, err := s.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// By hand, row by row.
	q := rowLogits(t, tr.Student, s, b, v)
	n, spec := float64(b.TargetCount()), tr.Loss.Spec
	var want []float64
	var ce, div float64
	spans := 0
	for i := range b.Rows {
		row := b.Slice(i, i+1)
		ids := append(append([]int32{}, row.Tokens...), row.Targets[seqLen-1])
		at, err := pair.NewAligner().Align(ids, true, 2*seqLen)
		if err != nil {
			t.Fatal(err)
		}
		read := corpus.Batch{Rows: 1, SeqLen: len(at.IDs), Tokens: at.IDs}
		p := rowLogits(t, big, s, read, pair.W.TeacherIDs)
		logq := make([]float64, seqLen)
		weight := make([]float64, seqLen)
		for k := range seqLen {
			logq[k] = ref.LogSoftmax(q.V[(i*seqLen+k)*v:(i*seqLen+k+1)*v], 1)[row.Targets[k]]
			weight[k] = 1 - spec.Alpha
			if row.Mask[k] != 0 {
				ce -= logq[k]
			}
		}
		for _, span := range at.Spans {
			u, w, counts := 0.0, 0.0, true
			for j := span.TeacherFrom; j < span.TeacherTo; j++ {
				u += ref.LogSoftmax(p.V[int(j)*p.Cols:int(j+1)*p.Cols], 1)[at.IDs[j+1]]
			}
			for k := span.From; k < span.To; k++ {
				w += logq[k]
				counts = counts && row.Mask[k] != 0
			}
			if !counts {
				continue
			}
			spans++
			mine, theirs = max(mine, int(span.To-span.From)), max(theirs, int(span.TeacherTo-span.TeacherFrom))
			a, z := math.Exp(u/spec.Temperature), math.Exp(w/spec.Temperature)
			coins := func(z float64) float64 { return a*math.Log(a/z) + (1-a)*math.Log((1-a)/(1-z)) }
			div += coins(z)
			const h = 1e-6
			slope := (coins(math.Exp((w+h)/spec.Temperature)) - coins(math.Exp((w-h)/spec.Temperature))) / (2 * h)
			for k := span.From; k < span.To; k++ {
				weight[k] -= spec.Alpha * spec.Temperature * spec.Temperature * slope
			}
		}
		for k, m := range row.Mask {
			if m != 0 {
				want = append(want, weight[k])
			}
		}
	}
	if spans < 10 {
		t.Fatalf("%d spans: nothing is shown", spans)
	}
	near.Check(t, "weights of the targets", got, want, 1e-4)
	near.Check(t, "cross-entropy and divergence", []float64{sc.CE / n, sc.D / n}, []float64{ce / n, div / n}, 1e-4)
	// The gradient is that of Σ weight·CE: of one target at a time it is linear in the weights.
	weighed := gradientsOf(t, tr)
	tr.Teacher, tr.spans = nil, nil
	var sum [][]float64
	kept := 0
	for i, m := range b.Mask {
		if m == 0 {
			continue
		}
		one := b
		one.Mask = make([]uint8, len(b.Mask))
		one.Mask[i] = 1
		tr.Loss.Spec = device.LossSpec{Temperature: 1}
		tr.gradients(one, b.TargetCount())
		for k, g := range gradientsOf(t, tr) {
			if kept == 0 {
				sum = append(sum, make([]float64, len(g)))
			}
			for j, x := range g {
				sum[k][j] += float64(got[kept]) * float64(x)
			}
		}
		kept++
	}
	for k := range weighed {
		near.Check(t, "gradient", weighed[k], sum[k], 1e-5)
	}
	contracttest.Cases(t, kept)
	return mine, theirs
}
