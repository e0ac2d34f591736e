// Package devicetest is the one conformance suite that every device passes: each operation of device.Stream, forward
// and backward, is compared with the float64 formulas of internal/ref.
//
// A device's own test calls Run. The suite is a table of Cases; a Case reports errors instead of failing a test, so
// that a deliberately broken device can be shown to fail it, as this package's own tests do with a list of mutants.
//
// Most cases come in two layouts. "dense" tensors have no gaps between their rows; "views" have a leading offset and a
// stride wider than their columns. In both a tensor lies inside a larger buffer whose other elements must stay as they
// are, inputs must keep their bits, and outputs start as NaN, so that an element left unwritten is seen. Shapes are
// awkward on purpose: one row, primes, one more and one less than powers of two, no rows at all.
//
// Caveats. What a device is compared with reads the inputs as the device stores them (rounded to bfloat16 where that
// is its activation type); how far results may then differ is stated per operation in tolerance.go and nowhere else.
// The suite judges numbers and memory, not speed.
package devicetest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

// Case is one entry of the suite.
type Case struct {
	Name  string // operation, then what is special: "matmul/17x640x256 bias/views"
	check func(*lab)
	views bool
	needs device.Feature // a device that lacks it fails the stream by its name

	weighs bool // it may ask the device for a device.Weight
}

// Check runs the case on d and returns everything that was wrong, or nil. A panic of the device is an error too.
func (c Case) Check(d device.Device) (err error) {
	h := fnv.New64a()
	h.Write([]byte(strings.TrimSuffix(strings.TrimSuffix(c.Name, "/views"), "/dense")))
	l := &lab{
		dev: d, s: d.NewStream(), act: d.Info().Activations, tf32: d.Info().TF32, gaps: c.views, weighs: c.weighs,
		rng: rand.New(rand.NewPCG(h.Sum64(), 0)),
	}
	defer func() {
		if v := recover(); v != nil {
			err = errors.Join(append(l.errs, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))...)
		}
	}()
	c.check(l)
	if c.needs != "" && slices.Contains(d.Info().Lacks, c.needs) {
		return l.lacked(c.needs)
	}
	l.inspect()
	if _, err := l.s.Wait(context.Background()); err != nil {
		l.errorf("Wait: %v", err)
	}
	return errors.Join(l.errs...)
}

// lacked returns an error unless the stream failed because the device lacks a feature.
func (l *lab) lacked(f device.Feature) error {
	_, err := l.s.Wait(context.Background())
	for _, w := range l.watched {
		l.s.Release(w.whole)
	}
	if err == nil {
		err = l.refused
	}
	if err == nil {
		return fmt.Errorf("a device without %s ends without an error", f)
	}
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), string(f)) {
		return fmt.Errorf("a device without %s ends with %w", f, err)
	}
	return nil
}

// needing returns cases of a feature that devices may lack.
func needing(f device.Feature, cases []Case) []Case {
	for i := range cases {
		cases[i].needs = f
	}
	return cases
}

// weighing returns cases that may ask for a device.Weight.
func weighing(cases []Case) []Case {
	for i := range cases {
		cases[i].weighs = true
	}
	return cases
}

// Cases returns the whole suite.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		deviceCases(), moveCases(), interleavedCases(), layerCases(), clampedCases(), headNormCases(), elementCases(), dropoutCases(), lowRankCases(), rotaryCases(), matmulCases(),
		weighing(slices.Concat(weightCases(), fewRowCases(), expertCases())), attentionCases(), maskedAttentionCases(),
		sinkAttentionCases(), pageCases(),
		needing(device.DeltaNet, linearCases()), lossCases(), drawsLossCases(), guideCases(),
		projectCases(), drawNextCases(), drawManyCases(), needing(device.Maps, mapCases()),
		optimizerCases(), quantizeCases(), gradientCases(), streamCases(), repeatCases(),
	} {
		all = append(all, group...)
	}
	return all
}

// refusedCases is how many cases of a group a device is given whose feature it lacks: each must be refused by name.
const refusedCases = 6

// Run runs the suite as subtests, each operation on a device of its own from open, and the refusals on one.
func Run(t *testing.T, open func() device.Device) {
	t.Helper()
	Part{}.Run(t, open)
}

// RunWeights runs the part of the suite that asks for a device.Weight: for a device that differs from one that Run has
// seen in what its weights are. No other case can tell them apart, since it gets none.
func RunWeights(t *testing.T, open func() device.Device) {
	t.Helper()
	Part{Of: Case.Weighs}.cases(t, open)
}

// Weighs reports whether a case may ask for a device.Weight; who does not and does panics.
func (c Case) Weighs() bool { return c.weighs }

// Part is a part of the suite, for a device that differs in some operations only from one that has passed all of it.
type Part struct {
	Of   func(Case) bool           // which cases; nil: all
	Done func(Case, device.Device) // is told of a case that ran, and on which device; may be nil
}

// Run runs the refusals and the part.
func (p Part) Run(t *testing.T, open func() device.Device) {
	t.Helper()
	t.Run("refuse", func(t *testing.T) { Refuse(t, open) })
	p.cases(t, open)
}

func (p Part) cases(t *testing.T, open func() device.Device) {
	t.Helper()
	groups := map[string][]Case{}
	var names []string
	for _, c := range Cases() {
		if p.Of != nil && !p.Of(c) {
			continue
		}
		group, _, _ := strings.Cut(c.Name, "/")
		if groups[group] == nil {
			names = append(names, group)
		}
		groups[group] = append(groups[group], c)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			d := open()
			for i, c := range groups[name] {
				if i >= refusedCases && c.needs != "" && slices.Contains(d.Info().Lacks, c.needs) {
					continue // the reference computes for seconds what the device refuses
				}
				contracttest.Cases(t, 1)
				t.Run(strings.TrimPrefix(c.Name, name+"/"), func(t *testing.T) {
					if err := c.Check(d); err != nil {
						t.Error(err)
					}
				})
				if p.Done != nil {
					p.Done(c, d)
				}
			}
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// both returns the case in its two layouts.
func both(name string, check func(*lab)) []Case {
	return []Case{{Name: name + "/dense", check: check}, {Name: name + "/views", check: check, views: true}}
}
