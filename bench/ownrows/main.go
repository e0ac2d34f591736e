// Command ownrows compares what a student learns from its teacher on text of the data and on text of its own, with
// equal tokens: cross-entropy on the data, the teacher on the data (forward and reverse KL), the teacher on the
// student's rows (over the whole vocabulary, and by the drawn token alone), and half of each.
//
//	ownrows [-apr bin/apr] [-backend B] [-seeds 1,2] [-jobs N] [-warm N] [-steps N] [-docs FILE] TEACHER CONFIG TEXT
//
// All ways begin with one student that a seed and N steps of cross-entropy made: a new one would write noise. The
// table has means over seeds and half of their range.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"apr/bench/trial"
)

// options are the flags and arguments.
type options struct {
	apr, backend, seeds, docs, dir string
	jobs, warm, steps              int
	teacher, config, text          string
}

// way is a way to teach.
type way struct {
	name string
	args []string
}

// own are the options of rows that the student writes.
func own(fraction string, more ...string) []string {
	all := []string{"--on-policy", fraction, "--on-policy-prompt-tokens", "32", "--on-policy-max-tokens", "97"}
	return append(all, more...)
}

var ways = []way{
	{"cross-entropy on the data", []string{"--alpha", "0"}},
	{"teacher on the data, forward KL", []string{"--alpha", "1"}},
	{"teacher on the data, reverse KL", []string{"--alpha", "1", "--divergence", "reverse-kl"}},
	{"teacher on own text, whole vocabulary", own("1")},
	{"teacher on own text, drawn token", own("1", "--on-policy-estimator", "sampled")},
	{"half of each, whole vocabulary", own("0.5")},
}

// result is what is read of a run.
type result struct {
	Nats    float64 `json:"val_nats_per_token"`
	KL      float64 `json:"val_kl"`
	Top1    float64 `json:"val_top1_agreement"`
	Targets int64   `json:"targets_seen"`
	Seconds float64 `json:"in_steps_seconds"`
	All     float64 `json:"duration_seconds"`
}

func main() {
	var o options
	flag.StringVar(&o.apr, "apr", "bin/apr", "the program")
	flag.StringVar(&o.backend, "backend", "auto", "backend of all runs")
	flag.IntVar(&o.jobs, "jobs", 1, "seeds at a time")
	flag.StringVar(&o.seeds, "seeds", "1,2", "seeds, separated by commas")
	flag.StringVar(&o.docs, "docs", "", "page whose table is replaced; empty: the table is printed")
	flag.StringVar(&o.dir, "dir", "", "folder of the runs; empty: a temporary one")
	flag.IntVar(&o.warm, "warm", 300, "steps of cross-entropy before")
	flag.IntVar(&o.steps, "steps", 100, "steps of each way")
	flag.Parse()
	if flag.NArg() != 3 {
		flag.Usage()
		os.Exit(2)
	}
	o.teacher, o.config, o.text = flag.Arg(0), flag.Arg(1), flag.Arg(2)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ownrows:", err)
		os.Exit(1)
	}
}

// run makes all runs and the table.
func (o *options) run(ctx context.Context) error {
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "ownrows")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	seeds := strings.Split(o.seeds, ",")
	for _, seed := range seeds {
		if _, err := strconv.ParseUint(seed, 10, 63); err != nil {
			return fmt.Errorf("-seeds: %q is no seed", seed)
		}
	}
	all := make([][]result, len(ways)+1)
	for i := range all {
		all[i] = make([]result, len(seeds))
	}
	clock, ctx, stop := trial.NewClock(ctx, 0)
	defer stop()
	which := make([]int, len(seeds))
	for i := range which {
		which[i] = i
	}
	if _, err := trial.Each(ctx, clock, o.jobs, which, func(ctx context.Context, i int) error {
		return o.seed(ctx, seeds[i], func(way int, r result) { all[way][i] = r })
	}); err != nil {
		return err
	}
	text := table(all)
	if o.docs == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	return trial.Replace(o.docs, "ownrows", text)
}

// seed makes the runs of a seed: way 0 is what all others begin with.
func (o *options) seed(ctx context.Context, seed string, keep func(way int, r result)) error {
	begin := filepath.Join(o.dir, "warm-"+seed)
	r, err := o.distill(ctx, begin, seed, o.warm, "3e-3", "--student-config", o.config, "--alpha", "0")
	if err != nil {
		return err
	}
	keep(0, r)
	for i, w := range ways {
		args := append([]string{"--student", filepath.Join(begin, "student.apr")}, w.args...)
		to := filepath.Join(o.dir, fmt.Sprintf("%d-%s", i, seed))
		if r, err = o.distill(ctx, to, seed, o.steps, "5e-4", args...); err != nil {
			return err
		}
		keep(i+1, r)
		fmt.Fprintf(os.Stderr, "seed %s, %s: %.4f nats, KL %.4f, %.0f s\n", seed, w.name, r.Nats, r.KL, r.All)
	}
	return nil
}

// distill makes a run.
func (o *options) distill(ctx context.Context, dir, seed string, steps int, rate string, args ...string) (
	result, error,
) {
	var r result
	args = append([]string{"distill", o.teacher, "--data", o.text, "--output", dir, "--seed", seed,
		"--steps", strconv.Itoa(steps), "--batch-size", "8", "--seq-len", "128", "--learning-rate", rate,
		"--eval-every", "0", "--samples", "0", "--control", "none", "--backend", o.backend, "--json", "--quiet"}, args...)
	err := trial.Run(ctx, trial.Share(o.jobs), &r, o.apr, args...)
	return r, err
}

// table is the table in Markdown.
func table(all [][]result) string {
	var b strings.Builder
	b.WriteString("| | nats/token | KL from the teacher | teacher's first id | targets | s |\n|---|--:|--:|--:|--:|--:|\n")
	for i, rs := range all {
		name := "before"
		if i > 0 {
			name = ways[i-1].name
		}
		of := func(f func(result) float64) (v []float64) {
			for _, r := range rs {
				v = append(v, f(r))
			}
			return v
		}
		nats, kl := of(func(r result) float64 { return r.Nats }), of(func(r result) float64 { return r.KL })
		top1 := of(func(r result) float64 { return 100 * r.Top1 })
		targets, all := of(func(r result) float64 { return float64(r.Targets) }), of(func(r result) float64 { return r.All })
		fmt.Fprintf(&b, "| %s | %s | %s | %s %% | %.0f | %.0f |\n", name, trial.Spread(nats, 4), trial.Spread(kl, 4),
			trial.Spread(top1, 2), trial.Mean(targets), trial.Mean(all))
	}
	return b.String()
}
