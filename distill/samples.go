package distill

import (
	"context"
	"errors"
	"slices"
	"strings"

	"apr/corpus"
	"apr/eval"
	"apr/internal/fault"
	"apr/model"
	runlog "apr/run/log"
)

// Of so many held-out windows so many tokens are shown, with so many predictions each.
const sampleWindows, sampleTokens, sampleTop = 3, 96, 5

// ownSamples is how many texts of the student's own are shown.
const ownSamples = 2

// writeSamples shows how teacher and student predict pieces of the held-out text, for the report: windows evenly spread
// over the text.
func (r *Run) writeSamples(ctx context.Context, big, student *model.Model) error {
	if r.in.held == nil {
		return nil
	}
	if r.in.tokenizer == nil {
		return r.dir.Event("decision", "no samples", nil, "the held-out ids have no text: the student has no tokenizer")
	}
	if r.in.cache != nil {
		return r.dir.Event("decision", "no samples", nil, "the teacher is a cache, which has nothing of the held-out text")
	}
	if r.in.elsewhere {
		return r.dir.Event("decision", "no samples", nil, "the teacher's layers are on other ranks")
	}
	if r.in.projected != nil {
		return r.dir.Event("decision", "no samples", nil,
			"the teacher has another tokenizer: its predictions are of other pieces of text")
	}
	if len(r.in.more) > 0 {
		return r.dir.Event("decision", "no samples", nil, "several teachers teach: no one model predicts as they do")
	}
	r.obs.Phase("sampling held-out text")
	w, err := r.heldOutWindows()
	if err != nil {
		return err
	}
	out := runlog.Samples{Top: sampleTop, Vocab: r.in.vocab}
	n := min(sampleWindows, w.Len())
	for i := range n {
		at := i * w.Len() / n
		b := w.Batch(at, at+1)
		s, err := r.sample(ctx, big, b, student, b)
		if errors.Is(err, context.Canceled) {
			return r.stoppedAfterTraining()
		}
		if err != nil {
			return err
		}
		s.Window = at
		out.Windows = append(out.Windows, s)
	}
	for i := range r.ownRows.Rows {
		b := r.ownRows.Slice(i, i+1)
		own := b
		if r.ownWords.Rows > 0 {
			own = r.ownWords.Slice(i, i+1)
		}
		s, err := r.sample(ctx, big, own, student, b)
		if errors.Is(err, context.Canceled) {
			return r.stoppedAfterTraining()
		}
		if err != nil {
			return err
		}
		s.Own = &r.ownStep
		out.Windows = append(out.Windows, s)
	}
	r.samples = out
	return r.dir.WriteSamples(out)
}

// head returns the first n positions of a batch of one row.
func head(b corpus.Batch, n int) corpus.Batch {
	h := corpus.Batch{Rows: 1, SeqLen: n, Tokens: b.Tokens[:n], Targets: b.Targets[:n], Mask: b.Mask[:n]}
	if b.Starts != nil {
		h.Starts = b.Starts[:n]
	}
	return h
}

// apart cuts the row that a teacher reads where the student's row, which has other words before the same targets, is
// cut: as many targets count.
func apart(own, b corpus.Batch) corpus.Batch {
	at, left := 0, b.TargetCount()
	for ; left > 0; at++ {
		left -= int(own.Mask[at])
	}
	return head(own, at)
}

// sample looks at the first tokens of a window. The teacher reads own, which is b unless it has words of its own.
func (r *Run) sample(ctx context.Context, big *model.Model, own corpus.Batch, student *model.Model,
	b corpus.Batch) (runlog.Sample, error) {
	same := &own.Tokens[0] == &b.Tokens[0]
	n := min(sampleTokens, b.SeqLen)
	b = head(b, n)
	s := runlog.Sample{Tokens: make([]runlog.SampleToken, n+1)}
	s.Tokens[0] = runlog.SampleToken{ID: b.Tokens[0], Text: r.text(b.Tokens[0])}
	for i, id := range b.Targets {
		s.Tokens[i+1] = runlog.SampleToken{ID: id, Text: r.text(id), Counts: b.Mask[i] != 0}
	}
	seen := b
	if same { // also what does not count is looked at, so that the mask can be seen
		seen.Mask = slices.Repeat([]uint8{1}, n)
		own = seen
	} else {
		own = apart(own, b)
	}
	views, err := eval.LookApart(ctx, r.stream, big, own, student, seen, sampleTop, eval.Options{Vocab: r.in.vocab})
	if err != nil {
		return s, err
	}
	for _, v := range views {
		kl, t := runlog.Number(v.KL), &s.Tokens[v.Position+1]
		t.KL, t.Teacher, t.Student = &kl, r.prediction(v, 0), r.prediction(v, 1)
	}
	return s, nil
}

func (r *Run) prediction(v eval.View, i int) *runlog.Prediction {
	p := &runlog.Prediction{P: runlog.Number(v.P[i])}
	for _, e := range v.Top[i] {
		p.Top = append(p.Top, runlog.Choice{ID: e.ID, Text: r.text(e.ID), P: runlog.Number(e.P)})
	}
	return p
}

// text is what an id stands for, as far as it is UTF-8.
func (r *Run) text(id int32) string {
	s, _ := r.in.tokenizer.Bytes(id) // an id without text has none
	return strings.ToValidUTF8(s, "\uFFFD")
}

// stoppedAfterTraining records a signal that came when the student was written already.
func (r *Run) stoppedAfterTraining() error {
	stopped := fault.New(fault.Stopped, "stopped in the evaluation; the student is trained and written").
		WithHint("--resume=%s evaluates again", r.Output)
	return errors.Join(r.dir.Event("stop", "signal", map[string]any{"phase": "evaluation"}, ""), stopped)
}
