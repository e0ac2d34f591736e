package falsify

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// runner runs the checks of contracts.
type runner struct {
	tool    tool
	tree    *Tree
	carries func(contract, mutant string, c *Check) bool // nil: everything can be built
	FalsifyOptions

	claims  []*claim
	mutants []*mutation

	mu    sync.Mutex // guards what follows
	done  int
	of    int
	build sync.Once // of the program, on the tree as it is
	prog  program
}

// claim is one falsification test or harness on its way.
type claim struct {
	run   *CheckRun
	check Check
	quota quota
	limit time.Duration
	lacks []string // needs that the machine does not meet

	real  verdict        // on the tree as it is
	under []*underMutant // each of its mutants
}

// mutation is one mutant with the claims that it must falsify.
type mutation struct {
	Mutant
	contract string
	file     string // of the contract
	name     string // unique in this invocation
	kills    []*claim
	tried    []*underMutant
}

// underMutant is one claim under one mutant.
type underMutant struct {
	mutant *mutation
	verdict
	took float64 // seconds of the go command that ran it
}

// program is a built program.
type program struct {
	path, output string
	err          error
}

// plan makes the claims and mutants of one contract. With an error of form nothing is run, and every check shows
// nothing.
func (r *runner) plan(out *ContractRun, doc *Document) {
	c := doc.Contract
	out.SHA256 = doc.SHA256
	out.Violations = append(out.Violations, Validate(doc, r.tree)...)
	invalid := slices.IndexFunc(out.Violations, func(v Violation) bool { return v.Severity == Error })
	out.Checks = make([]CheckRun, 0, c.Claims())
	byID := map[string]*claim{}
	add := func(run CheckRun, cl claim) {
		if invalid >= 0 {
			cl.lacks, cl.real = nil, verdict{result: vacuous, observed: "not run: " + out.Violations[invalid].Message}
		} else if r.carries != nil {
			if !r.carries(c.ID, "", &cl.check) {
				return
			}
			cl.check.Go = onCard(&cl.check)
			run.Command = commandOf(cl.check)
		}
		run.Mutants, run.Lacks = []MutantRun{}, append([]string{}, cl.lacks...)
		for _, m := range c.Mutants {
			if slices.Contains(m.Kills, run.ID) {
				run.Declared++
			}
		}
		out.Checks = append(out.Checks, run)
		cl.run = &out.Checks[len(out.Checks)-1] // within capacity, so it stays there
		r.claims = append(r.claims, &cl)
		byID[run.ID] = &cl
	}
	for _, t := range c.FalsificationTests {
		check := Check{}
		if t.Check != nil {
			check = *t.Check
		}
		least := uint64(1)
		if t.MinCases != nil {
			least = max(1, uint64(*t.MinCases))
		}
		add(CheckRun{ID: t.ID, Kind: "test", Command: commandOf(check), Prediction: t.Prediction, IfFails: t.IfFails},
			claim{check: check, quota: quota{least: least}, limit: r.limit(t.Timeout), lacks: r.lacks(t.Needs)})
	}
	for _, h := range c.KaniHarnesses {
		q := quota{least: 1, exact: true}
		if h.Cases != nil {
			q.least = *h.Cases
		}
		check := Check{Go: h.Go}
		add(CheckRun{ID: h.ID, Kind: "harness", Command: commandOf(check), Prediction: cmp.Or(h.Property, h.Obligation)},
			claim{check: check, quota: q, limit: r.limit(h.Timeout), lacks: r.lacks(h.Needs)})
	}
	if invalid >= 0 {
		return
	}
	for _, m := range c.Mutants {
		mu := &mutation{Mutant: m, contract: c.ID, file: c.Path, name: "m" + strconv.Itoa(len(r.mutants))}
		for _, id := range m.Kills {
			if cl := byID[id]; cl != nil && (r.carries == nil || r.carries(c.ID, m.ID, &cl.check)) {
				mu.kills = append(mu.kills, cl)
			}
		}
		r.mutants = append(r.mutants, mu)
	}
}

// compiler is the need of checks that run on the emulator.
const compiler = "program:c++"

// lacks returns the needs of a check that the machine does not meet. Prebuilt programs run on a CUDA device, also those of
// checks that run on the emulator elsewhere, which need a C++ compiler there.
func (r *runner) lacks(needs []string) []string {
	if r.carries != nil {
		needs = slices.DeleteFunc(slices.Clone(needs), func(n string) bool { return n == compiler || n == "cuda" })
		needs = append([]string{"cuda"}, needs...)
	}
	return r.Machine.lacks(needs)
}

// limit is the time of a check.
func (r *runner) limit(text string) time.Duration {
	if r.Timeout > 0 {
		return r.Timeout
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return time.Minute // the form is invalid, and nothing is run
	}
	return d
}

// commandOf is a check as one could run it by hand.
func commandOf(c Check) string {
	switch {
	case c.Go != nil:
		s := "go test -count=1 -run '" + runPattern([]string{c.Go.Test}) + "' " + localPackage(c.Go.Package)
		if len(c.Go.Tags) > 0 {
			s = strings.Replace(s, "-count=1", "-count=1 -tags="+strings.Join(c.Go.Tags, ","), 1)
		}
		return s
	case len(c.Cmd) > 0:
		return strings.Join(c.Cmd, " ")
	}
	return ""
}

// runAll runs every check on the tree as it is, then every mutant on the checks that passed.
func (r *runner) runAll(ctx context.Context) error {
	var ready []*claim
	for _, c := range r.claims {
		if len(c.lacks) == 0 && c.real.result == notRun {
			ready = append(ready, c)
		}
	}
	groups := grouped(ready)
	r.of = len(groups) + len(r.mutants)
	var work []func(context.Context) error
	for _, g := range groups {
		work = append(work, func(ctx context.Context) error {
			verdicts, err := r.runGroup(ctx, g, "", "")
			for i, c := range g {
				if err == nil {
					c.real = verdicts[i]
				}
			}
			r.step(g[0].run.Command)
			return err
		})
	}
	if err := pool(ctx, r.Jobs, work); err != nil {
		return err
	}
	work = nil
	for _, m := range r.mutants {
		work = append(work, func(ctx context.Context) error { return r.mutate(ctx, m) })
	}
	return pool(ctx, r.Jobs, work)
}

// step reports the progress.
func (r *runner) step(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	if r.Progress != nil {
		r.Progress(r.done, r.of, what)
	}
}

// grouped puts the claims that one go test can run together; a command runs alone.
func grouped(claims []*claim) [][]*claim {
	byKey := map[string][]*claim{}
	for i, c := range claims {
		key := "cmd " + strconv.Itoa(i)
		if c.check.Go != nil {
			key = "go " + c.check.Compile + " " + localPackage(c.check.Go.Package) + " " + strings.Join(c.check.Go.Tags, ",")
		}
		byKey[key] = append(byKey[key], c)
	}
	var all [][]*claim
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		all = append(all, byKey[key])
	}
	return all
}

// mutate tries one mutant on those of its checks that passed.
func (r *runner) mutate(ctx context.Context, m *mutation) error {
	defer r.step(m.ID)
	var tried []*claim
	for _, c := range m.kills {
		if len(c.lacks) == 0 && c.real.result == passed {
			tried = append(tried, c)
		}
	}
	if len(tried) == 0 {
		return nil
	}
	overlay, err := r.tool.overlay(m, r.tree)
	if err != nil {
		return err
	}
	for _, g := range grouped(tried) {
		start := time.Now()
		verdicts, err := r.runGroup(ctx, g, overlay, m.name)
		if err != nil {
			return err
		}
		took := time.Since(start).Seconds()
		r.mu.Lock()
		for i, c := range g {
			u := &underMutant{m, verdicts[i], took}
			c.under = append(c.under, u)
			m.tried = append(m.tried, u)
		}
		r.mu.Unlock()
	}
	return nil
}

// runGroup runs claims of one group and returns a verdict of each.
func (r *runner) runGroup(ctx context.Context, g []*claim, overlay, name string) ([]verdict, error) {
	if g[0].check.Go == nil {
		v, err := r.runCommand(ctx, g[0], overlay, name)
		return []verdict{v}, err
	}
	verdicts := make([]verdict, len(g))
	open := make([]int, len(g)) // indices of claims without a verdict
	for i := range open {
		open[i] = i
	}
	// A package that failed upholds nothing. Claims that did not fail in it are run again without those that did, and those
	// that are then still open one by one.
	for round, together := range []bool{true, true, false} {
		again := round > 0
		rounds := [][]int{open}
		if !together || again && len(open) == len(g) { // none failed, and yet the package did
			rounds = slices.Collect(slices.Chunk(open, 1))
		}
		open = nil
		for _, round := range rounds {
			left, err := r.runRound(ctx, g, round, overlay, verdicts)
			if err != nil {
				return nil, err
			}
			open = append(open, left...)
		}
		if len(open) == 0 {
			break
		}
	}
	return verdicts, nil
}

// runRound runs some claims of a group together, and returns those of which the run shows nothing because of others.
func (r *runner) runRound(ctx context.Context, g []*claim, round []int, overlay string, verdicts []verdict) (open []int, err error) {
	var claims []*claim
	for _, i := range round {
		claims = append(claims, g[i])
	}
	s, err := r.runTests(ctx, claims, overlay)
	if err != nil {
		return nil, err
	}
	for _, i := range round {
		verdicts[i] = s.verdictOf(g[i])
		if len(round) > 1 && !s.passed && !s.buildFailed && (verdicts[i].result != failed || s.timedOut) {
			open = append(open, i)
		}
	}
	return open, nil
}

// verdictOf judges a claim of a Go test. A check that expects not to compile passes when nothing was built.
func (s *stream) verdictOf(c *claim) verdict {
	v := s.judge(c.check.Go.Test, c.quota)
	if c.check.Compile != "fail" {
		return v
	}
	switch {
	case s.buildFailed:
		return verdict{result: passed, cases: 1, observed: "does not compile, as it should", tail: v.tail}
	case v.result == passed || v.result == vacuous || v.result == failed:
		return verdict{result: failed, observed: "it compiles", tail: v.tail}
	}
	return v
}

// runTests runs the tests of claims of one package together.
func (r *runner) runTests(ctx context.Context, g []*claim, overlay string) (*stream, error) {
	var names []string
	var limit time.Duration
	for _, c := range g {
		names = append(names, c.check.Go.Test)
		limit += c.limit
	}
	if r.Timeout > 0 {
		limit = r.Timeout
	}
	return r.tool.test(ctx, g[0].check.Go.Package, g[0].check.Go.Tags, names, overlay, limit)
}

// runCommand runs a claim of a command, with the program built from the tree and the overlay.
func (r *runner) runCommand(ctx context.Context, c *claim, overlay, name string) (verdict, error) {
	var p program
	if overlay == "" {
		r.build.Do(func() { r.prog.path, r.prog.output, r.prog.err = r.tool.build(ctx, "apr", "") })
		p = r.prog
	} else {
		p.path, p.output, p.err = r.tool.build(ctx, "apr-"+name, overlay)
	}
	if ctx.Err() != nil {
		return verdict{}, ctx.Err()
	}
	if p.err != nil {
		return verdict{result: broken, observed: "does not build", tail: tail([]byte(p.output))}, nil
	}
	return r.tool.command(ctx, p.path, &c.check, c.quota.least, c.limit)
}

// sortedTests are the names of tests, in order.
func sortedTests(m map[string]*testRun) []string { return slices.Sorted(maps.Keys(m)) }
