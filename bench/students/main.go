// Command students trains students of every kind from one teacher with equal tokens, and makes one table of them:
//
//	students [-apr bin/apr] [-tokens N] [-seeds 1,2,3] [-rates .5,1,2] [-backend cuda] [-jobs N] [-limit 7m] -log FILE.jsonl
//	students -table FILE.jsonl [-docs docs/students.md]
//	students -speeds FILE.jsonl [-backend cuda] [-limit 2m]
//
// Everything is done by the program apr. Each run that ends is a line of the log, and is not repeated when the
// command is started again with the same settings; a run that was refused or failed is. -table makes the table out
// of a log and runs nothing. docs/students.md says how each row is made. -speeds measures what a step with adapters or
// in blocks costs beside one of the whole student in 16 bits, and ends with 1 if that is more than it may.
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
	"time"

	"apr/bench/trial"
)

// settings are what all runs of a log share.
type settings struct {
	Name            string  `json:"name"`
	Machine         string  `json:"machine"`
	Teacher         string  `json:"teacher"` // hash of the file
	Data            string  `json:"data"`
	Held            string  `json:"held"`
	Backend         string  `json:"backend"`
	Tokens          int     `json:"tokens"`
	Rows            int     `json:"batch_size"`
	Length          int     `json:"seq_len"`
	Layers          int     `json:"layers"`             // 0: half of the teacher's
	Hidden          int     `json:"hidden"`             // 0: the teacher's
	Calibration     int     `json:"calibration_tokens"` // 0: as apr prune does
	Alpha           float64 `json:"alpha"`
	HiddenWeight    float64 `json:"hidden_weight"`
	AttentionWeight float64 `json:"attention_weight"`
	Jobs            int     `json:"jobs"`
}

// options are the flags.
type options struct {
	settings
	apr, teacher, data, held, log, table, docs, work string
	speeds, speedsModel                              string
	only                                             []string
	seeds                                            []int
	rates                                            []float64
	limit                                            time.Duration
	keep                                             bool
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "students:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "students:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{}
	var seeds, rates, only string
	f := flag.NewFlagSet("students", flag.ContinueOnError)
	f.StringVar(&o.apr, "apr", "bin/apr", "the program")
	f.StringVar(&o.teacher, "teacher", "examples/gosrc/teacher.apr", "the teacher, one file")
	f.StringVar(&o.data, "data", "examples/gosrc/data/gosrc-train-sample.jsonl.zst", "text to train on: JSON lines with path and text, also .zst")
	f.StringVar(&o.held, "held", "examples/gosrc/data/gosrc-val.jsonl.zst", "held-out text")
	f.StringVar(&o.log, "log", "", "file of JSON lines to write, or to go on with")
	f.StringVar(&o.table, "table", "", "make the table of this log, and run nothing")
	f.StringVar(&o.docs, "docs", "", "document whose table is rewritten; else it is printed")
	f.StringVar(&o.speeds, "speeds", "", "measure speeds into this file of JSON lines, and train nothing")
	f.StringVar(&o.speedsModel, "speeds-model", "", "measure steps of this model, not of published shapes")
	f.StringVar(&o.work, "work", "", "folder for starts, second teachers and runs (default: the log's name with .work)")
	f.StringVar(&o.Name, "name", "", "name of the table (default: the name of the teacher's file)")
	f.StringVar(&o.Machine, "machine", "", "what the machine is called (default: processors and system)")
	f.StringVar(&o.Backend, "backend", "auto", "backend of training and scores: auto, cuda or cpu")
	f.IntVar(&o.Tokens, "tokens", 1310720, "tokens of a run")
	f.IntVar(&o.Rows, "batch-size", 4, "rows of a step")
	f.IntVar(&o.Length, "seq-len", 256, "tokens of a row")
	f.IntVar(&o.Layers, "layers", 0, "layers of students (default: half of the teacher's)")
	f.IntVar(&o.Hidden, "hidden", 0, "hidden width of students (default: the teacher's)")
	f.IntVar(&o.Calibration, "calibration-tokens", 0, "tokens that pruning measures importance on (default: those of apr prune)")
	f.Float64Var(&o.Alpha, "alpha", .9, "weight of the teacher's word against the text's")
	f.Float64Var(&o.HiddenWeight, "hidden-weight", .1, "--hidden-weight of the students that compare hidden states")
	f.Float64Var(&o.AttentionWeight, "attention-weight", .1, "--attention-weight of the students that compare attention maps")
	f.StringVar(&seeds, "seeds", "1,2,3", "seeds, separated by commas")
	f.StringVar(&rates, "rates", "1", "factors of each variant's learning rate; the first seed tries all, the others take its best")
	f.StringVar(&only, "only", "", "variants, separated by commas (default: all)")
	f.IntVar(&o.Jobs, "jobs", 1, "runs at a time")
	f.DurationVar(&o.limit, "limit", 0, "end after this time, with what is done")
	f.BoolVar(&o.keep, "keep", false, "keep the folders of runs")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q is no flag", f.Arg(0))
	}
	if o.table == "" && o.log == "" && o.speeds == "" {
		return nil, fmt.Errorf("-log FILE is needed, or -table FILE, or -speeds FILE")
	}
	if !(o.Tokens > 0 && o.Rows > 0 && o.Length > 0 && o.Jobs > 0) {
		return nil, fmt.Errorf("-tokens, -batch-size, -seq-len and -jobs are at least 1")
	}
	return o, o.lists(seeds, rates, only)
}

// lists reads flags that are lists.
func (o *options) lists(seeds, rates, only string) error {
	for _, s := range strings.Split(seeds, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return fmt.Errorf("-seeds %s: %q is no seed", seeds, s)
		}
		o.seeds = append(o.seeds, n)
	}
	for _, s := range strings.Split(rates, ",") {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || !(x > 0) {
			return fmt.Errorf("-rates %s: %q is no factor", rates, s)
		}
		o.rates = append(o.rates, x)
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if _, ok := variantOf(name); !ok {
			return fmt.Errorf("-only: %q is none of %s", name, names())
		}
	}
	return nil
}

func (o *options) run(ctx context.Context) error {
	if o.speeds != "" {
		return o.runSpeeds(ctx)
	}
	if o.table != "" {
		l, err := trial.ReadLog[settings, record](o.table)
		if err != nil {
			return err
		}
		return o.write(l)
	}
	if err := o.complete(); err != nil {
		return err
	}
	l, err := trial.OpenLog[settings, record](o.log, o.settings)
	if err != nil {
		return err
	}
	if err := o.trainAll(ctx, l); err != nil {
		return err
	}
	return o.write(l)
}

// complete fills settings that follow from files and the machine.
func (o *options) complete() (err error) {
	for path, hash := range map[string]*string{o.teacher: &o.settings.Teacher, o.data: &o.settings.Data, o.held: &o.settings.Held} {
		if *hash, err = trial.Hash(path); err != nil {
			return err
		}
	}
	if o.Name == "" {
		o.Name = strings.TrimSuffix(filepath.Base(o.teacher), filepath.Ext(o.teacher))
	}
	if o.Machine == "" {
		o.Machine = trial.Machine()
	}
	if o.work == "" {
		o.work = strings.TrimSuffix(o.log, ".jsonl") + ".work"
	}
	return os.MkdirAll(o.work, 0o755)
}

// write makes the table.
func (o *options) write(l *trial.Log[settings, record]) error {
	text := table(l.Settings, l.All())
	if o.docs == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	return trial.Replace(o.docs, "students "+l.Settings.Name, text)
}
