package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"apr/bench/trial"
)

// plain is a chat template that adds nothing but the end of texts behind a completion: prompt and completion are one
// text, of which the completion and its end count.
const plain = "{% for m in messages %}{{ m['content'] }}" +
	"{% if m['role'] == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"

// prepare writes the data and the configurations.
func (o *options) prepare() error {
	write := func(name string, p problems, held bool) error {
		f, err := os.Create(o.file(name))
		if err != nil {
			return err
		}
		defer f.Close()
		p.numbers, p.most = o.Numbers, o.Most
		return p.write(f, held)
	}
	for _, d := range []struct {
		name string
		p    problems
		held bool
	}{
		{"train.jsonl", problems{seed: 1, count: o.Problems, form: "steps"}, false},
		{"held.jsonl", problems{seed: 2, count: o.Questions, form: "steps"}, true},
		{"questions.jsonl", problems{seed: 2, count: o.Questions, form: "questions"}, true},
	} {
		if err := write(d.name, d.p, d.held); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"plain.jinja": plain} {
		if err := os.WriteFile(o.file(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for name, shape := range map[string]string{"teacher.json": o.Teacher, "student.json": o.Student} {
		text, err := config(o.config, shape)
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.file(name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// config is the config.json base in other sizes.
func config(base, shape string) ([]byte, error) {
	var n [4]int
	parts := strings.Split(shape, "/")
	for i := range n {
		if len(parts) != len(n) {
			return nil, fmt.Errorf("%s is not hidden/layers/heads/intermediate", shape)
		}
		var err error
		if n[i], err = strconv.Atoi(parts[i]); err != nil || n[i] < 1 {
			return nil, fmt.Errorf("%s: %q is no size", shape, parts[i])
		}
	}
	var c map[string]any
	text, err := os.ReadFile(base)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", base, err)
	}
	for key, v := range map[string]any{"hidden_size": n[0], "num_hidden_layers": n[1], "num_attention_heads": n[2],
		"num_key_value_heads": n[2], "intermediate_size": n[3], "tie_word_embeddings": false, "initializer_range": .02} {
		c[key] = v
	}
	return json.Marshal(c)
}

// Rows of the teacher's training, which hold several problems each.
const teacherRows, teacherLength = 96, 256

// trialSteps are the steps by which the teacher's speed is known.
const trialSteps = 40

// teacher trains the teacher, unless there is one.
func (o *options) teacher(ctx context.Context, l *trial.Log[settings, record]) error {
	if o.teacherFile != "" {
		return nil
	}
	dir := o.dir(teacherName, 0)
	o.teacherFile = filepath.Join(dir, "student.apr")
	_, err := os.Stat(o.teacherFile)
	for _, r := range l.All() {
		if r.How == teacherName && err == nil {
			return nil
		}
	}
	begun := time.Now()
	steps := o.TeacherSteps
	if steps == 0 {
		r, err := o.train(ctx, o.dir("trial", 0), trialSteps)
		if err != nil {
			return err
		}
		took := r.InSteps / float64(max(1, r.Steps))
		steps = max(trialSteps, int((o.TeacherTime-time.Since(begun).Seconds())/took))
		fmt.Fprintf(os.Stderr, "teacher: %.1f ms a step, %.0f tokens/s: %d steps\n", 1e3*took, r.Rate, steps)
	}
	r, err := o.train(ctx, dir, steps)
	if err != nil {
		return err
	}
	rec, err := o.judge(ctx, dir, r)
	if err != nil {
		return err
	}
	rec.How, rec.Seconds = teacherName, time.Since(begun).Seconds()
	rec.KL, rec.Acceptance = 0, 1 // it was compared with the model that gave the tokenizer
	var m struct {
		Parameters int64 `json:"param_count"`
	}
	if err := trial.Run(ctx, nil, &m, o.apr, "inspect", o.teacherFile, "--json"); err != nil {
		return err
	}
	rec.Parameters = m.Parameters
	fmt.Fprintf(os.Stderr, "teacher of %d parameters: %.1f %% right, %.0f s\n", rec.Parameters, 100*rec.Right, rec.Seconds)
	return l.Append(rec)
}

// train trains the teacher for the given number of steps, by cross-entropy on text.
func (o *options) train(ctx context.Context, dir string, steps int) (r result, err error) {
	args := []string{"distill", o.tokenizer, "--alpha", "0", "--student-config", o.file("teacher.json"), "--seed", "7",
		"--steps", strconv.Itoa(steps), "--batch-size", strconv.Itoa(min(teacherRows, o.Rows)),
		"--seq-len", strconv.Itoa(teacherLength), "--learning-rate", "1e-3"}
	return r, trial.Run(ctx, nil, &r, o.apr, append(args, o.common(dir)...)...)
}

// print prints the table, or puts it into a document.
func (o *options) print(l *trial.Log[settings, record]) error {
	text := markdown(l.Settings, l.All())
	if o.docs == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	return trial.Replace(o.docs, "countdown", text)
}

// markdown is the table of a log.
func markdown(s settings, all []record) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"On %s; problems of %d numbers up to %d, %d questions; %d + %d steps of %d rows, learning rate %g.\n\n",
		s.Machine, s.Numbers, s.Most, s.Questions, s.Warm, s.Steps, s.Rows, s.Rate)
	b.WriteString("| | right | KL from the teacher | accepted as a draft | targets | s in steps | s in all | seeds |\n" +
		"|---|--:|--:|--:|--:|--:|--:|--:|\n")
	names := []string{teacherName, warmName}
	for _, w := range ways {
		names = append(names, w.name)
	}
	for _, name := range names {
		var rs []record
		ended := ""
		for _, r := range all {
			if r.How == name {
				rs = append(rs, r)
				if r.Ended != "" {
					ended = " (a guard ended a run)"
				}
			}
		}
		if len(rs) == 0 {
			continue
		}
		of := func(digits int, f func(record) float64) string {
			var v []float64
			for _, r := range rs {
				v = append(v, f(r))
			}
			return trial.Spread(v, digits)
		}
		fmt.Fprintf(&b, "| %s%s | %s %% | %s | %s %% | %s | %s | %s | %d |\n", name, ended,
			of(1, func(r record) float64 { return 100 * r.Right }), of(4, func(r record) float64 { return r.KL }),
			of(1, func(r record) float64 { return 100 * r.Acceptance }), of(0,
				func(r record) float64 { return float64(r.Targets) }),
			of(1, func(r record) float64 { return r.InSteps }), of(0, func(r record) float64 { return r.Seconds }), len(rs))
	}
	return b.String()
}
