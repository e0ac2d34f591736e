package falsify

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"apr/internal/fault"
)

// Status is what became of a check or a contract. It is derived from one invocation, and never read from a file.
type Status string

// The statuses, the worst first.
const (
	Falsified   Status = "FALSIFIED"   // a check ran and failed
	Broken      Status = "BROKEN"      // it could not be built or run to its end, or a mutant could not
	Vacuous     Status = "VACUOUS"     // it showed nothing
	Survived    Status = "SURVIVED"    // it passes under a mutant that should fail it
	Unavailable Status = "UNAVAILABLE" // the machine lacks what it needs
	Upheld      Status = "UPHELD"      // it passed, and failed under each of its mutants
)

// Statuses are all statuses, the worst first.
var Statuses = []Status{Falsified, Broken, Vacuous, Survived, Unavailable, Upheld}

// MutantRun is one check under one mutant.
type MutantRun struct {
	ID       string  `json:"id"`
	Killed   bool    `json:"killed"`
	Observed string  `json:"observed"`
	Seconds  float64 `json:"duration_seconds"` // with building; checks of one package run together
	Tail     string  `json:"output_tail"`
}

// CheckRun is one check after falsification.
type CheckRun struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"` // test or harness
	Status     Status      `json:"status"`
	Command    string      `json:"command"`
	Lacks      []string    `json:"lacks"`            // needs that the machine does not meet
	Declared   int         `json:"mutants_declared"` // by the contract; those that were tried are Mutants
	Cases      uint64      `json:"cases"`
	Skipped    int         `json:"skipped"`
	Seconds    float64     `json:"duration_seconds"`
	Observed   string      `json:"observed"`
	Tail       string      `json:"output_tail"`
	Prediction string      `json:"prediction"`
	IfFails    string      `json:"if_fails"`
	Mutants    []MutantRun `json:"mutants"`
}

// ContractRun is one contract after falsification.
type ContractRun struct {
	ID         string      `json:"id"`
	File       string      `json:"file"`
	Version    string      `json:"version"`
	SHA256     string      `json:"sha256"`
	Status     Status      `json:"status"`
	Violations []Violation `json:"violations"` // of the form; with an error nothing is run
	Tally
	MutantTally
	Checks []CheckRun `json:"checks"`
}

// MutantTally counts mutants. One that must fail several checks, and fails those that were run while others were not,
// is not killed: whether the others would find it is unknown.
type MutantTally struct {
	Mutants  int `json:"mutants"`           // tried on each of their checks, or survived one
	Killed   int `json:"killed"`            // of these: all their checks failed
	NotTried int `json:"mutants_not_tried"` // on each of their checks: one cannot be run here, or does not pass without the mutant
}

// add counts one mutant.
func (t *MutantTally) add(m *mutation) {
	alive := slices.ContainsFunc(m.tried, func(u *underMutant) bool { return u.result != failed })
	switch {
	case len(m.kills) == 0: // prebuilt programs carry none of its checks: it is judged elsewhere
	case alive:
		t.Mutants++
	case len(m.tried) < len(m.kills):
		t.NotTried++
	default:
		t.Mutants, t.Killed = t.Mutants+1, t.Killed+1
	}
}

// String says how many were killed of how many.
func (t MutantTally) String() string {
	if t.NotTried == 0 {
		return fmt.Sprintf("%d of %d mutants killed", t.Killed, t.Mutants)
	}
	return fmt.Sprintf("%d of %d tried mutants killed, %d not tried on each of their checks", t.Killed, t.Mutants, t.NotTried)
}

// Tally counts checks for a headline. A check may be in two of its numbers: one without a mutant may be upheld.
type Tally struct {
	Upheld        int `json:"upheld"`
	Falsified     int `json:"falsified"`
	NeedHardware  int `json:"need_hardware"`  // unavailable: a GPU or memory is absent
	NeedSoftware  int `json:"need_software"`  // unavailable: a program or a model is absent
	WithoutMutant int `json:"without_mutant"` // the contract declares no mutant that must fail them
	Doubtful      int `json:"doubtful"`       // vacuous, survived or broken
}

func (t *Tally) add(u Tally) {
	t.Upheld, t.Falsified, t.Doubtful = t.Upheld+u.Upheld, t.Falsified+u.Falsified, t.Doubtful+u.Doubtful
	t.NeedHardware, t.NeedSoftware, t.WithoutMutant = t.NeedHardware+u.NeedHardware, t.NeedSoftware+u.NeedSoftware, t.WithoutMutant+u.WithoutMutant
}

// tally counts checks.
func tally(checks []CheckRun) (t Tally) {
	for _, run := range checks {
		switch {
		case run.Status == Upheld:
			t.Upheld++
		case run.Status == Falsified:
			t.Falsified++
		case run.Status == Unavailable && Hardware(run.Lacks):
			t.NeedHardware++
		case run.Status == Unavailable:
			t.NeedSoftware++
		default:
			t.Doubtful++
		}
		if run.Declared == 0 {
			t.WithoutMutant++
		}
	}
	return t
}

// String is the headline: "109 upheld, 0 falsified, 14 need hardware, 0 without a mutant", and what else there is.
func (t Tally) String() string {
	s := fmt.Sprintf("%d upheld, %d falsified, %d need hardware, %d without a mutant", t.Upheld, t.Falsified, t.NeedHardware, t.WithoutMutant)
	if t.NeedSoftware > 0 {
		s += fmt.Sprintf(", %d need a program or a model", t.NeedSoftware)
	}
	if t.Doubtful > 0 {
		s += fmt.Sprintf(", %d show nothing", t.Doubtful)
	}
	return s
}

// Falsification is the outcome of one invocation.
type Falsification struct {
	Started     time.Time      `json:"started"`
	Seconds     float64        `json:"duration_seconds"`
	Commit      string         `json:"commit"` // empty outside a repository
	Dirty       bool           `json:"dirty"`
	GoVersion   string         `json:"go_version"`
	Devices     []string       `json:"devices"`
	Contracts   []ContractRun  `json:"contracts"`
	Counts      map[Status]int `json:"counts"` // checks by status
	Tally                      // of all checks
	MutantTally                // of all mutants
	Prebuilt    *Prebuilt      `json:"prebuilt,omitempty"` // whose programs ran, where there is no Go toolchain

	allowUnavailable bool
}

// FalsifyOptions say how checks are run.
type FalsifyOptions struct {
	Machine          Machine
	AllowUnavailable bool
	Prebuilt         string                        // folder of Prebuild: run its programs in place of the go command; empty: none
	Timeout          time.Duration                 // in place of each check's own, unless 0
	Jobs             int                           // go commands at a time
	Progress         func(done, of int, id string) // called after each run, one at a time; may be nil
}

// Falsify tries to show the claims of contracts false. Contracts with an error of form are not run. Of the others
// every check that the machine can run is run on the source tree as it is, and every mutant is put into the tree by
// an overlay and must make the checks that it names fail. The files must be of one source tree.
func Falsify(ctx context.Context, files []string, o FalsifyOptions) (*Falsification, error) {
	var docs []*Document
	var invalid []ContractRun
	for _, file := range files {
		doc, err := Read(file, Ours)
		if fault.KindOf(err) == fault.Vacuous {
			invalid = append(invalid, ContractRun{File: file, Status: Vacuous, Violations: []Violation{parseViolation(file, err)}, Checks: []CheckRun{}})
			continue
		}
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	if len(files) == 0 {
		return nil, fault.New(fault.Vacuous, "no contract was selected").WithID("E-CONTRACT-002")
	}
	var tree *Tree
	for _, file := range files {
		t := FindTree(file)
		switch {
		case t == nil:
			return nil, fault.In(fault.Unavailable, file, "no source tree (go.mod) around the contract: nothing can be run").WithID("E-CONTRACT-007")
		case tree != nil && tree.Root != t.Root:
			return nil, fault.In(fault.Usage, file, "is of another source tree than %s", files[0])
		}
		tree = cmp.Or(tree, t)
	}
	return falsify(ctx, docs, invalid, tree, o)
}

// falsify runs parsed contracts.
func falsify(ctx context.Context, docs []*Document, invalid []ContractRun, tree *Tree, o FalsifyOptions) (*Falsification, error) {
	f := &Falsification{Started: time.Now().UTC(), Devices: append([]string{}, o.Machine.Devices...), Contracts: invalid, Counts: map[Status]int{}, allowUnavailable: o.AllowUnavailable}
	r := &runner{tree: tree, FalsifyOptions: o}
	if o.Prebuilt != "" {
		p, err := openPrebuilt(o.Prebuilt, tree.Root)
		if err != nil {
			return nil, err
		}
		r.tool, r.carries = p, p.carries
		r.Jobs = cmp.Or(o.Jobs, 1) // they share a GPU
		f.Prebuilt, f.GoVersion, f.Commit, f.Dirty = &p.Prebuilt, p.GoVersion, p.Commit, p.Dirty
	} else {
		g, err := newGotool(tree.Root)
		if err != nil {
			return nil, err
		}
		r.tool = g
		f.GoVersion, f.Commit, f.Dirty = g.describe(ctx)
	}
	defer r.tool.close()
	first := len(f.Contracts)
	for _, doc := range docs {
		c := doc.Contract
		f.Contracts = append(f.Contracts, ContractRun{ID: c.ID, File: c.Path, Version: c.Metadata.Version, Violations: []Violation{}, Checks: []CheckRun{}})
	}
	for i, doc := range docs {
		r.plan(&f.Contracts[first+i], doc)
	}
	if r.carries != nil { // a contract of which nothing is carried has not been judged here
		f.Contracts = slices.DeleteFunc(f.Contracts, func(c ContractRun) bool { return len(c.Checks) == 0 && len(c.Violations) == 0 })
	}
	if err := r.runAll(ctx); err != nil {
		return nil, err
	}
	for _, c := range r.claims {
		c.settle()
	}
	f.sum(r.mutants)
	f.Seconds = time.Since(f.Started).Seconds()
	return f, nil
}

// settle derives the status of a check from its runs.
func (c *claim) settle() {
	run := c.run
	if len(c.lacks) > 0 {
		run.Status, run.Observed = Unavailable, "needs "+strings.Join(c.lacks, ", ")
		return
	}
	switch c.real.result {
	case passed:
		run.Status = Upheld
	case failed:
		run.Status = Falsified
	case vacuous:
		run.Status = Vacuous
	default:
		run.Status = Broken
	}
	run.Cases, run.Skipped, run.Seconds, run.Observed = c.real.cases, c.real.skipped, c.real.seconds, c.real.observed
	if c.real.result != passed {
		run.Tail = c.real.tail
		return
	}
	for _, m := range c.under {
		run.Mutants = append(run.Mutants, MutantRun{m.mutant.ID, m.result == failed, m.observed, m.took, m.tail})
		switch m.result {
		case failed:
		case passed:
			if run.Status == Upheld {
				run.Status, run.Observed = Survived, "passes under "+m.mutant.ID
			}
		default:
			run.Status, run.Observed = Broken, m.mutant.ID+": "+m.observed
		}
	}
}

// sum derives the statuses of the contracts and counts. A contract is as bad as the worst of its checks; one without
// checks shows nothing.
func (f *Falsification) sum(mutants []*mutation) {
	for i := range f.Contracts {
		c := &f.Contracts[i]
		for _, m := range mutants {
			if m.file == c.File {
				c.MutantTally.add(m)
			}
		}
		worst := len(Statuses)
		c.Tally = tally(c.Checks)
		f.Tally.add(c.Tally)
		for _, run := range c.Checks {
			f.Counts[run.Status]++
			worst = min(worst, slices.Index(Statuses, run.Status))
		}
		if worst == len(Statuses) {
			c.Status = Vacuous
		} else {
			c.Status = Statuses[worst]
		}
	}
	for _, m := range mutants {
		f.MutantTally.add(m)
	}
}

// Err is nil if every contract is upheld, or lacks nothing but what the machine does not have when that is allowed;
// else a fault: of kind Vacuous when something shows nothing, survives or is broken, of kind Invalid when a claim is
// false and nothing is worse, and of kind Vacuous when something is unavailable.
func (f *Falsification) Err() error {
	first := map[Status]string{} // the first contract with a check of that status
	for _, c := range f.Contracts {
		name := cmp.Or(c.ID, c.File)
		first[c.Status] = cmp.Or(first[c.Status], name)
		for _, run := range c.Checks {
			first[run.Status] = cmp.Or(first[run.Status], name)
		}
	}
	if len(f.Contracts) == 0 {
		return fault.New(fault.Vacuous, "no contract was selected").WithID("E-CONTRACT-002")
	}
	for _, s := range []Status{Vacuous, Survived, Broken} {
		if first[s] != "" {
			return fault.In(fault.Vacuous, first[s], "contract is %s", s).WithID("E-CONTRACT-008")
		}
	}
	if first[Falsified] != "" {
		return fault.In(fault.Invalid, first[Falsified], "contract is %s", Falsified).WithID("E-CONTRACT-009")
	}
	if first[Unavailable] != "" && !f.allowUnavailable {
		return fault.In(fault.Vacuous, first[Unavailable], "contract is %s here", Unavailable).WithID("E-CONTRACT-010").
			WithHint("--allow-unavailable accepts what this machine cannot run")
	}
	return nil
}

// pool runs jobs, some at a time, and returns the first error.
func pool(parent context.Context, jobs int, work []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	if jobs <= 0 {
		jobs = min(max(2, runtime.NumCPU()/2), 8)
	}
	queue := make(chan func(context.Context) error)
	var wg sync.WaitGroup
	for range jobs {
		wg.Go(func() {
			for w := range queue {
				if ctx.Err() != nil {
					continue
				}
				if err := w(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, w := range work {
		queue <- w
	}
	close(queue)
	wg.Wait()
	if parent.Err() != nil {
		return parent.Err()
	}
	return context.Cause(ctx)
}
