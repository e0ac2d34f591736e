// Command quantaware makes the table of quantised students: for each type what quantising a model loses as it is
// (plain), with errors weighed by activations (weighted), by llama.cpp, and after the model has taught its own
// blocks (distilled).
//
//	quantaware [-types q2_k,q3_k_m,q4_0,q4_k_m] [-steps N] [-seeds 1,2,3] [-rates 3e-5,1e-4:0] [-backend cpu] [-jobs N]
//	           [-limit 7m] [-log FILE.jsonl] [-llama-cpp COMMAND] MODEL TEXT HELD-OUT
//	quantaware -table FILE.jsonl [-docs FILE]
//
// Everything is run by the program itself (-apr, bin/apr unless said otherwise), and scored by apr eval on the
// exported GGUF file, beside MODEL. Of several seeds the table has the mean and half the range. Each file that was
// scored is a line of the log, and is not made again when the command is started again with the same settings.
//
// A rate is RATE, RATE:FRACTION, RATE@ROWS or RATE:FRACTION@ROWS: a peak learning rate, the fraction of it at which the
// cosine ends (else .1), and the rows of a step (else those of -batch-size; the tokens of a run stay as they are). The
// first seed tries all rates for each type; the other seeds take the type's best, which is the one of the lowest KL.
// COMMAND starts a program of llama.cpp by its name after "llama-", as in COMMAND quantize.
package main

import (
	"context"
	"errors"
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

// settings are what all rows of a log share.
type settings struct {
	Machine string `json:"machine"`
	Model   string `json:"model"`
	Text    string `json:"text"` // hash of the file
	Held    string `json:"held"`
	Steps   int    `json:"steps"`
	Rows    int    `json:"batch_size"`
	Length  int    `json:"seq_len"`
	Every   string `json:"search_every"`
	Backend string `json:"backend"`
	Scored  string `json:"score_backend"`
	Jobs    int    `json:"jobs"`
}

// options are the flags and arguments.
type options struct {
	settings
	apr, llama, keep, log, table, docs string
	model, text, held                  string
	types, rates                       []string
	seeds                              []int
	limit                              time.Duration
}

func main() {
	var o options
	var types, seeds, rates string
	flag.StringVar(&o.apr, "apr", "bin/apr", "the program")
	flag.StringVar(&types, "types", "q2_k,q3_k_m,q4_0,q4_k_m", "types, separated by commas")
	flag.StringVar(&seeds, "seeds", "42", "seeds of distillation, separated by commas")
	flag.StringVar(&o.llama, "llama-cpp", "", "command that starts programs of llama.cpp; without it their rows are left out")
	flag.StringVar(&o.Every, "search-every", "", "--quantize-search-every; empty: its default")
	flag.StringVar(&rates, "rates", "", "learning rates, RATE[:FRACTION][@ROWS], separated by commas; empty: the default")
	flag.StringVar(&o.keep, "keep", "", "folder in which files and runs stay")
	flag.StringVar(&o.log, "log", "", "file of JSON lines to write, or to go on with")
	flag.StringVar(&o.table, "table", "", "make the table of this log, and run nothing")
	flag.StringVar(&o.docs, "docs", "", "document whose table is rewritten; else it is printed")
	flag.StringVar(&o.Backend, "backend", "auto", "backend of training: auto, cuda or cpu")
	flag.StringVar(&o.Scored, "score-backend", "cpu", "backend of scores; cpu computes them in float32")
	flag.StringVar(&o.Machine, "machine", "", "what the machine is called (default: processors and system)")
	flag.IntVar(&o.Steps, "steps", 350, "steps of distillation")
	flag.IntVar(&o.Rows, "batch-size", 8, "rows of a step")
	flag.IntVar(&o.Length, "seq-len", 512, "tokens of a row")
	flag.IntVar(&o.Jobs, "jobs", 1, "runs at a time")
	flag.DurationVar(&o.limit, "limit", 0, "end after this time, with what is done")
	flag.Parse()
	if flag.NArg() != 3 && o.table == "" || flag.NArg() > 0 && o.table != "" {
		flag.Usage()
		os.Exit(2)
	}
	o.model, o.text, o.held = flag.Arg(0), flag.Arg(1), flag.Arg(2)
	if err := o.lists(types, seeds, rates); err != nil {
		fmt.Fprintln(os.Stderr, "quantaware:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "quantaware:", err)
		os.Exit(1)
	}
}

// lists reads flags that are lists.
func (o *options) lists(types, seeds, rates string) error {
	o.types, o.rates = strings.Split(types, ","), strings.Split(rates, ",")
	for _, text := range strings.Split(seeds, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-seeds %s: %q is no seed from 1 on", seeds, text)
		}
		o.seeds = append(o.seeds, n)
	}
	for _, r := range o.rates {
		if _, err := parseRate(r); err != nil {
			return fmt.Errorf("-rates %s: %w", rates, err)
		}
	}
	return nil
}

func (o *options) run(ctx context.Context) (err error) {
	if o.table != "" {
		l, err := trial.ReadLog[settings, record](o.table)
		if err != nil {
			return err
		}
		return o.write(l)
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "quantaware"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for path, hash := range map[string]*string{o.text: &o.Text, o.held: &o.Held} {
		if *hash, err = trial.Hash(path); err != nil {
			return err
		}
	}
	if o.Machine == "" {
		o.Machine = trial.Machine()
	}
	o.Model = filepath.Base(o.model)
	if o.log == "" {
		o.log = filepath.Join(dir, "rows.jsonl")
	}
	l, err := trial.OpenLog[settings, record](o.log, o.settings)
	if err != nil {
		return err
	}
	err = (&table{options: o, dir: dir, log: l}).make(ctx)
	return errors.Join(o.write(l), err) // a run that was cut short leaves the rows that it has
}

// write prints the table, or puts it into a document.
func (o *options) write(l *trial.Log[settings, record]) error {
	text := markdown(l.Settings, l.All())
	if o.docs == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	return trial.Replace(o.docs, "quantaware "+l.Settings.Model, text)
}

// markdown is the table of a log, and where there are several rates one of these.
func markdown(s settings, all []record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**, on %s (backend %s, runs at a time: %d); %d steps of %d rows of %d, "+
		"or as many tokens.\n\n",
		s.Model, s.Machine, s.Backend, s.Jobs, s.Steps, s.Rows, s.Length)
	b.WriteString("| type | made by | rate | seeds | MB | KL | nats/token | top-1 | tokens | minutes |\n" +
		"|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	several := false
	for _, tried := range group(all) {
		rows := best(tried)
		several = several || len(rows) < len(tried)
		if len(rows) == 0 {
			continue
		}
		var kl, nats, top1, minutes []float64
		for _, r := range rows {
			kl, nats, top1, minutes = append(kl, r.KL), append(nats, r.Nats), append(top1, 100*r.Top1), append(minutes, r.Seconds/60)
		}
		first, seeds, count := rows[0], "", ""
		if first.Tokens > 0 {
			seeds, count = strconv.Itoa(len(rows)), fmt.Sprintf("%.2fM", float64(first.Tokens)/1e6)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.2f | %s | %s | %s %% | %s | %s |\n", first.Type, first.How, first.rate(),
			seeds, float64(first.Bytes)/1e6, trial.Spread(kl, 4), trial.Spread(nats, 4), trial.Spread(top1, 1), count,
			trial.Spread(minutes, 1))
	}
	if several {
		b.WriteString(ratesTable(all))
	}
	return b.String()
}

// ratesTable lists every rate that was tried.
func ratesTable(all []record) string {
	var b strings.Builder
	b.WriteString("\nRates that were tried:\n\n| type | rate | seed | KL | nats/token |\n|---|---|--:|--:|--:|\n")
	for _, rows := range group(all) {
		for _, r := range rows {
			switch {
			case r.How != distilled:
			case r.Diverged:
				fmt.Fprintf(&b, "| %s | %s | %d | diverged | |\n", r.Type, r.rate(), r.Seed)
			default:
				fmt.Fprintf(&b, "| %s | %s | %d | %.4f | %.4f |\n", r.Type, r.rate(), r.Seed, r.KL, r.Nats)
			}
		}
	}
	return b.String()
}
