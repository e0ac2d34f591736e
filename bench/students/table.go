package main

import (
	"fmt"
	"slices"
	"strings"

	"apr/bench/trial"
)

// goal is the share of the random start's tokens that the pruned start may take to score the same.
const goal = .6

// row is a variant's runs, with the learning rate that was best for its first seed, by seed.
type row struct {
	variant
	runs []record
	why  string // why there are none
}

// rowsOf sorts records into rows. Of a run that the log has twice, a finished one counts.
func rowsOf(all []record) (list []row) {
	for _, v := range variants {
		r := row{variant: v}
		var of []record
		for _, rec := range all {
			if rec.Variant != v.name {
				continue
			}
			of = append(of, rec)
			if rec.Status != done {
				r.why = rec.Status + ": " + rec.Why
			}
		}
		if len(of) == 0 {
			continue
		}
		if factor := best(all, v.name, of[0].Seed); len(factor) > 0 {
			for _, rec := range of {
				if rec.Status == done && rec.Factor == factor[0] {
					r.runs = append(r.runs, rec)
				}
			}
			slices.SortFunc(r.runs, func(a, b record) int { return a.Seed - b.Seed })
		}
		list = append(list, r)
	}
	return list
}

// values are a figure of each run.
func (r row) values(of func(record) float64) (list []float64) {
	for _, run := range r.runs {
		list = append(list, of(run))
	}
	return list
}

func nats(r record) float64 { return r.Nats }
func kl(r record) float64   { return r.KL }

// table is the table of a log in Markdown, with what it says in words.
func table(s settings, all []record) string {
	rows := rowsOf(all)
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**, on %s (backend %s, runs at a time: %d). ", s.Name, s.Machine, s.Backend, s.Jobs)
	fmt.Fprintf(&b, "%.2fM tokens a run, %d rows of %d a step, α %g. ", float64(s.Tokens)/1e6, s.Rows, s.Length, s.Alpha)
	if i := slices.IndexFunc(rows, func(r row) bool { return len(r.runs) > 0 }); i >= 0 {
		fmt.Fprintf(&b, "The teacher scores %.4f nats/token on the held-out text.", rows[i].runs[0].TeacherNats)
	}
	said := map[string]bool{} // a log that was gone on with has them again
	for _, rec := range all {
		if source, ok := strings.CutPrefix(rec.Variant, specialist); ok && !said[source] {
			fmt.Fprintf(&b, " Its specialist of the %s scores %.4f.", source, rec.Nats)
			said[source] = true
		}
	}
	b.WriteString("\n\n| student | start | trained | rate | seeds | nats before | nats/token | KL to teacher | top-1 | tokens | tokens/s | minutes | share to *full* |\n")
	b.WriteString("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	full := find(rows, "full")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s |", r.name, r.start, r.how)
		if len(r.runs) == 0 {
			fmt.Fprintf(&b, " | | | | | | | | | %s |\n", strings.ReplaceAll(r.why, "|", "\\|"))
			continue
		}
		r.cells(&b, full)
	}
	b.WriteString("\n")
	for _, line := range words(rows) {
		b.WriteString("- " + line + "\n")
	}
	return b.String()
}

// cells writes the figures of a row.
func (r row) cells(b *strings.Builder, full row) {
	before := r.values(func(r record) float64 {
		if len(r.Curve) == 0 {
			return 0
		}
		return r.Curve[0].Nats
	})
	top1 := r.values(func(r record) float64 { return 100 * r.Top1 })
	speed := r.values(func(r record) float64 { return float64(r.Tokens) / r.Seconds })
	minutes := r.values(func(r record) float64 { return (r.Seconds + r.Prepared) / 60 })
	fmt.Fprintf(b, " %g | %d | %s | %s | %s | %s %% | %.2fM | %s | %s | %s |\n", r.runs[0].Rate, len(r.runs), trial.Spread(before, 3),
		trial.Spread(r.values(nats), 4), trial.Spread(r.values(kl), 4), trial.Spread(top1, 1), float64(r.runs[0].Tokens)/1e6,
		trial.Spread(speed, 0), trial.Spread(minutes, 2), shareCell(r, full))
}

func find(rows []row, name string) row {
	for _, r := range rows {
		if r.name == name {
			return r
		}
	}
	return row{}
}

// pairs calls f for the runs of two rows with the same seed.
func pairs(a, b row, f func(a, b record)) {
	for _, x := range a.runs {
		for _, y := range b.runs {
			if x.Seed == y.Seed {
				f(x, y)
			}
		}
	}
}

// reach is after how many tokens a curve first is at or below a score, between two points on a line; false if it
// never is.
func reach(curve []point, score float64) (tokens float64, ok bool) {
	for i, p := range curve {
		if !(p.Nats <= score) {
			continue
		}
		if i == 0 {
			return float64(p.Tokens), true
		}
		before := curve[i-1]
		part := (before.Nats - score) / (before.Nats - p.Nats)
		return float64(before.Tokens) + part*float64(p.Tokens-before.Tokens), true
	}
	return 0, false
}

// shares are the shares of the tokens of full that a row takes until it scores as full does in the end, by seed;
// missed counts the seeds in which it never does.
func shares(r, full row) (list []float64, missed int) {
	pairs(r, full, func(a, b record) {
		if len(b.Curve) == 0 {
			return
		}
		// Both scores are of training's own arithmetic.
		if t, ok := reach(a.Curve, b.Curve[len(b.Curve)-1].Nats); ok {
			list = append(list, t/float64(b.Tokens))
		} else {
			missed++
		}
	})
	return list, missed
}

func shareCell(r, full row) string {
	list, missed := shares(r, full)
	switch {
	case len(list) == 0 && missed == 0:
		return ""
	case len(list) == 0:
		return "never"
	case missed > 0:
		return fmt.Sprintf("%s %%, never in %d", percent(list), missed)
	}
	return percent(list) + " %"
}

func percent(list []float64) string {
	var hundredfold []float64
	for _, x := range list {
		hundredfold = append(hundredfold, 100*x)
	}
	return trial.Spread(hundredfold, 0)
}

// words says of each variant whether it is better than what it is compared with.
func words(rows []row) (list []string) {
	full, cut := find(rows, "full"), find(rows, "pruned")
	if got, missed := shares(cut, full); len(got)+missed > 0 {
		worst := 2.0
		if missed == 0 {
			worst = slices.Max(got)
		}
		line := "**pruned** reaches the final score of *full* after " + shareCell(cut, full) + " of its tokens; the goal is at most 60 %: "
		if missed > 0 && len(got) == 0 {
			line = "**pruned** never reaches the final score of *full*; the goal is at most 60 % of its tokens: "
		}
		if worst <= goal {
			list = append(list, line+"reached in every seed.")
		} else {
			list = append(list, line+"not reached in every seed.")
		}
	}
	for _, r := range rows {
		for _, other := range r.against {
			if line := compare(r, find(rows, other)); line != "" {
				list = append(list, line)
			}
		}
	}
	return list
}

// compare says in words how a row's scores differ from another's, seed by seed.
func compare(r, other row) string {
	var n, k []float64
	pairs(r, other, func(a, b record) {
		n, k = append(n, a.Nats-b.Nats), append(k, a.KL-b.KL)
	})
	if len(n) == 0 {
		return ""
	}
	return fmt.Sprintf("**%s** against *%s*: held-out text %s; likeness to the teacher %s.", r.name, other.name, difference(n, "nats"), difference(k, "KL"))
}

// difference words differences that are better the lower they are. One that seeds do not agree on is none.
func difference(list []float64, unit string) string {
	size := trial.Mean(list)
	seeds := "in every seed"
	if len(list) == 1 {
		seeds = "in its one seed"
	}
	switch {
	case slices.Max(list) < 0:
		return fmt.Sprintf("**better** by %.4f %s, %s", -size, unit, seeds)
	case slices.Min(list) > 0:
		return fmt.Sprintf("**worse** by %.4f %s, %s: it does not help", size, unit, seeds)
	}
	return fmt.Sprintf("no difference that the seeds agree on (%+.4f %s in the mean): it does not help", size, unit)
}
