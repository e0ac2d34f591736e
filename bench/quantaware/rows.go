package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"apr/bench/trial"
)

// Ways to make a quantised model, in the order of the table.
const (
	whole     = "" // it is not quantised
	llamaCpp  = "llama-cpp"
	plain     = "plain"
	weighted  = "weighted"
	distilled = "distilled"
)

// record is a line of the log: one file, scored.
type record struct {
	Type    string  `json:"type"`
	How     string  `json:"how"`
	Seed    int     `json:"seed,omitempty"`
	Rate    string  `json:"rate,omitempty"` // of -rates; empty: the default
	Bytes   int64   `json:"bytes"`
	KL      float64 `json:"kl"`
	Nats    float64 `json:"nats"`
	Top1    float64 `json:"top1"`
	Tokens  int     `json:"tokens,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // of quantising, or in steps

	Diverged bool `json:"diverged,omitempty"` // the rate was too high: there is no file
}

// same reports whether two records are of one row of the table.
func (r record) same(other record) bool { return r.Type == other.Type && r.How == other.How }

// rate is how a student of the log was trained, in words.
func (r record) rate() string {
	h, err := parseRate(r.Rate)
	switch {
	case r.How != distilled:
		return ""
	case err != nil || h == (how{}):
		return cmp.Or(r.Rate, "default")
	}
	text := h.peak
	if h.end != "" {
		text += " to " + h.end + " of it"
	}
	if h.rows > 0 {
		text += fmt.Sprintf(", %d rows", h.rows)
	}
	return text
}

// how is a rate of -rates, in parts; what it does not say is zero.
type how struct {
	peak, end string
	rows      int
}

// parseRate reads RATE[:FRACTION][@ROWS]; the empty rate says nothing.
func parseRate(text string) (h how, err error) {
	if text == "" {
		return h, nil
	}
	rest, rows, at := strings.Cut(text, "@")
	if at {
		if h.rows, err = strconv.Atoi(rows); err != nil || h.rows < 1 {
			return h, fmt.Errorf("%q is no number of rows", rows)
		}
	}
	peak, end, two := strings.Cut(rest, ":")
	if x, err := strconv.ParseFloat(peak, 64); err != nil || !(x > 0) {
		return h, fmt.Errorf("%q is no learning rate", peak)
	}
	if y, err := strconv.ParseFloat(end, 64); two && !(err == nil && y >= 0 && y <= 1) {
		return h, fmt.Errorf("%q is no fraction of the peak", end)
	}
	h.peak, h.end = peak, end
	return h, nil
}

// best are the records of a row with its best rate: that of the lowest KL among those of its first seed.
func best(rows []record) (of []record) {
	first := -1
	for i, r := range rows {
		if !r.Diverged && (first < 0 || r.Seed == rows[first].Seed && r.KL < rows[first].KL) {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	for _, r := range rows {
		if !r.Diverged && r.Rate == rows[first].Rate {
			of = append(of, r)
		}
	}
	return of
}

// table makes the files that a log lacks.
type table struct {
	*options
	dir   string
	log   *trial.Log[settings, record]
	whole string // the model as it is, in GGUF
}

// make makes all rows: those that take no training first, then students of the first seed with all rates, then those of
// the other seeds with each type's best.
func (t *table) make(ctx context.Context) error {
	t.whole = filepath.Join(t.dir, "model.gguf")
	if err := t.command(ctx, nil, t.apr, "export", t.model, "-o", t.whole, "--force"); err != nil {
		return err
	}
	jobs := []record{{Type: "unquantised", How: whole}}
	for _, name := range t.types {
		if t.llama != "" {
			jobs = append(jobs, record{Type: name, How: llamaCpp})
		}
		jobs = append(jobs, record{Type: name, How: plain}, record{Type: name, How: weighted})
	}
	for _, name := range t.types {
		for _, rate := range t.rates {
			jobs = append(jobs, record{Type: name, How: distilled, Seed: t.seeds[0], Rate: rate})
		}
	}
	clock, ctx, stop := trial.NewClock(ctx, t.limit)
	defer stop()
	if err := t.all(ctx, clock, jobs); err != nil || len(t.seeds) == 1 {
		return err
	}
	jobs = nil
	for _, seed := range t.seeds[1:] {
		for _, name := range t.types {
			if rows := best(t.of(name)); len(rows) > 0 {
				jobs = append(jobs, record{Type: name, How: distilled, Seed: seed, Rate: rows[0].Rate})
			}
		}
	}
	return t.all(ctx, clock, jobs)
}

// of are the records of a type's students.
func (t *table) of(name string) []record {
	return slices.DeleteFunc(t.log.All(), func(r record) bool { return r.Type != name || r.How != distilled })
}

// all makes those of jobs that the log lacks.
func (t *table) all(ctx context.Context, clock *trial.Clock, jobs []record) error {
	have := t.log.All()
	jobs = slices.DeleteFunc(jobs, func(j record) bool {
		return slices.ContainsFunc(have, func(r record) bool { return r.same(j) && r.Seed == j.Seed && r.Rate == j.Rate })
	})
	var mu sync.Mutex
	var wrong error
	left, err := trial.Each(ctx, clock, t.Jobs, jobs, func(ctx context.Context, r record) error {
		switch err := t.row(ctx, &r); {
		case err == nil:
			fmt.Fprintf(os.Stderr, "%s %s %s %d: KL %.4f, %.4f nats\n", r.Type, r.How, r.Rate, r.Seed, r.KL, r.Nats)
			return t.log.Append(r)
		case ctx.Err() != nil: // cut off: it says nothing
		case trial.Diverged(err):
			fmt.Fprintf(os.Stderr, "%s %s %s %d: diverged\n", r.Type, r.How, r.Rate, r.Seed)
			r.Diverged = true
			return t.log.Append(r)
		case trial.Refused(err):
			fmt.Fprintf(os.Stderr, "%s %s %s %d: refused: %s\n", r.Type, r.How, r.Rate, r.Seed, trial.Why(err))
		default: // the others go on
			mu.Lock()
			defer mu.Unlock()
			wrong = errors.Join(wrong, fmt.Errorf("%s %s: %w", r.Type, r.How, err))
		}
		return nil
	})
	if left > 0 {
		fmt.Fprintf(os.Stderr, "%d files were not begun in time: start the same command again\n", left)
	}
	return errors.Join(err, wrong)
}

// row makes a file, and scores it.
func (t *table) row(ctx context.Context, r *record) error {
	name := r.Type + "-" + r.How
	if r.Seed > 0 {
		name += "-seed" + strconv.Itoa(r.Seed)
	}
	if r.Rate != "" {
		name += "-" + strings.NewReplacer(":", "-to-", "@", "-rows-").Replace(r.Rate)
	}
	file := filepath.Join(t.dir, name+".gguf")
	start := time.Now()
	var err error
	switch r.How {
	case whole:
		file = t.whole
	case llamaCpp:
		words := strings.Fields(t.llama)
		err = t.command(ctx, nil, words[0], append(words[1:], "quantize", t.whole, file, strings.ToUpper(r.Type))...)
	case plain:
		err = t.command(ctx, nil, t.apr, "quantize", t.model, "-s", r.Type, "-o", file, "--force")
	case weighted:
		err = t.command(ctx, nil, t.apr, "quantize", t.model, "-s", r.Type, "-o", file, "-d", t.text, "--force")
	case distilled:
		err = t.distil(ctx, filepath.Join(t.dir, name), file, r)
	}
	if err != nil {
		return err
	}
	if r.How != distilled && r.How != whole {
		r.Seconds = time.Since(start).Seconds()
	}
	return t.score(ctx, file, r)
}

// distil trains a student in the folder run, and exports it to file.
func (t *table) distil(ctx context.Context, run, file string, r *record) error {
	h, err := parseRate(r.Rate)
	if err != nil {
		return err
	}
	rows := cmp.Or(h.rows, t.Rows)
	steps := max(1, t.Steps*t.Rows/rows)
	args := []string{"distill", t.model, "--quantize-aware", r.Type, "-d", t.text, "--eval-data", t.held,
		"-o", run, "--force", "--seed", strconv.Itoa(r.Seed), "--steps", strconv.Itoa(steps),
		"--batch-size", strconv.Itoa(rows), "--seq-len", strconv.Itoa(t.Length), "--backend", t.Backend,
		"--control", "none", "--samples", "0", "--eval-every", "0", "--json"}
	if t.Every != "" {
		args = append(args, "--quantize-search-every", t.Every)
	}
	if h.peak != "" {
		args = append(args, "--learning-rate", h.peak)
	}
	if h.end != "" {
		args = append(args, "--min-lr-ratio", h.end)
	}
	var result struct {
		Tokens  int     `json:"tokens_seen"`
		Seconds float64 `json:"seconds_in_steps"`
	}
	if err := t.command(ctx, &result, t.apr, args...); err != nil {
		return err
	}
	r.Tokens, r.Seconds = result.Tokens, result.Seconds
	return t.command(ctx, nil, t.apr, "export", filepath.Join(run, "student.apr"), "-o", file, "--force")
}

// score compares a file with the model.
func (t *table) score(ctx context.Context, file string, r *record) error {
	var s struct {
		KL   *float64 `json:"kl"`
		Nats *float64 `json:"nats_per_token"`
		Top1 *float64 `json:"top1_agreement"`
	}
	err := t.command(ctx, &s, t.apr, "eval", file, "--data", t.held, "--seq-len", strconv.Itoa(t.Length), "--teacher", t.model, "--backend", t.Scored, "--json")
	if err != nil {
		return err
	}
	for to, from := range map[*float64]*float64{&r.KL: s.KL, &r.Nats: s.Nats, &r.Top1: s.Top1} {
		if from == nil || math.IsNaN(*from) {
			return errors.New("apr eval printed a score less than kl, nats_per_token and top1_agreement")
		}
		*to = *from
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	r.Bytes = st.Size()
	return nil
}

// command runs a program, and reads the JSON that it prints into result unless that is nil.
func (t *table) command(ctx context.Context, result any, name string, args ...string) error {
	return trial.Run(ctx, trial.Share(t.Jobs), result, name, args...)
}

// group puts records of one row together: the unquantised model, then types in the order in which they came.
func group(all []record) (rows [][]record) {
	order := []string{whole, llamaCpp, plain, weighted, distilled}
	var types []string
	for _, r := range all {
		if !slices.Contains(types, r.Type) {
			types = append(types, r.Type)
		}
		i := slices.IndexFunc(rows, func(row []record) bool { return row[0].same(r) })
		if i < 0 {
			rows = append(rows, []record{r})
			continue
		}
		rows[i] = append(rows[i], r)
	}
	slices.SortStableFunc(rows, func(a, b []record) int {
		return cmp.Or(cmp.Compare(slices.Index(types, a[0].Type), slices.Index(types, b[0].Type)), cmp.Compare(slices.Index(order, a[0].How), slices.Index(order, b[0].How)))
	})
	return rows
}
