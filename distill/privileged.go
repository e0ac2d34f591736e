package distill

import (
	"fmt"
	"slices"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	runlog "apr/run/log"
	"apr/teacher"
)

// privileged says how a teacher reads words that the student does not: see teacher.Privileged.
type privileged struct {
	seqLen int  // positions of a row of the teacher's
	dry    bool // on a device that computes nothing, or in a probe: no words are read
}

// idle returns p for a device that computes nothing.
func (p *privileged) idle() *privileged {
	if p == nil {
		return nil
	}
	return &privileged{p.seqLen, true}
}

// wrap gives a teacher words of its own.
func (p *privileged) wrap(t teacher.Teacher, dev device.Device) teacher.Teacher {
	return &teacher.Privileged{Inner: t, Device: dev, SeqLen: p.seqLen, Dry: p.dry}
}

// wordStep is of what the length of the teacher's rows is a multiple, as far as it has positions.
const wordStep = 32

// findWords finds out how long the teacher's rows are, where records have words for it.
func (in *inputs) findWords(c Config) error {
	if in.train.Words == nil {
		return nil
	}
	for _, t := range []struct {
		asked bool
		what  string
	}{
		{c.OnPolicy.Rows(c.Rows()) < c.Rows(), "rows of the data (--on-policy below 1)"},
		{c.Guide.any(), "--strategy progressive or --attention-weight, which compare position by position"},
		{in.elsewhere, "--teacher-ranks"},
	} {
		if t.asked {
			return fault.New(fault.Unavailable, "not built: teacher_prompt with %s", t.what).WithID("E-POLICY-005")
		}
	}
	longest, document := in.prompts.LongestWords(c.OnPolicy.MaxTokens, c.SeqLen)
	most := longest
	for _, f := range in.teachers() {
		most = min(most, f.Config.MaxPositions)
	}
	if most < longest {
		return fault.New(fault.Invalid, "the teacher_prompt of document %d of the data and a reply have %d positions, the "+
			"teacher %d", document, longest, most).WithHint("a smaller --on-policy-max-tokens, or leave it out").
			WithID("E-POLICY-006")
	}
	n := max(c.SeqLen, (longest+wordStep-1)/wordStep*wordStep)
	for _, f := range in.teachers() {
		n = min(n, f.Config.MaxPositions)
	}
	in.words = &privileged{seqLen: n}
	return nil
}

// teacherRows returns the rows that the teacher reads of what the student wrote for a step: the words, and the drawn
// ids, which are the targets that count, in the student's order.
func (p *policy) teacherRows(d drawn, seqLen int) corpus.Batch {
	b := corpus.Batch{Rows: len(d.texts), SeqLen: seqLen}
	for i, t := range d.texts {
		b = appendOwn(b, d.words[i], t.IDs, p.pad)
	}
	return b
}

// appendOwn appends a row of drawn ids behind a prompt. The drawn ids are the targets that count; the prompt and what
// is behind the end are masked.
func appendOwn(b corpus.Batch, prompt, text []int32, pad int32) corpus.Batch {
	ids := slices.Concat(prompt, text)
	for at := range b.SeqLen {
		input, target, counts := pad, pad, uint8(0)
		if at < len(ids) {
			input = ids[at]
		}
		if at+1 < len(ids) {
			target = ids[at+1]
			if at+1 >= len(prompt) {
				counts = 1
			}
		}
		b.Tokens, b.Targets, b.Mask = append(b.Tokens, input), append(b.Targets, target), append(b.Mask, counts)
	}
	return b
}

// giveWords gives the step's rows of the teacher's to it, if it reads other words than the student, and returns the
// last of them, which samples show.
func (l *leg) giveWords(d drawn) (last corpus.Batch) {
	t, ok := l.teacher.(*teacher.Privileged)
	if !ok {
		return last
	}
	b := l.policy.teacherRows(d, t.SeqLen)
	t.Give(b)
	return b.Slice(b.Rows-min(ownSamples, b.Rows), b.Rows)
}

// withWords counts the prompts that have words of the teacher's own.
func withWords(t *corpus.Tokens) (n int) {
	for _, w := range t.Words {
		if w != nil {
			n++
		}
	}
	return n
}

// recordWords writes down that the teacher reads other words than the student.
func (r *Run) recordWords(student *model.Model) error {
	if r.in.words == nil {
		return nil
	}
	n := withWords(r.in.train)
	reason := fmt.Sprintf("of %d of %d documents the teacher reads the teacher_prompt, and the student the prompt; "+
		"positions of the reply are matched one to one", n, len(r.in.train.Docs))
	r.obs.Message("%s", reason)
	return r.dir.Event("decision", runlog.WordsOfTeacher, map[string]any{
		"documents": n, "of": len(r.in.train.Docs), "teacher_positions": r.in.words.seqLen, "student_positions": r.SeqLen,
	}, reason)
}
