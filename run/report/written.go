package report

import (
	"fmt"
	"strings"

	"apr/internal/fault"
	runlog "apr/run/log"
)

// Written is a held-out prompt with what the models wrote after it.
type Written struct {
	Prompt, Text string
	Answers      []Answer
}

// Answer is what a model wrote.
type Answer struct{ Name, Class, Text, Note string }

// written prepares the continuations.
func written(s *runlog.Samples) (all []Written) {
	if s == nil {
		return nil
	}
	for _, c := range s.Continuations {
		w := Written{Prompt: legible(c.Prompt), Text: legible(c.Text)}
		for _, a := range c.Answers {
			v := Answer{Name: a.Model, Class: scoreClass(a.Model), Text: legible(a.Text)}
			switch a.Finish {
			case "time":
				v.Note = fmt.Sprintf("cut after %s: it took too long", fault.Plural(a.Tokens, "token"))
			case "stop":
				v.Note = fmt.Sprintf("ended after %s", fault.Plural(a.Tokens, "token"))
			}
			if strings.TrimSpace(a.Text) == "" {
				v.Text = visible(a.Text)
				if v.Note == "" {
					v.Note = "nothing but white space"
				}
			}
			w.Answers = append(w.Answers, v)
		}
		all = append(all, w)
	}
	return all
}

// SizeRow is what a model takes and how fast it writes.
type SizeRow struct {
	Name, Class                    string
	Parameters, FileBytes, InBytes int64
	Speed                          string
}

// sizes reads size and speed of teacher and student, with a sentence that compares them.
func sizes(r *runlog.Record) (rows []SizeRow, compared string) {
	all := evaluated[runlog.ModelSize](r, runlog.SizesEvent)
	for _, m := range all {
		if m.MemoryBytes == 0 { // the student is beside the same weights
			m.MemoryBytes = -1
		}
		row := SizeRow{m.Name, scoreClass(m.Name), m.Parameters, m.FileBytes, m.MemoryBytes, "–"}
		if m.TokensPerSecond != nil && m.TokensPerSecond.Finite() {
			row.Speed = speed(*m.TokensPerSecond)
		}
		rows = append(rows, row)
	}
	if len(all) != 2 || all[0].Parameters <= 0 || all[1].Parameters <= 0 {
		return rows, ""
	}
	t, s := all[0], all[1]
	compared = fmt.Sprintf("The student has %.3g %% of the teacher's parameters", 100*float64(s.Parameters)/float64(t.Parameters))
	if a, b := t.TokensPerSecond, s.TokensPerSecond; a != nil && b != nil && *a > 0 && *b > 0 {
		if f := float64(*b / *a); f >= 1 {
			compared += fmt.Sprintf(" and writes %.3g times as fast", f)
		} else {
			compared += fmt.Sprintf(" and writes at %.3g times the speed", f)
		}
	}
	return rows, compared + "."
}

// speed prints tokens a second.
func speed(n runlog.Number) string {
	if n < 100 {
		return fixed(1, n)
	}
	return count(int64(n + 0.5))
}
