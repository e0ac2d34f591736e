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
	writers         map[string]corpus.Written // of the training text; see adapter.Writer
	records, edited int64
	own             int64  // records that the student wrote, or a model with its norms
	alike           int64  // records of models with its shapes and embedding, and other norms
	alone           bool   // no teacher but the student, and those that learned such text, says more than they do
	taught          string // the teacher that learned such text; empty: none
	taughtBy        adapter.Likeness
	student         string // its name as a writer
}

// judgeTexts finds out who wrote the text of a run. A new student wrote none; see leg.meetTexts.
func (in *inputs) judgeTexts(c Config) error {
	w := &in.written
	for _, n := range w.writers {
		w.records, w.edited = w.records+n.Records, w.edited+n.Edited
	}
	if in.student == nil {
		return nil
	}
	return in.compareWriters(c, in.student)
}

// compareWriters finds out what a student wrote of the text, and of what teachers learned.
func (in *inputs) compareWriters(c Config, student *modelfile.Files) error {
	w := &in.written
	teachers := in.teachers()
	if c.NoTeacher || c.Loss.Alpha == 0 {
		teachers = nil
	}
	if len(w.writers) == 0 && !slices.ContainsFunc(teachers,
		func(f *modelfile.Files) bool { return len(f.Writers()) > 0 }) {
		return nil
	}
	var err error
	if w.student, err = adapter.Writer(student); err != nil {
		return err
	}
	w.own, w.alike, w.taught, w.taughtBy = 0, 0, "", adapter.Strangers
	for name, n := range w.writers {
		switch adapter.CompareWriters(name, w.student) {
		case adapter.OneModel:
			w.own += n.Records
		case adapter.Relatives:
			w.alike += n.Records
		}
	}
	w.alone = true
	for i, f := range teachers {
		same := in.cache == nil && in.kin != nil && in.kin.Relation != "different" && i == 0
		learned := adapter.Strangers
		for _, name := range f.Writers() {
			learned = max(learned, adapter.CompareWriters(name, w.student))
		}
		if learned > w.taughtBy {
			w.taught, w.taughtBy = c.Teachers()[i], learned
		}
		w.alone = w.alone && (same || learned > adapter.Strangers)
	}
	return nil
}

// related reports whether shapes and embedding are all that says that text is the student's: its writer may be a model
// that was fine-tuned from it, from which there is something to learn.
func (w authors) related() bool { return w.own == 0 && w.taughtBy != adapter.OneModel }

// text names the generated records that are the student's own, or may be.
func (w authors) text() string {
	if w.own > 0 {
		return fmt.Sprintf("%d of %d generated records are the student's own text", w.own+w.alike, w.records)
	}
	return fmt.Sprintf("%d of %d generated records were written by a model with the student's shapes and embedding (a "+
		"copy with other scales or in another order, or one fine-tuned from it)", w.alike, w.records)
}

// taughtText says which text a teacher learned.
func (w authors) taughtText() string {
	if w.taughtBy == adapter.OneModel {
		return w.taught + " learned text that the student wrote"
	}
	return w.taught + " learned text that a model with the student's shapes and embedding wrote"
}

// recordTexts writes down who wrote the text, and says what teaches nothing.
func (r *Run) recordTexts() error {
	w := r.in.written
	if w.records == 0 && w.taught == "" {
		return nil
	}
	detail := map[string]any{"writers": w.writers, "records": w.records, "edited": w.edited, "own": w.own,
		"alike": w.alike, "student": w.student, "teacher_taught": w.taught, "related_only": w.related()}
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
	switch own := w.own+w.alike > 0; {
	case own && w.alone && w.taught != "":
		return say(runlog.OwnText, fmt.Sprintf("%s, and its teacher %s: nothing else is taught", w.text(), w.taughtText()))
	case own && w.alone && w.related():
		return say(runlog.OwnText, w.text()+", and no other teacher says more: a copy teaches what the student does already")
	case own && w.alone:
		return say(runlog.OwnText, w.text()+" (it has the writer's norms), and no other teacher says more: it learns what "+
			"it does already")
	case own && r.Loss.Alpha < 1:
		return say(runlog.OwnText, fmt.Sprintf("%s, and %.3g %% of the loss is cross-entropy, which teaches it what it "+
			"writes already; with --alpha 1 the teacher alone judges them", w.text(), 100*(1-r.Loss.Alpha)))
	case w.taught != "":
		return say(runlog.OwnText, fmt.Sprintf("the teacher %s: what it has of the student, the student knows",
			w.taughtText()))
	}
	return r.dir.Event("decision", "generated text", detail, fmt.Sprintf("%d records of %d writers, %d of them "+
		"the student's own, which another teacher judges alone", w.records, len(w.writers), w.own+w.alike))
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
