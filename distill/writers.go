package distill

import (
	"fmt"
	"maps"
	"slices"

	"apr/adapter"
	"apr/corpus"
	"apr/modelfile"
	runlog "apr/run/log"
)

// authors are what the records of the training text, and the files of the models, say of who wrote text that a model
// wrote.
type authors struct {
	writers         map[string]corpus.Written // of the training text; see adapter.Identity
	records, edited int64
	own             int64  // records that the student wrote, or a model with its norms
	alone           bool   // no teacher but the student, and those that learned its text, says more than they do
	taught          string // the teacher that learned text of the student; empty: none
	student         string // its identity
}

// judgeTexts finds out who wrote the text of a run. A new student wrote none.
func (in *inputs) judgeTexts(c Config) error {
	w := &in.written
	for _, n := range w.writers {
		w.records, w.edited = w.records+n.Records, w.edited+n.Edited
	}
	if in.student == nil {
		return nil
	}
	teachers := in.teachers()
	if c.NoTeacher || c.Loss.Alpha == 0 {
		teachers = nil
	}
	if len(w.writers) == 0 && !slices.ContainsFunc(teachers,
		func(f *modelfile.Files) bool { return len(f.Writers()) > 0 }) {
		return nil
	}
	var err error
	if w.student, err = adapter.Identity(in.student); err != nil {
		return err
	}
	w.own, w.alone = w.writers[w.student].Records, true
	for i, f := range teachers {
		same := in.cache == nil && in.kin != nil && in.kin.Relation != "different" && i == 0
		learned := slices.Contains(f.Writers(), w.student)
		if learned {
			w.taught = c.Teachers()[i]
		}
		w.alone = w.alone && (same || learned)
	}
	return nil
}

// recordTexts writes down who wrote the text, and says what teaches nothing.
func (r *Run) recordTexts() error {
	w := r.in.written
	if w.records == 0 && w.taught == "" {
		return nil
	}
	detail := map[string]any{"writers": w.writers, "records": w.records, "edited": w.edited, "own": w.own,
		"student": w.student, "teacher_taught": w.taught}
	say := func(name, text string) error {
		r.obs.Message("warning: %s", text)
		return r.dir.Event("warning", name, detail, text)
	}
	if w.edited > 0 {
		if err := say(runlog.EditedText, fmt.Sprintf("%d of %d records that a model wrote were changed since: their "+
			"sums are not those of what was written", w.edited, w.records)); err != nil {
			return err
		}
	}
	switch {
	case w.own > 0 && w.alone && w.taught != "":
		return say(runlog.OwnText, fmt.Sprintf("%d of %d generated records are the student's own text, and its "+
			"teacher %s learned text that the student wrote: nothing else is taught", w.own, w.records, w.taught))
	case w.own > 0 && w.alone:
		return say(runlog.OwnText, fmt.Sprintf("%d of %d generated records are the student's own text (it has the "+
			"writer's norms), and no other teacher says more: it learns what it does already", w.own, w.records))
	case w.own > 0 && r.Loss.Alpha < 1:
		return say(runlog.OwnText, fmt.Sprintf("%d of %d generated records are the student's own text, and %.3g %% of the loss is "+
			"cross-entropy, which teaches it what it writes already; with --alpha 1 the teacher alone judges them", w.own, w.records,
			100*(1-r.Loss.Alpha)))
	case w.taught != "":
		return say(runlog.OwnText, fmt.Sprintf("the teacher %s learned text that the student wrote: what it has of "+
			"the student, the student knows", w.taught))
	}
	return r.dir.Event("decision", "generated text", detail, fmt.Sprintf("%d records of %d writers, %d of them "+
		"the student's own, which another teacher judges alone", w.records, len(w.writers), w.own))
}

// writersOfStudent are the writers of the text that the student has learned, now and before, in order.
func (in *inputs) writersOfStudent() []string {
	all := map[string]bool{}
	for name := range in.written.writers {
		all[name] = true
	}
	if in.student != nil {
		for _, name := range in.student.Writers() {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
