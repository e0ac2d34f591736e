package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"apr/bench/trial"
)

// settings are what all runs of a log share.
type settings struct {
	Machine      string  `json:"machine"`
	Backend      string  `json:"backend"`
	Problems     int     `json:"problems"` // to train on
	Numbers      int     `json:"numbers"`
	Most         int     `json:"most"`
	Questions    int     `json:"questions"`
	TeacherSteps int     `json:"teacher_steps"` // 0: as many as fit TeacherTime
	TeacherTime  float64 `json:"teacher_seconds"`
	Warm         int     `json:"warm_steps"` // of cross-entropy, from which all ways begin
	Steps        int     `json:"steps"`
	Rows         int     `json:"rows"`   // of a step: a problem each
	Length       int     `json:"length"` // of a row
	Rate         float64 `json:"learning_rate"`
	Teacher      string  `json:"teacher_shape"` // hidden/layers/heads/intermediate
	Student      string  `json:"student_shape"`
	Jobs         int     `json:"jobs"`
}

// record is a line of the log: a run.
type record struct {
	How        string  `json:"how"`
	Seed       int     `json:"seed"`
	Right      float64 `json:"right"` // of the questions
	Nats       float64 `json:"nats_per_token"`
	KL         float64 `json:"kl"`
	Acceptance float64 `json:"acceptance"`
	Targets    int64   `json:"targets"`
	Steps      int     `json:"steps"`
	InSteps    float64 `json:"in_steps_seconds"`
	Seconds    float64 `json:"seconds"`
	Parameters int64   `json:"parameters,omitempty"`
	Ended      string  `json:"ended,omitempty"` // a guard ended the run
}

// options are the flags.
type options struct {
	settings
	apr, log, table, docs, work, tokenizer string
	seeds                                  []int
	limit                                  time.Duration
	clock                                  *trial.Clock
	teacherFile, config                    string
}

// teacherName and warmName are rows of the table; the others are ways.
const teacherName, warmName = "teacher", "before: cross-entropy on the data"

// way is a way to teach.
type way struct {
	name string
	args []string
}

// own are the options of rows that the student writes.
func own(fraction string, more ...string) []string {
	return append([]string{"--on-policy", fraction, "--on-policy-max-tokens", "28"}, more...)
}

var ways = []way{
	{"cross-entropy on the data", []string{"--alpha", "0"}},
	{"teacher on the data, forward KL", []string{"--alpha", "1"}},
	{"teacher on the data, reverse KL", []string{"--alpha", "1", "--divergence", "reverse-kl"}},
	{"teacher on own text, whole vocabulary", own("1")},
	{"teacher on own text, drawn token", own("1", "--on-policy-estimator", "sampled")},
	{"half of each, whole vocabulary", own("0.5")},
}

func tableMain(ctx context.Context, args []string) error {
	o := &options{}
	seeds := ""
	f := flag.NewFlagSet("countdown table", flag.ContinueOnError)
	f.StringVar(&o.apr, "apr", "bin/apr", "the program")
	f.StringVar(&o.tokenizer, "tokenizer", "examples/gosrc/teacher.apr", "model whose tokenizer all have")
	f.StringVar(&o.config, "config", "examples/gosrc/student-config.json",
		"config.json of which all models are, in other sizes")
	f.StringVar(&o.log, "log", "", "file of JSON lines to write, or to go on with")
	f.StringVar(&o.table, "table", "", "make the table of this log, and run nothing")
	f.StringVar(&o.docs, "docs", "", "document whose table is rewritten; else it is printed")
	f.StringVar(&o.work, "work", "", "folder of data and runs (default: the log's name with .work)")
	f.StringVar(&o.Machine, "machine", "", "what the machine is called (default: processors and system)")
	f.StringVar(&o.Backend, "backend", "auto", "backend of all runs")
	f.StringVar(&seeds, "seeds", "1,2,3", "seeds of students, separated by commas")
	f.IntVar(&o.Problems, "problems", 400000, "problems to train on")
	f.IntVar(&o.Numbers, "numbers", 3, "numbers of a problem")
	f.IntVar(&o.Most, "most", 20, "largest number")
	f.IntVar(&o.Questions, "questions", 500, "questions that judge a model")
	f.IntVar(&o.TeacherSteps, "teacher-steps", 0, "steps of the teacher; 0: what fits -teacher-seconds")
	f.Float64Var(&o.TeacherTime, "teacher-seconds", 100, "time for the teacher's training, without -teacher-steps")
	f.IntVar(&o.Warm, "warm", 300, "steps of cross-entropy from which all ways begin")
	f.IntVar(&o.Steps, "steps", 300, "steps of each way")
	f.IntVar(&o.Rows, "rows", 256, "rows of a step, a problem each")
	f.IntVar(&o.Length, "length", 48, "tokens of a row")
	f.Float64Var(&o.Rate, "learning-rate", 3e-4, "peak learning rate of the ways")
	f.StringVar(&o.Teacher, "teacher", "512/8/8/1536", "the teacher's hidden size, layers, heads and intermediate size")
	f.StringVar(&o.Student, "student", "192/4/3/576", "the students'")
	f.StringVar(&o.teacherFile, "teacher-file", "", "a teacher that is trained already")
	f.IntVar(&o.Jobs, "jobs", 1, "runs at a time")
	f.DurationVar(&o.limit, "limit", 0, "end after this time, with what is done")
	if err := f.Parse(args); err != nil {
		return err
	}
	for _, s := range strings.Split(seeds, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return fmt.Errorf("-seeds: %q is no seed", s)
		}
		o.seeds = append(o.seeds, n)
	}
	if o.table != "" {
		l, err := trial.ReadLog[settings, record](o.table)
		if err != nil {
			return err
		}
		return o.print(l)
	}
	if o.log == "" || f.NArg() > 0 {
		return errors.New("-log FILE is needed, or -table FILE")
	}
	return o.run(ctx)
}

// run makes what the log lacks, and the table of what there is.
func (o *options) run(ctx context.Context) error {
	if o.Machine == "" {
		o.Machine = trial.Machine()
	}
	if o.work == "" {
		o.work = o.log + ".work"
	}
	if err := os.MkdirAll(o.work, 0o755); err != nil {
		return err
	}
	l, err := trial.OpenLog[settings, record](o.log, o.settings)
	if err != nil {
		return err
	}
	var stop context.CancelFunc
	o.clock, ctx, stop = trial.NewClock(ctx, o.limit)
	defer stop()
	err = o.make(ctx, l)
	return errors.Join(o.print(l), err) // a run that was cut short leaves the rows that it has
}

// make trains the teacher, then the students of all seeds, then all ways.
func (o *options) make(ctx context.Context, l *trial.Log[settings, record]) error {
	if err := o.prepare(); err != nil {
		return err
	}
	if err := o.teacher(ctx, l); err != nil {
		return err
	}
	if _, err := trial.Each(ctx, o.clock, o.Jobs, o.seeds, func(ctx context.Context, seed int) error {
		return o.once(ctx, l, warmName, seed, func(dir string) (record, error) {
			return o.student(ctx, dir, seed, o.Warm, "2e-3", "--alpha", "0", "--student-config", o.file("student.json"))
		})
	}); err != nil {
		return err
	}
	type job struct {
		way
		seed int
	}
	var jobs []job
	for _, seed := range o.seeds {
		for _, w := range ways {
			jobs = append(jobs, job{w, seed})
		}
	}
	left, err := trial.Each(ctx, o.clock, o.Jobs, jobs, func(ctx context.Context, j job) error {
		return o.once(ctx, l, j.name, j.seed, func(dir string) (record, error) {
			rate := strconv.FormatFloat(o.Rate, 'g', -1, 64)
			return o.student(ctx, dir, j.seed, o.Steps, rate,
				append([]string{"--student", filepath.Join(o.dir(warmName, j.seed), "student.apr")}, j.args...)...)
		})
	})
	if err == nil && left > 0 {
		err = fmt.Errorf("%d runs were left out: the time was up", left)
	}
	return err
}

func (o *options) file(name string) string { return filepath.Join(o.work, name) }

// dir is the folder of a run.
func (o *options) dir(how string, seed int) string {
	name := strings.NewReplacer(" ", "-", ",", "", ":", "").Replace(how)
	return o.file(fmt.Sprintf("%s-%d", name, seed))
}

// once makes a run that the log does not have, and writes it down. The warm students are also needed as files.
func (o *options) once(ctx context.Context, l *trial.Log[settings, record], how string, seed int,
	make func(dir string) (record, error),
) error {
	dir := o.dir(how, seed)
	known := slices.ContainsFunc(l.All(), func(r record) bool { return r.How == how && r.Seed == seed })
	if _, err := os.Stat(filepath.Join(dir, "student.apr")); known && (err == nil || how != warmName) {
		return nil
	}
	r, err := make(dir)
	if trial.Diverged(err) {
		r.Ended, err = trial.Why(err), nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s, seed %d: %w", how, seed, err)
	}
	r.How, r.Seed = how, seed
	fmt.Fprintf(os.Stderr, "%s, seed %d: %.1f %% right, KL %.4f, %.0f s %s\n", how, seed, 100*r.Right, r.KL,
		r.Seconds, r.Ended)
	if known {
		return nil
	}
	return l.Append(r)
}

// result has the fields of apr distill's JSON that the table needs.
type result struct {
	Steps       int     `json:"steps_completed"`
	Targets     int64   `json:"targets_seen"`
	InSteps     float64 `json:"seconds_in_steps"`
	Rate        float64 `json:"tokens_per_second"`
	Evaluations []struct {
		Name       string   `json:"name"`
		Nats       float64  `json:"nats_per_token"`
		KL         *float64 `json:"kl"`
		Acceptance *float64 `json:"acceptance"`
	} `json:"evaluations"`
}

// student trains a student with a row for each problem, and judges it.
func (o *options) student(ctx context.Context, dir string, seed, steps int, rate string,
	args ...string) (record, error) {
	begun := time.Now()
	args = append([]string{"distill", o.teacherFile, "--seed", strconv.Itoa(seed), "--steps", strconv.Itoa(steps),
		"--batch-size", strconv.Itoa(o.Rows), "--seq-len", strconv.Itoa(o.Length), "--no-packing", "--learning-rate",
		rate}, args...)
	var r result
	err := trial.Run(ctx, trial.Share(o.Jobs), &r, o.apr, append(args, o.common(dir)...)...)
	if err != nil {
		return record{Seconds: time.Since(begun).Seconds()}, err
	}
	rec, err := o.judge(ctx, dir, r)
	rec.Seconds = time.Since(begun).Seconds()
	return rec, err
}

// common are options of every run.
func (o *options) common(dir string) []string {
	return []string{"--data", o.file("train.jsonl"), "--eval-data", o.file("held.jsonl"), "--chat-template",
		o.file("plain.jinja"),
		"--output", dir, "--force", "--eval-every", "0", "--samples", "0", "--control", "none", "--backend", o.Backend,
		"--json", "--quiet", "--no-progress"}
}

// judge asks the questions.
func (o *options) judge(ctx context.Context, dir string, r result) (record, error) {
	rec := record{Steps: r.Steps, Targets: r.Targets, InSteps: r.InSteps}
	for _, e := range r.Evaluations {
		if e.Name != "distilled student" {
			continue
		}
		if rec.Nats = e.Nats; e.KL != nil && e.Acceptance != nil {
			rec.KL, rec.Acceptance = *e.KL, *e.Acceptance
		}
	}
	var asked struct {
		Accuracy float64 `json:"accuracy"`
	}
	err := trial.Run(ctx, trial.Share(o.Jobs), &asked, o.apr, "eval", filepath.Join(dir, "student.apr"), "--task",
		"countdown",
		"--data", o.file("questions.jsonl"), "--max-tokens", "40", "--backend", o.Backend, "--json", "--quiet",
		"--no-progress")
	rec.Right = asked.Accuracy
	return rec, err
}
