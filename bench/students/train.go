package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"apr/bench/trial"
)

// How a run ended.
const (
	done     = "done"
	refused  = "refused"  // the program does not have it
	diverged = "diverged" // the learning rate was too large
	failed   = "failed"
)

// record is a line of the log: one run. Nats, KL and Top1 are of the held-out text, beside the teacher of the table.
type record struct {
	Variant string  `json:"variant"`
	Seed    int     `json:"seed"`
	Factor  float64 `json:"factor"` // of the learning rate
	Rate    float64 `json:"rate"`
	Status  string  `json:"status"`
	Why     string  `json:"why,omitempty"`

	Nats        float64 `json:"nats,omitempty"`
	KL          float64 `json:"kl,omitempty"`
	Top1        float64 `json:"top1,omitempty"`
	TeacherNats float64 `json:"teacher_nats,omitempty"`
	Tokens      int     `json:"tokens,omitempty"`
	Seconds     float64 `json:"seconds,omitempty"`  // in steps
	Prepared    float64 `json:"prepared,omitempty"` // seconds of pruning
	Curve       []point `json:"curve,omitempty"`    // held-out score on the way, from before the first step on; in turns, from the last cut on
}

type point struct {
	Tokens int     `json:"tokens"`
	Nats   float64 `json:"nats"`
}

// String is a line of progress.
func (r record) String() string {
	text := fmt.Sprintf("%s, seed %d, rate %g: %s", r.Variant, r.Seed, r.Rate, r.Status)
	if r.Status != done {
		return text + ": " + r.Why
	}
	return fmt.Sprintf("%s, %.4f nats, KL %.4f, %.1f s", text, r.Nats, r.KL, r.Seconds)
}

// job is a run to make.
type job struct {
	variant
	seed   int
	factor float64
}

// trainAll makes all runs that the log lacks: the first seed with all learning rates, then the others with the best
// of each variant.
func (o *options) trainAll(ctx context.Context, l *trial.Log[settings, record]) error {
	w := &workshop{options: o, into: l, made: map[string]*piece{}}
	clock, ctx, stop := trial.NewClock(ctx, o.limit)
	defer stop()
	left := 0
	for i, list := range [][]int{o.seeds[:1], o.seeds[1:]} {
		var jobs []job
		for _, seed := range list {
			for _, v := range o.chosen() {
				factors := o.rates
				if i > 0 {
					factors = best(l.All(), v.name, o.seeds[0])
				}
				for _, f := range factors {
					if !finished(l.All(), v.name, seed, f) {
						jobs = append(jobs, job{variant: v, seed: seed, factor: f})
					}
				}
			}
		}
		n, err := trial.Each(ctx, clock, o.Jobs, jobs, func(ctx context.Context, j job) error {
			r := w.train(ctx, j)
			if ctx.Err() != nil && r.Status != done {
				return nil // cut off: it says nothing
			}
			fmt.Fprintln(os.Stderr, r)
			return l.Append(r)
		})
		if err != nil {
			return err
		}
		left += n
	}
	if left > 0 {
		fmt.Fprintf(os.Stderr, "%d runs did not begin in time: start the same command again\n", left)
	}
	return nil
}

// chosen are the variants that were asked for.
func (o *options) chosen() (list []variant) {
	for _, v := range variants {
		if len(o.only) == 0 || slices.Contains(o.only, v.name) {
			list = append(list, v)
		}
	}
	return list
}

// finished reports whether the log has the run, with a result.
func finished(all []record, name string, seed int, factor float64) bool {
	return slices.ContainsFunc(all, func(r record) bool {
		return r.Variant == name && r.Seed == seed && r.Factor == factor && (r.Status == done || r.Status == diverged)
	})
}

// best is the factor of the learning rate with which the variant scored best at a seed; none if nothing is done.
func best(all []record, name string, seed int) []float64 {
	var of []record
	for _, r := range all {
		if r.Variant == name && r.Seed == seed && r.Status == done {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		return nil
	}
	return []float64{slices.MinFunc(of, func(a, b record) int { return cmp.Compare(a.Nats, b.Nats) }).Factor}
}

// train makes one run.
func (w *workshop) train(ctx context.Context, j job) record {
	r := record{Variant: j.name, Seed: j.seed, Factor: j.factor, Rate: j.rate * j.factor, Status: done}
	dir := filepath.Join(w.work, "runs", fmt.Sprintf("%s-%d-%g", j.name, j.seed, j.factor))
	err := w.trainIn(ctx, dir, j, &r)
	if err == nil && !w.keep {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		r.Status, r.Why = failed, trial.Why(err)
		switch {
		case trial.Refused(err):
			r.Status = refused
		case trial.Diverged(err):
			r.Status = diverged
		}
	}
	return r
}

func (w *workshop) trainIn(ctx context.Context, dir string, j job, r *record) error {
	p, err := w.prepare(ctx, j.variant)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r.Prepared = p.seconds
	model := ""
	if j.start == turns {
		model, err = w.inTurns(ctx, dir, j, r)
	} else {
		model = filepath.Join(dir, "run", "student.apr")
		err = w.leg(ctx, filepath.Join(dir, "run"), j, p, j.tokens(w.Tokens), r)
	}
	if err != nil {
		return err
	}
	return w.score(ctx, model, r)
}

// inTurns cuts a third of the layers to be cut, trains with a third of the tokens, and so on.
func (w *workshop) inTurns(ctx context.Context, dir string, j job, r *record) (string, error) {
	_, s, err := w.teacherConfig(ctx)
	if err != nil {
		return "", err
	}
	list := schedule(s.Layers, w.layers(s))
	model := w.teacher
	for i, n := range list {
		hidden := 0
		if i == len(list)-1 {
			hidden = w.Hidden
		}
		start := filepath.Join(dir, fmt.Sprintf("start-%d.apr", i))
		if err := os.RemoveAll(start); err != nil {
			return "", err
		}
		before := time.Now()
		if err := w.cut(ctx, model, start, n, hidden); err != nil {
			return "", err
		}
		r.Prepared += time.Since(before).Seconds()
		tokens := j.tokens(w.Tokens)*(i+1)/len(list) - j.tokens(w.Tokens)*i/len(list)
		run := filepath.Join(dir, fmt.Sprintf("run-%d", i))
		if err := w.leg(ctx, run, j, files{start: start}, tokens, r); err != nil {
			return "", err
		}
		model = filepath.Join(run, "student.apr")
	}
	return model, nil
}

// schedule is how many layers are left after each of at most three turns.
func schedule(from, to int) (list []int) {
	n := min(3, from-to)
	for i := 1; i <= n; i++ {
		list = append(list, from-(from-to)*i/n)
	}
	return list
}

// leg trains the student of a job in the folder run.
func (w *workshop) leg(ctx context.Context, run string, j job, p files, tokens int, r *record) error {
	args := append([]string{"distill"}, j.args(w.options, p)...)
	return w.trainLeg(ctx, run, append(args, w.common(run, tokens, r.Rate, j.seed)...), r)
}

// trainLeg runs apr distill, and adds what it took to r.
func (w *workshop) trainLeg(ctx context.Context, run string, args []string, r *record) error {
	var result struct {
		Tokens      int     `json:"tokens_seen"`
		Seconds     float64 `json:"seconds_in_steps"`
		Evaluations []struct {
			Name string  `json:"name"`
			Nats float64 `json:"nats_per_token"`
		} `json:"evaluations"`
	}
	if err := w.apr(ctx, &result, args...); err != nil {
		return err
	}
	curve, err := curveOf(filepath.Join(run, "events.jsonl"), w.Rows*w.Length)
	if err != nil {
		return err
	}
	for _, e := range result.Evaluations {
		switch e.Name {
		case "untrained student":
			curve = append([]point{{Nats: e.Nats}}, curve...)
		case "distilled student":
			curve = append(curve, point{Tokens: result.Tokens, Nats: e.Nats})
		}
	}
	r.Curve = nil // of a student that is cut again nothing is left: its size was another
	for _, c := range curve {
		r.Curve = append(r.Curve, point{Tokens: r.Tokens + c.Tokens, Nats: c.Nats})
	}
	r.Tokens += result.Tokens
	r.Seconds += result.Seconds
	return nil
}

// curvePoints is how often a student is scored on the way.
const curvePoints = 20

// common are the flags that all trainings share.
func (o *options) common(run string, tokens int, rate float64, seed int) []string {
	steps := max(1, tokens/(o.Rows*o.Length))
	return []string{"--eval-data", o.held, "--steps", strconv.Itoa(steps), "--batch-size", strconv.Itoa(o.Rows), "--seq-len", strconv.Itoa(o.Length),
		"--learning-rate", number(rate), "--warmup-ratio", "0.1", "--beta2", "0.99", "--seed", strconv.Itoa(seed), "--backend", o.Backend,
		"--control", "none", "--samples", "0", "--probe", "off", "--eval-every", strconv.Itoa(max(1, steps/curvePoints)),
		"--checkpoint-every", "0", "--checkpoint-interval", "0", "-o", run, "--force", "--json", "--quiet"}
}

// curveOf reads the held-out scores on the way from the events of a run.
func curveOf(path string, tokensPerStep int) (list []point, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Kind   string          `json:"kind"`
			Name   string          `json:"name"`
			Detail json.RawMessage `json:"detail"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if e.Kind != "evaluation" || e.Name != "held-out during training" {
			continue
		}
		var d struct {
			Step int     `json:"step"`
			Nats float64 `json:"nats_per_token"`
		}
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, point{Tokens: d.Step * tokensPerStep, Nats: d.Nats})
	}
	return list, lines.Err()
}

// score compares a student with the teacher of the table, whoever taught it.
func (w *workshop) score(ctx context.Context, model string, r *record) error {
	var s struct {
		Nats    *float64 `json:"nats_per_token"`
		KL      *float64 `json:"kl"`
		Top1    *float64 `json:"top1_agreement"`
		Teacher *float64 `json:"teacher_nats_per_token"`
	}
	err := w.apr(ctx, &s, "eval", model, "--data", w.held, "--seq-len", strconv.Itoa(w.Length), "--teacher", w.teacher, "--backend", w.Backend, "--json")
	if err != nil {
		return err
	}
	for to, from := range map[*float64]*float64{&r.Nats: s.Nats, &r.KL: s.KL, &r.Top1: s.Top1, &r.TeacherNats: s.Teacher} {
		if from == nil || math.IsNaN(*from) {
			return errors.New("apr eval printed a score less than nats_per_token, kl, top1_agreement and teacher_nats_per_token")
		}
		*to = *from
	}
	return nil
}
