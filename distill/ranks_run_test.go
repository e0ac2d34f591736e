package distill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"apr/collective"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
)

// meeting joins ranks in this process as the sockets of processes do: what has to agree is compared.
type meeting struct {
	comms  []collective.Comm
	mu     sync.Mutex
	fields []collective.Field
}

func newMeeting(world int) *meeting { return &meeting{comms: collective.Local(world)} }

func (m *meeting) join(rank int) func(context.Context, []collective.Field) (collective.Comm, error) {
	return func(_ context.Context, fields []collective.Field) (collective.Comm, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.fields == nil {
			m.fields = fields
		}
		if !slices.Equal(fields, m.fields) {
			return nil, errors.New("the fields differ")
		}
		return m.comms[rank], nil
	}
}

// runRanks executes c on every rank of a world, and returns rank 0's outcome and every rank's error. stopAfter 0 lets
// it run to the end; else rank stopper is stopped after so many steps.
func runRanks(t *testing.T, c Config, world, stopper, stopAfter int) (*Outcome, []error) {
	t.Helper()
	m, errs, outs := newMeeting(world), make([]error, world), make([]*Outcome, world)
	var wg sync.WaitGroup
	for rank := range world {
		own := c
		own.Ranks.Rank, own.Ranks.World, own.Ranks.Join = rank, world, m.join(rank)
		if rank > 0 {
			own.Output = filepath.Join(t.TempDir(), "rank")
		}
		stop := 0
		if rank == stopper {
			stop = stopAfter
		}
		wg.Go(func() { outs[rank], _, errs[rank] = runOnce(t, own, 1, stop) })
	}
	wg.Wait()
	return outs[0], errs
}

// ranksConfig is a run whose steps have 8 rows.
func ranksConfig(t *testing.T) Config {
	t.Helper()
	c := tinyConfig(t)
	c.BatchSize, c.GradAccum, c.Steps, c.CheckpointEvery = 4, 2, 6, 2
	return c
}

// A run with several ranks is the run of one process: one run directory, the same steps within the tolerances of
// losses, the same number of outputs.
func TestRunWithRanks(t *testing.T) {
	c := brief(t, ranksConfig(t))
	c.Control, c.ValFraction, c.EvalEvery = true, 0.2, 3
	alone, _, err := runOnce(t, c, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := readSteps(t, c)
	for _, world := range []int{2, 4} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		out, errs := runRanks(t, c, world, 0, 0)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		steps := readSteps(t, c)
		if len(steps) != len(want) || len(out.Outputs) != len(alone.Outputs) || out.Checkpoints != alone.Checkpoints ||
			out.TokensSeen != alone.TokensSeen {
			t.Errorf("%d ranks: %d steps, %d outputs, %d checkpoints, %d tokens; alone %d, %d, %d and %d", world, len(steps),
				len(out.Outputs), out.Checkpoints, out.TokensSeen,
				len(want), len(alone.Outputs), alone.Checkpoints, alone.TokensSeen)
		}
		for i := range steps {
			for _, key := range []string{"loss", "ce", "grad_norm"} {
				near.CheckRel(t, fmt.Sprintf("%d ranks, step %d: %s", world, i, key), []float64{steps[i][key].(float64)},
					[]float64{want[i][key].(float64)}, 1e-4)
			}
		}
	}
}

// Under --deterministic=world the student's bytes are those of any number of ranks; a run that is stopped with one
// number and goes on with another ends with the same bytes.
func TestSameBitsForAnyWorld(t *testing.T) {
	c := ranksConfig(t)
	c.Ranks.SameBits = true
	_, errs := runRanks(t, c, 1, 0, 0)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	want := studentBytes(t, c)
	for _, world := range []int{2, 4, 8} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		_, errs := runRanks(t, c, world, 0, 0)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(studentBytes(t, c), want) {
			t.Errorf("%d ranks: the student has other bytes than that of one", world)
		}
	}
	for _, worlds := range [][2]int{{4, 2}, {2, 8}, {4, 1}} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		_, errs := runRanks(t, c, worlds[0], worlds[0]-1, 3) // the last rank is the one that is stopped
		for r, err := range errs {
			if fault.KindOf(err) != fault.Stopped {
				t.Fatalf("%v: rank %d: %v, want a stop", worlds, r, err)
			}
		}
		c.Resume = ResumeAuto
		_, errs = runRanks(t, c, worlds[1], 0, 0)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(studentBytes(t, c), want) {
			t.Errorf("%d ranks, then %d: the student has other bytes than that of an unbroken run", worlds[0], worlds[1])
		}
	}
}

// Without it a run goes on with another number of ranks only where --elastic allows it, and says so.
func TestElasticResume(t *testing.T) {
	c := ranksConfig(t)
	if _, errs := runRanks(t, c, 4, 0, 3); fault.KindOf(errs[0]) != fault.Stopped {
		t.Fatal(errs)
	}
	c.Resume = ResumeAuto
	for _, world := range []int{1, 2} {
		contracttest.Cases(t, 1)
		_, errs := runRanks(t, c, world, 0, 0)
		if fault.KindOf(errs[0]) != fault.Invalid || !strings.Contains(errs[0].Error(), "ranks was 4") {
			t.Errorf("4 ranks, then %d: %v, want a refusal that names the ranks", world, errs[0])
		}
	}
	c.Ranks.Least, c.Ranks.Most = 1, 2
	out, errs := runRanks(t, c, 2, 0, 0)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if err != nil || !strings.Contains(string(events), "ranks was 4, is 2") || !strings.Contains(string(events),
		`"--elastic"`) {
		t.Errorf("the change is not recorded (%v)", err)
	}
	if out.StepsCompleted != 6 || out.TokensSeen != 6*8*32 {
		t.Errorf("%d steps, %d tokens", out.StepsCompleted, out.TokensSeen)
	}
}

// A rank that is not taken, here one of another program, ends all once it says so; none goes on alone.
func TestRanksEndTogether(t *testing.T) {
	c := ranksConfig(t)
	m, errs := newMeeting(4), make([]error, 4)
	var wg sync.WaitGroup
	for rank := range errs {
		own := c
		own.Ranks = Group{Rank: rank, World: 4, Join: m.join(rank)}
		if rank > 0 {
			own.Output = filepath.Join(t.TempDir(), "rank")
		}
		if rank == 2 {
			own.Build = "another" // the meeting compares it
		}
		wg.Go(func() { _, _, errs[rank] = runOnce(t, own, 1, 0) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	m.comms[2].Abort(errors.New("the test ends the others"))
	<-done
	for rank, err := range errs {
		contracttest.Cases(t, 1)
		if err == nil {
			t.Errorf("rank %d went on alone", rank)
		}
	}
}

// Fewer rows than ranks, or a number of ranks that eight parts cannot be dealt to, is refused before anything is read.
func TestRanksRefuseSteps(t *testing.T) {
	for _, g := range []struct {
		Group
		want string
	}{{Group{World: 9}, "8 rows is fewer than 9 ranks"}, {Group{World: 3, SameBits: true},
		"3 ranks: it is for 1, 2, 4 or 8"}} {
		contracttest.Cases(t, 1)
		c := ranksConfig(t)
		c.Ranks = g.Group
		if _, _, err := runOnce(t, c, 1, 0); fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), g.want) {
			t.Errorf("%v, want %q", err, g.want)
		}
		if _, err := os.Stat(c.Output); err == nil {
			t.Error("a run directory was made")
		}
	}
}
