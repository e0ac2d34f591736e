//go:build emulate || gpu

package blas

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/device/cuda/driver"
	"apr/tensor"
)

// sweep says what TestSustained measures. Every product gets a part of the times, large ones twice as much.
type sweep struct {
	shapes      []Shape
	ask         int           // candidates that the library is asked for
	proposed    time.Duration // for what the library proposes, all products
	changed     time.Duration // for configurations that it accepts beside those, all products
	lead, timed time.Duration // of a turn: not counted, counted
}

const (
	hopelessShort = 1.25 // times the best short measurement of what is proposed
	hopelessOther = 1.10 // the same of changed configurations
	contender     = 1.03 // times the best turn: who gets a second one
)

// TestSustained prints how the algorithms of products rank when they run back to back until the device is at its power
// limit, compared with short measurements: first those that the library proposes, then configurations near the best of
// them. The table has, per algorithm: the library's rank (h0 is its first) or x for a changed configuration; short and
// sustained milliseconds; TFLOP/s, clock and power of the sustained turns; a sum over a part of the result, equal if the
// bits are. "short" and "load" mark what the tuning chooses.
func TestSustained(t *testing.T) {
	r := newRig(t)
	w := newSweeper(r, sustainedSweep)
	for _, phase := range []struct {
		d       time.Duration
		measure func(*field, time.Time) error
	}{{w.plan.proposed, w.propose}, {w.plan.changed, w.change}} {
		if err := w.each(phase.d, phase.measure); err != nil {
			t.Error(err)
			break
		}
		w.summarise()
	}
	for _, f := range w.fields {
		if best := f.best(f.all); !(best.load() > 0) || math.IsInf(best.load(), 1) {
			t.Errorf("%s: nothing was measured", f.shape.Key())
		}
	}
}

// summarise prints a line for each product.
func (w *sweeper) summarise() {
	fmt.Println("\nsummary: TFLOP/s under load of the present choice | of the best of the first 8 proposed | of the best proposed | of what the tuning under load chooses | best changed one against the best proposed")
	for _, f := range w.fields {
		fmt.Println(f.summary())
	}
}

// each calls measure for every product with the end of its part of a time, and prints what is known then.
func (w *sweeper) each(d time.Duration, measure func(f *field, end time.Time) error) error {
	weight := func(f *field) time.Duration {
		if f.shape.FLOP() > 1e11 {
			return 2
		}
		return 1
	}
	var parts time.Duration
	for _, f := range w.fields {
		parts += weight(f)
	}
	end := time.Now().Add(d)
	for _, f := range w.fields {
		share := time.Until(end) / parts * weight(f)
		parts -= weight(f)
		if err := w.r.ctx.Do(func(*driver.Thread) error { return measure(f, time.Now().Add(share)) }); err != nil {
			return fmt.Errorf("%s: %w", f.shape.Key(), err)
		}
		f.print(w.u.sets(f.shape))
	}
	return nil
}

// trial is an algorithm on trial.
type trial struct {
	name, from string // from: h and the library's rank, or x
	algo       driver.LtAlgo
	call       *driver.LtCall
	short      float64   // ms
	turns      []float64 // ms under load
	mhz, watts float64   // of the last turn
	bits       uint32
	marks      []string
}

// load returns the mean of the turns; +Inf without.
func (x *trial) load() float64 {
	if len(x.turns) == 0 {
		return math.Inf(1)
	}
	sum := 0.0
	for _, ms := range x.turns {
		sum += ms
	}
	return sum / float64(len(x.turns))
}

// field is a product and the algorithms on trial for it.
type field struct {
	shape    Shape
	c        *candidates
	all      []*trial
	heading  string
	loadTook time.Duration // of the tuning under load

	then float64 // ms under load of the best proposed, when changed configurations were measured
}

// best returns the fastest under load; of none one without turns.
func (f *field) best(list []*trial) *trial {
	if len(list) == 0 {
		return new(trial)
	}
	return slices.MinFunc(list, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
}

// marked returns the trial with a mark, or else one without turns.
func (f *field) marked(mark string) *trial {
	i := slices.IndexFunc(f.all, func(x *trial) bool { return slices.Contains(x.marks, mark) })
	if i < 0 {
		return &trial{from: "?"}
	}
	return f.all[i]
}

func (f *field) teraflops(x *trial) float64 { return f.shape.FLOP() / x.load() / 1e9 }

func (f *field) print(sets int) {
	fmt.Printf("\n%s: %.3g FLOP, %d set(s) of operands; %s\n", f.shape.Key(), f.shape.FLOP(), sets, f.heading)
	list := slices.DeleteFunc(slices.Clone(f.all), func(x *trial) bool { return len(x.turns) == 0 })
	slices.SortStableFunc(list, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
	for _, x := range list {
		fmt.Printf("  %-4s %-52s short %8.4f load %8.4f %.4f TFLOP/s %6.1f  %4.0f MHz %3.0f W  bits %08x %s\n",
			x.from, x.name, x.short, x.load(), x.turns, f.teraflops(x), x.mhz, x.watts, x.bits, strings.Join(x.marks, " "))
	}
}

func (f *field) summary() string {
	isChanged := func(x *trial) bool { return x.from == "x" }
	proposed := slices.DeleteFunc(slices.Clone(f.all), isChanged)
	changed := slices.DeleteFunc(slices.Clone(f.all), func(x *trial) bool { return !isChanged(x) })
	best, load := f.best(proposed), f.marked("load")
	line := fmt.Sprintf("%-46s %6.1f | %6.1f | %6.1f %s %s | %6.1f %s in %.1f s", f.shape.Key(), f.teraflops(f.marked("short")),
		f.teraflops(f.best(proposed[:min(len(proposed), 8)])), f.teraflops(best), best.from, best.name, f.teraflops(load), load.from, f.loadTook.Seconds())
	if len(changed) > 0 {
		x := f.best(changed)
		line += fmt.Sprintf(" | %+.1f %% %s", 100*(f.then/x.load()-1), x.name)
	}
	return line
}

// trained are products of a training step in bfloat16; a gradient of weights is added to float32.
func trained(op Op, m, n, k int) Shape {
	if op == TN {
		s := dense(op, m, n, k, tensor.BF16, tensor.F32, BF16)
		s.Add = true
		return s
	}
	return dense(op, m, n, k, tensor.BF16, tensor.BF16, BF16)
}
