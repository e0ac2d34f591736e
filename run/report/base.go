package report

import (
	"slices"
	"strings"

	runlog "apr/run/log"
)

// What people call the models of a run without a teacher. Its records name the file that the student began as
// "teacher".
const (
	baseScore    = "base model"
	trainedScore = "trained student"
)

// ofBase reports whether a run had no teacher, so that its scores compare with the student's own file.
func ofBase(r *runlog.Record) bool {
	if !untaught(r) {
		return false
	}
	given := func(name string) bool { v, _ := r.Manifest.Config[name].Value.(string); return v != "" }
	return given("student") && !given("teacher") && !given("cache")
}

// Label is the name of a model of an evaluation as people read it. base says that the run had no teacher: Verdict.Base.
func Label(base bool, name string) string {
	if !base {
		return name
	}
	switch name {
	case teacherScore:
		return baseScore
	case distilledScore:
		return trainedScore
	}
	return name
}

// Shown are the scores as people read them. Of a run without a teacher the untrained student is the base model, unless
// it began with an adapter: it is left out where both score the same.
func Shown(base bool, scores []Score) (all []Score) {
	for _, s := range scores {
		if t := find(scores, teacherScore); base && s.Name == untrainedScore && t != nil && t.NatsPerToken == s.NatsPerToken {
			continue
		}
		s.Name = Label(base, s.Name)
		all = append(all, s)
	}
	return all
}

// nameBase calls the model that a run without a teacher began as by its name on all of a page.
func (p *Page) nameBase() {
	p.reference = baseScore
	p.Scores = Shown(true, p.Scores)
	for i := range p.Charts {
		for j := range p.Charts[i].Series {
			s := &p.Charts[i].Series[j]
			s.Label = Label(true, s.Label)
		}
	}
	for i := range p.Sizes {
		p.Sizes[i].Name = Label(true, p.Sizes[i].Name)
	}
	p.Compared = strings.ReplaceAll(p.Compared, "the teacher's", "the base model's")
	for i := range p.Written {
		for j := range p.Written[i].Answers {
			a := &p.Written[i].Answers[j]
			a.Name = Label(true, a.Name)
		}
	}
	for i := range p.Samples {
		for j := range p.Samples[i].Tokens {
			t := &p.Samples[i].Tokens[j]
			t.Title = strings.Replace(t.Title, "by the teacher", "by the base model", 1)
		}
	}
	for i := range p.Memory {
		p.Memory[i].Name = Label(true, p.Memory[i].Name)
	}
	p.Phases = slices.DeleteFunc(p.Phases, func(row PhaseRow) bool { return row.Seconds == 0 })
	p.Facts = slices.DeleteFunc(p.Facts, func(f Pair) bool { return f.Name == "teacher" })
	said := strings.NewReplacer("Teacher and student", "Base model and student", "The teacher", "The base model",
		"the teacher's", "the base model's", "this teacher", "it")
	for i := range p.Events {
		p.Events[i].Sentence = said.Replace(p.Events[i].Sentence)
	}
	for i := range p.Origins {
		for j := range p.Origins[i].Rows {
			if row := &p.Origins[i].Rows[j]; p.Origins[i].Title == "Inputs" {
				row.Name = Label(true, row.Name)
				row.Value = strings.Replace(row.Value, "the same for teacher and student", "those of the base model", 1)
			}
		}
	}
}
