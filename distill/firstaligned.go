package distill

import (
	"math"

	"apr/corpus"
	runlog "apr/run/log"
	"apr/teacher"
)

// noSpanDifference is a difference of two likelihoods of a span, in nats, that arithmetic in float32 makes of zero.
const noSpanDifference = 1e-3

// spansReading is how the student stands to a teacher that compares likelihoods of spans of text, ln p = u and
// ln q = v: the mean of |u − v| over so many spans, in nats.
type spansReading struct {
	apart float64
	spans int
}

// readAligned compares the student with a teacher of another tokenizer before any training, where it teaches: its
// distribution at positions, or its likelihoods of spans. Who calls has switched dropout off.
func (l *leg) readAligned(b corpus.Batch) (r firstReading, err error) {
	t := l.teacher.(teacher.Partial)
	if err := t.Align(b); err != nil {
		return r, err
	}
	defer t.Counts() // the step counts its positions itself
	switch t := t.(type) {
	case *teacher.Aligned:
		return l.trainer.atTaught(t, b)
	case *teacher.Chunks:
		r.overSpans, err = l.trainer.acrossSpans(t, b)
	}
	return r, err
}

// atTaught reads, of the first targets of b, those that an aligned teacher teaches, at temperature 1.
func (t *Trainer) atTaught(a *teacher.Aligned, b corpus.Batch) (r firstReading, err error) {
	temperature, text := a.Temperature, a.Text
	defer func() { a.Temperature, a.Text = temperature, text }()
	a.Temperature, a.Text = 1, false
	v := t.Loss.Vocab
	student, own, err := t.logits(b, max(temperedLogits/v, temperedRows))
	if err != nil || len(student) == 0 {
		return r, err
	}
	var mine, theirs []float32
	for _, at := range a.TaughtOf(len(student) / v) {
		mine = append(mine, student[int(at)*v:(int(at)+1)*v]...)
		theirs = append(theirs, own[int(at)*v:(int(at)+1)*v]...)
	}
	r.taught, r.read = len(mine)/v, true
	for at := 0; at < len(mine); at += v {
		kl, entropy := divergenceOf(theirs[at:at+v], mine[at:at+v])
		r.kl, r.entropy = r.kl+kl/float64(r.taught), r.entropy+entropy/float64(r.taught)
	}
	r.top1, r.tempered = alikeIDs(mine, theirs, v), fitTemperature(mine, theirs, v)
	return r, nil
}

// divergenceOf returns KL(p‖q) and H(p) in nats, p and q the softmax of the teacher's and the student's logits.
func divergenceOf(teacher, student []float32) (kl, entropy float64) {
	p, entropy := softmax(teacher)
	mine, theirs := logSumExp(student), logSumExp(teacher)
	for i, x := range p {
		kl += x * ((float64(teacher[i]) - theirs) - (float64(student[i]) - mine))
	}
	return kl, entropy
}

// acrossSpans reads both models' likelihoods of the spans of b.
func (t *Trainer) acrossSpans(c *teacher.Chunks, b corpus.Batch) (r spansReading, err error) {
	if c.Dry || len(c.Spans) == 0 {
		return r, nil
	}
	t.batch.Load(t.stream, b, t.MicroRows)
	theirs, mine, err := t.likelihoods(c, b)
	if err != nil {
		return r, err
	}
	r.spans = len(c.Spans)
	for _, at := range c.Spans {
		u, v := total(theirs, at.TeacherFrom, at.TeacherTo), total(mine, at.From, at.To)
		r.apart += math.Abs(u-v) / float64(r.spans)
	}
	return r, nil
}

// checkAligned reports, after the first applied step, a student that computes what a teacher with another tokenizer
// computes, as far as that teaches. Likelihoods of spans tell equality alone: for what they do not tell, and for a
// teacher that teaches at too few of the positions that were read, the embedding of equal tokens stands in.
func (l *leg) checkAligned(k int, of side, first firstReading) error {
	if !l.firstApplied() {
		return nil
	}
	switch r := first.overSpans; {
	case first.taught >= fewPositions:
		return l.judgeFirst(k, of, first, first.taught)
	case r.spans >= fewPositions && r.apart <= noSpanDifference:
		l.equal = true
		return l.tell(of, runlog.FirstStepEqual, map[string]any{"leg": l.name, "step": k, "kl": r.apart,
			"at_most": noSpanDifference, "spans": r.spans},
			"the student gives the teacher's likelihoods of text, though its file is another one",
			"before step %d the student gives %d spans of text the teacher's likelihood (a mean difference of %.1e nats); "+
				"is it a copy of the teacher?", k, r.spans, r.apart)
	}
	return l.checkEmbedding(k, of, first)
}
