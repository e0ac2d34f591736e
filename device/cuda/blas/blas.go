// Package blas multiplies matrices with cublasLt: one plan per shape, its algorithm chosen by measurement once and
// remembered, so that a product is one call without allocation and always the same arithmetic.
//
// A Shape says everything about a product but the addresses. Prewarm makes the plans of a run before its first step:
// the algorithm of each shape is the one remembered for this device and library in a file, or else the fastest of the
// library's candidates under load, which is then remembered. Plans never split the inner dimension, so every sum has one
// order.
//
// Caveats. Bits may change with the remembered choice: with the file gone, another device or another library, equal runs
// may round differently. The candidates of a small product can be so close that a later measurement would choose
// another; that is why the file is read first and never measured again. A product that the library does not serve gives
// ErrUnsupported, and the caller takes the GEMM of package kernel. All plans of a Library share one workspace: they run
// on one stream at a time, and on the device's thread. The tuner times real work for about a second in all.
package blas

import (
	"errors"
	"fmt"
	"time"

	"apr/device/cuda/driver"
)

// ErrUnsupported is the error of a shape that the library has no algorithm for.
var ErrUnsupported = errors.New("cublasLt has no algorithm for this product")

// Options say how a Library chooses.
type Options struct {
	Tune       bool          // measure candidates that no file knows; else the library's first candidate is taken
	Dir        string        // folder of the remembered choices; empty: nothing is remembered
	Device     string        // name of the device, part of the file's name
	Candidates int           // algorithms compared per shape; 0: 8
	Budget     time.Duration // of one Prewarm's measuring; 0: 1.5 s. Shapes beyond it take the library's first candidate
	Workspace  uint64        // device address of WorkspaceBytes bytes, 256-byte aligned; 32 MiB serve all algorithms
	Bytes      int64         // size of the workspace
	Log        func(string)  // takes a line per plan, and one when a file is ignored; nil: none
}

// Library makes and keeps plans.
type Library struct {
	lt     *driver.Lt
	o      Options
	handle driver.LtHandle
	plans  map[Shape]*Plan
	known  choices
	path   string        // of the remembered choices; empty: none
	took   time.Duration // all of Prewarm
}

// Open makes a Library of lt in the context of t. The remembered choices are read if o.Tune is set; a file that cannot
// be used is ignored with a line in the log.
func Open(_ *driver.Thread, lt *driver.Lt, o Options) (*Library, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.Candidates == 0 {
		o.Candidates = 8
	}
	if o.Budget == 0 {
		o.Budget = 1500 * time.Millisecond
	}
	h, err := lt.Create()
	if err != nil {
		return nil, err
	}
	l := &Library{lt: lt, o: o, handle: h, plans: map[Shape]*Plan{}, known: choices{}}
	if o.Tune && o.Dir != "" {
		l.path = choicesPath(o.Dir, o.Device, lt.Version())
		if l.known, err = readChoices(l.path, o.Device, lt.Version()); err != nil {
			o.Log(fmt.Sprintf("kernel-cache event=ignored file=%q reason=%q", l.path, err))
		}
	}
	return l, nil
}

// Close gives everything back; no plan may be used afterwards.
func (l *Library) Close(_ *driver.Thread) error {
	var errs []error
	for _, p := range l.plans {
		errs = append(errs, p.problem.free(l.lt))
	}
	l.plans = nil
	return errors.Join(append(errs, l.lt.Destroy(l.handle))...)
}

// Plan returns the plan of a shape. One that Prewarm did not make is made now: with the remembered algorithm, or else
// the library's first candidate.
func (l *Library) Plan(t *driver.Thread, s Shape) (*Plan, error) {
	if p, ok := l.plans[s]; ok {
		return p, nil
	}
	c, err := l.candidates(s)
	if err != nil {
		return nil, err
	}
	return l.adopt(c, c.remembered(l.known)), nil
}

// Plans returns how many plans there are.
func (l *Library) Plans() int { return len(l.plans) }

// Stats say how the plans were chosen.
type Stats struct {
	Remembered int           // by the file
	Measured   int           // now
	First      int           // neither: the library's first candidate
	Took       time.Duration // in Prewarm
}

// Stats counts the plans.
func (l *Library) Stats() Stats {
	s := Stats{Took: l.took}
	for _, p := range l.plans {
		switch p.From {
		case fromFile:
			s.Remembered++
		case fromTuning:
			s.Measured++
		default:
			s.First++
		}
	}
	return s
}

// candidates is a shape on its way to a plan.
type candidates struct {
	shape   Shape
	problem problem
	list    []driver.LtCandidate
	names   []string // of the list's algorithms
	ms      []float64
}

// candidates asks the library for algorithms.
func (l *Library) candidates(s Shape) (*candidates, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	p, err := newProblem(l.lt, s)
	var status *driver.LtError
	if s.Compute == FP8 && errors.As(err, &status) { // a library from before these scales
		err = fmt.Errorf("%s: %w", s.Key(), ErrUnsupported)
	}
	if err != nil {
		return nil, errors.Join(err, p.free(l.lt))
	}
	c := &candidates{shape: s, problem: p}
	if err = l.ask(c); err != nil {
		return nil, errors.Join(err, p.free(l.lt))
	}
	return c, nil
}

func (l *Library) ask(c *candidates) (err error) {
	pref, err := l.preference(c.shape)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.lt.FreePreference(pref)) }()
	c.list, err = l.lt.Heuristic(l.handle, c.problem.lt, pref, l.o.Candidates)
	var status *driver.LtError
	if errors.As(err, &status) && status.Status == driver.LtNotSupported || err == nil && len(c.list) == 0 {
		return fmt.Errorf("%s: %w", c.shape.Key(), ErrUnsupported)
	}
	for i := range c.list {
		name, nameErr := l.lt.Describe(&c.list[i].Algo)
		if nameErr != nil {
			return nameErr
		}
		c.names = append(c.names, name)
	}
	c.ms = make([]float64, len(c.list))
	return err
}

// preference allows algorithms that add in one sequence, fit the workspace and take the shape's alignment.
func (l *Library) preference(s Shape) (driver.LtPreference, error) {
	pref, err := l.lt.NewPreference()
	if err != nil {
		return 0, err
	}
	set := func(a driver.LtPreferenceAttribute, v uint64) {
		if err == nil {
			err = l.lt.SetPreference(pref, a, v)
		}
	}
	set(driver.LtMaxWorkspace, uint64(l.o.Bytes))
	set(driver.LtReductionMask, driver.LtReductionNone)
	in, out := uint64(s.In.BlockBytes()), uint64(s.Out.BlockBytes())
	if s.Aligned {
		in, out = alignment, alignment
	}
	set(driver.LtAlignA, in)
	set(driver.LtAlignB, in)
	set(driver.LtAlignC, out)
	set(driver.LtAlignD, out)
	if err != nil {
		return 0, errors.Join(err, l.lt.FreePreference(pref))
	}
	return pref, nil
}

// choice is an algorithm of a list and where it comes from.
type choice struct {
	index int
	from  string
}

// Where a choice comes from.
const (
	fromFile    = "file"
	fromTuning  = "tuned"
	fromLibrary = "heuristic"
)

// remembered returns the algorithm that the file names, else the first.
func (c *candidates) remembered(known choices) choice {
	if k, ok := known[c.shape.Key()]; ok {
		for i, name := range c.names {
			if name == k.Algo {
				c.ms[i] = k.Ms
				return choice{i, fromFile}
			}
		}
	}
	return choice{0, fromLibrary}
}

// adopt makes the plan of a choice.
func (l *Library) adopt(c *candidates, ch choice) *Plan {
	beta := float32(0)
	if c.shape.Add {
		beta = 1
	}
	p := &Plan{
		Shape: c.shape, Algo: c.names[ch.index], Ms: c.ms[ch.index], From: ch.from, lt: l.lt, problem: c.problem,
		call: l.lt.NewCall(l.handle, c.problem.lt, c.list[ch.index].Algo, beta, l.o.Workspace, l.o.Bytes),
	}
	l.plans[c.shape] = p
	l.o.Log(fmt.Sprintf("kernel-cache event=plan key=%s algo=%s ms=%.4f from=%s", c.shape.Key(), p.Algo, p.Ms, p.From))
	return p
}

// Plan is a product ready to run.
type Plan struct {
	Shape Shape
	Algo  string  // configuration of the algorithm
	Ms    float64 // measured when it was chosen; 0: never
	From  string  // "file", "tuned" or "heuristic"

	lt      *driver.Lt
	problem problem
	call    *driver.LtCall
}

// Run queues c = op(a)·op(b) (+ bias) (+ c) on s; the addresses are as the Shape describes, bias 0 without one. It
// allocates nothing of its own.
func (p *Plan) Run(_ *driver.Thread, s driver.Stream, c, a, b, bias uint64) error {
	if p.Shape.Bias && bias != *p.problem.bias {
		*p.problem.bias = bias
		if err := p.lt.SetPointer(p.problem.lt.Desc, driver.LtBiasPointer, p.problem.bias); err != nil {
			return err
		}
	}
	return p.call.Start(b, a, c, s) // column-major: cᵀ = op(b)ᵀ·op(a)ᵀ
}

// RunScaled is Run for FP8: sa and sb are the addresses of the scales of the rows of a and of b.
func (p *Plan) RunScaled(t *driver.Thread, s driver.Stream, c, a, b, bias, sa, sb uint64) error {
	if want := [2]uint64{sb, sa}; want != *p.problem.scales {
		*p.problem.scales = want
		if err := p.problem.point(p.lt); err != nil {
			return err
		}
	}
	return p.Run(t, s, c, a, b, bias)
}
