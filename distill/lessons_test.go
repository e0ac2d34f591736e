package distill

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"apr/collective"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// runTaught executes c on ranks that learn and ranks that only teach, and returns rank 0's outcome and every rank's
// error. stopAfter 0 lets it run to the end; else rank 0 is stopped after so many steps.
func runTaught(t *testing.T, c Config, learning, teaching, stopAfter int) (*Outcome, []error) {
	t.Helper()
	world := learning + teaching
	m, errs, outs := newMeeting(world), make([]error, world), make([]*Outcome, world)
	var wg sync.WaitGroup
	for rank := range world {
		own := c
		own.Ranks.Rank, own.Ranks.World, own.Ranks.Teachers, own.Ranks.Join = rank, learning, teaching, m.join(rank)
		own.Ranks.Split = c.Ranks.Split
		stop := stopAfter
		if rank > 0 {
			own.Output, stop = filepath.Join(t.TempDir(), "rank"), 0
		}
		wg.Go(func() { outs[rank], _, errs[rank] = runOnce(t, own, 1, stop) })
	}
	wg.Wait()
	return outs[0], errs
}

// shortData is c on the beginnings of a few documents, which each rank reads in no time.
func shortData(t *testing.T, c Config) Config {
	t.Helper()
	c = brief(t, c)
	text, err := os.ReadFile(c.Data[0])
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfterN(text, []byte("\n"), 31)
	if err := os.WriteFile(c.Data[0], bytes.Join(lines[:30], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// A student that other ranks teach has the bytes of one whose ranks each hold the teacher, at the same number of ranks
// that learn: for fewer, as many and more teaching ranks, masked rows, documents kept apart, and --deterministic=world.
func TestTaughtAsReplicated(t *testing.T) {
	base := shortData(t, ranksConfig(t))
	base.Steps, base.CheckpointEvery = 3, 0
	apart, world := in(t, base), in(t, base)
	apart.DocumentMask, apart.Loss = true, device.LossSpec{Alpha: 1, Temperature: 2, Divergence: device.ReverseKL}
	apart.Packing = false
	world.Ranks.SameBits = true
	for _, k := range []struct {
		name               string
		c                  Config
		learning, teaching int
	}{
		{"one and three", base, 1, 3}, {"three and two", apart, 3, 2}, {"same bits", world, 2, 1},
	} {
		contracttest.Cases(t, 1)
		want, got := in(t, k.c), in(t, k.c)
		if k.learning > 1 {
			_, errs := runRanks(t, want, k.learning, 0, 0)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		} else if _, _, err := runOnce(t, want, 1, 0); err != nil {
			t.Fatal(err)
		}
		_, errs := runTaught(t, got, k.learning, k.teaching, 0)
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		if !bytes.Equal(studentBytes(t, got), studentBytes(t, want)) {
			t.Errorf("%s: the student has other bytes than with the teacher on every rank", k.name)
		}
	}
}

// A teacher whose layers are divided among the teaching ranks gives the student the same bytes, for learning ranks that
// share the sections, for masked rows, documents kept apart and parts of a step; and held-out scores are the same.
func TestSplitTeacher(t *testing.T) {
	base := shortData(t, ranksConfig(t))
	base.Steps, base.CheckpointEvery = 2, 0
	base.DocumentMask, base.Loss = true, device.LossSpec{Alpha: 1, Temperature: 2, Divergence: device.ReverseKL}
	base.Packing = false
	same := base
	same.Ranks.SameBits, base.ValFraction = true, 0.2
	for _, k := range []struct {
		c                  Config
		learning, teaching int
	}{{base, 2, 2}, {same, 1, 3}} {
		contracttest.Cases(t, 1)
		want, got := in(t, k.c), in(t, k.c)
		alone, errs := runRanks(t, want, k.learning, 0, 0)
		if errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		got.Ranks.Split = true
		out, errs := runTaught(t, got, k.learning, k.teaching, 0)
		if errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		if k.c.ValFraction > 0 {
			sameScores(t, out, alone, nameTeacher, nameDistilled)
		}
		if !bytes.Equal(studentBytes(t, got), studentBytes(t, want)) {
			t.Errorf("%d learning ranks, %d sections: the student has other bytes than with the teacher on every rank",
				k.learning, k.teaching)
		}
	}
	c := shortData(t, ranksConfig(t))
	c.Ranks = Group{World: 1, Teachers: 40, Split: true}
	if _, err := EstimateRun(context.Background(), c, newCPU(t), &quiet{}); fault.KindOf(err) != fault.Usage {
		t.Errorf("%v, want a refusal of more sections than layers", err)
	}
}

// A run is stopped and goes on with other teaching ranks, or with none, and ends with the bytes of an unbroken one.
func TestTaughtGoesOn(t *testing.T) {
	c := ranksConfig(t)
	c.Control, c.ValFraction = true, 0.2
	c = shortData(t, c)
	alone, _, err := runOnce(t, c, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := studentBytes(t, c)
	for _, then := range []int{2, 0} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		_, errs := runTaught(t, c, 1, 1, 3)
		for r, err := range errs {
			if fault.KindOf(err) != fault.Stopped {
				t.Fatalf("rank %d: %v, want a stop", r, err)
			}
		}
		c.Resume = ResumeAuto
		out, errs := runTaught(t, c, 1, then, 0)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(studentBytes(t, c), want) {
			t.Errorf("then %d teaching ranks: the student has other bytes than that of an unbroken run", then)
		}
		sameScores(t, out, alone, nameTeacher, nameDistilled, nameControl)
	}
}

// sameScores demands equal scores of held-out text.
func sameScores(t *testing.T, got, want *Outcome, names ...string) {
	t.Helper()
	for _, name := range names {
		if e, w := got.Evaluation(name), want.Evaluation(name); e == nil || e.Targets != w.Targets ||
			e.NatsPerToken != w.NatsPerToken || e.KL != w.KL || !e.KL.Finite() {
			t.Errorf("the %s scores %+v, want %+v", name, e, w)
		}
	}
}

// A teaching rank that ends is named on every learning rank, and the run can go on from its checkpoint.
func TestLostTeacherIsNamed(t *testing.T) {
	c := ranksConfig(t)
	m, errs := newMeeting(3), make([]error, 3)
	var wg sync.WaitGroup
	for rank := range 2 {
		own := c
		own.Ranks = Group{Rank: rank, World: 2, Teachers: 1, Join: m.join(rank)}
		if rank > 0 {
			own.Output = filepath.Join(t.TempDir(), "rank")
		}
		wg.Go(func() { _, _, errs[rank] = runOnce(t, own, 1, 0) })
	}
	wg.Go(func() { // it meets the others, hears a question, and never answers
		_, _, err := m.comms[2].Take(collective.Anyone)
		m.comms[2].Abort(errors.Join(err, errors.New("out of memory")))
	})
	wg.Go(func() { errs[2] = errors.Join(m.comms[2].Barrier(), m.comms[2].Barrier()) })
	wg.Wait()
	for rank, err := range errs[:2] {
		contracttest.Cases(t, 1)
		if fault.KindOf(err) != fault.Stopped || !strings.Contains(err.Error(), "rank 2 of 3 failed: out of memory") {
			t.Errorf("rank %d: %v, want rank 2 named", rank, err)
		}
	}
	if errs[2] != nil {
		t.Error(errs[2])
	}
}

// What has no effect beside ranks that only teach, or is not built, is refused by name before anything is read.
func TestTeacherRanksRefuse(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		"fewer than 9 ranks":           func(c *Config) { c.Ranks = Group{World: 9, Teachers: 1} },
		"leaves no rank that learns":   func(c *Config) { c.Ranks = Group{World: 0, Teachers: 2} },
		"has no effect with --alpha 0": func(c *Config) { c.Loss.Alpha = 0 },
		"has no effect with --cache":   func(c *Config) { c.FromCache = "cache" },
		"has no effect without":        func(c *Config) { c.Ranks = Group{World: 2, Split: true} },
		"nothing to divide":            func(c *Config) { c.Ranks.Split = true },
		"a teacher at tcp://":          func(c *Config) { c.FromCache, c.Remote = "tcp://h:1", &Remote{} },
		"with --strategy ensemble":     func(c *Config) { c.Ensemble.More = []string{"../testdata/models/other"} },
		"with --strategy progressive":  func(c *Config) { c.Guide.Weight = 1 },
		"with --teacher-gemm fp8":      func(c *Config) { c.TeacherFP8 = true },
		"with --teacher-experts host":  func(c *Config) { c.HostExperts = true },
	} {
		contracttest.Cases(t, 1)
		c := ranksConfig(t)
		c.Ranks = Group{World: 1, Teachers: 1}
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The plan of ranks that only teach says what each kind holds and does, and which way is faster: where rows are fewer
// than ranks, or the whole teacher does not fit, only one way is left.
func TestTeachingPlan(t *testing.T) {
	c := shortData(t, ranksConfig(t))
	c.Ranks = Group{World: 1, Teachers: 1}
	estimate := func(c Config) *Estimate {
		d := newCPU(t)
		e, err := EstimateRun(context.Background(), c, d, &quiet{})
		if err != nil || e.Teaching == nil {
			t.Fatalf("%+v: %v", e, err)
		}
		contracttest.Cases(t, 1)
		return e
	}
	e := estimate(c)
	p := e.Teaching
	if p.Memory.Teacher <= e.Memory.Teacher || p.Memory.Student != 0 {
		t.Errorf("a teaching rank has no more of the teacher than a learning one: %+v, %+v", p.Memory, e.Memory)
	}
	if p.Faster != FasterReplicated || !(p.ReplicatedFLOPs > 0) || !(p.busiest() > p.ReplicatedFLOPs) ||
		!(p.TeachingFLOPs+p.LearningFLOPs > 1.9*p.ReplicatedFLOPs) ||
		!(p.TeachingFLOPs+p.LearningFLOPs < 2.1*p.ReplicatedFLOPs) {
		t.Errorf("one of each kind beside two alike: %+v", p)
	}
	c.Ranks = Group{World: 2, Teachers: 8}
	if p := estimate(c).Teaching; p.Faster != FasterTaught || p.ReplicatedMemory != nil {
		t.Errorf("8 rows and 10 ranks: %+v", p)
	}
	c.Ranks = Group{World: 2, Teachers: 1, SameBits: true}
	if p := estimate(c).Teaching; p.Faster != FasterTaught || p.ReplicatedMemory != nil || !strings.Contains(p.Reason, "1, 2, 4 or 8") {
		t.Errorf("three ranks that each have the teacher are refused under --deterministic=world: %+v", p)
	}
}

// A teaching rank that several learning ranks have in common passes nothing from device to device: it would wait for
// one of them, and the others for it. So would the last section of a split teacher.
func TestSharedTeacherPassesNothing(t *testing.T) {
	for g, want := range map[[2]int][2]bool{ // learning and teaching ranks; of a whole and of a split teacher
		{1, 2}: {true, true}, {2, 2}: {true, false}, {1, 3}: {true, true}, {2, 1}: {false, false}, {3, 2}: {false, false},
	} {
		contracttest.Cases(t, 1)
		for i, split := range []bool{false, true} {
			p := &pupil{group: Group{World: g[0], Teachers: g[1], Split: split}}
			none := p.passes()
			if p.paired = true; p.passes() != want[i] || none {
				t.Errorf("%d and %d ranks, split %v: passes %v, without pairs %v", g[0], g[1], split, p.passes(), none)
			}
		}
	}
}

// Whose devices are joined: a learning rank's with those that answer it, sections' in a row, and the last one's with
// the learning rank if there is one alone. Each pair is seen from both sides, and the plan's note counts them.
func TestPairs(t *testing.T) {
	for _, k := range []struct {
		g    Group
		to   [][]int // by rank
		note string
	}{
		{Group{World: 2}, [][]int{nil, nil}, ""},
		{Group{World: 1, Teachers: 2}, [][]int{nil, {0}, {0}}, "2 pairs of a rank that learns, 1 pair of one that teaches"},
		{Group{World: 3, Teachers: 2}, [][]int{nil, nil, nil, {0, 1}, {2}}, "1 pair of a rank that learns, 2 pairs of one"},
		{Group{World: 1, Teachers: 3, Split: true}, [][]int{nil, {2}, {3}, {0}},
			"1 pair of a rank that learns, 2 pairs of one"},
		{Group{World: 2, Teachers: 2, Split: true}, [][]int{nil, nil, {3}, nil},
			"0 pairs of a rank that learns, 1 pair of one"},
	} {
		contracttest.Cases(t, 1)
		from := make([][]int, len(k.to))
		for r, peers := range k.to {
			for _, p := range peers {
				from[p] = append(from[p], r)
			}
		}
		for r := range k.to {
			if f, to := k.g.pairs(r); !slices.Equal(f, from[r]) || !slices.Equal(to, k.to[r]) {
				t.Errorf("%+v: rank %d receives from %v and passes to %v", k.g, r, f, to)
			}
		}
		if note := k.g.notPairs(); !strings.Contains(note, k.note) {
			t.Errorf("%+v: %s", k.g, note)
		}
	}
}

// A teaching rank that does not hold its part is what the candidate fails for, with its own memory, and the advice is
// what this run does not have yet.
func TestTeachingRankTooLarge(t *testing.T) {
	const q4k, split, more = "--teacher-backend q4k", "--teacher-split divides", "a larger --teacher-ranks"
	for _, k := range []struct {
		backend teacher.Backend
		split   bool
		want    []string
	}{
		{teacher.Cublas, false, []string{q4k, split}}, {teacher.Cublas, true, []string{q4k, more}},
		{teacher.Q4K, false, []string{split}}, {teacher.Q4K, true, []string{more}}, {teacher.CPU, true, []string{more}},
	} {
		contracttest.Cases(t, 1)
		d := DryRun{Target: budgeted{newCPU(t).(*cpu.Device), 1000}.Target, SeqLen: 16, Accum: 1,
			Teacher: model.Describe(openModel(t, filepath.Join(tiedDir, "teacher"))),
			Ranks:   Group{World: 1, Teachers: 2, Split: k.split}}
		c := &Candidate{Backend: k.backend, Verdict: plan.Ready, Reason: "needs little", Memory: &plan.Memory{Total: 1},
			plan: plan.Plan{Setting: plan.Setting{BatchSize: 2}}}
		err := d.planLessons(c)
		if fault.KindOf(err) != fault.Memory || c.Verdict != plan.TooLarge || c.Memory.Total <= 1000 ||
			!strings.Contains(c.Reason, "a rank that only teaches needs") {
			t.Errorf("%v, %s, %s, %d bytes", err, c.Verdict, c.Reason, c.Memory.Total)
		}
		var f *fault.Error
		errors.As(err, &f)
		for _, advice := range []string{q4k, split, more} {
			if has := strings.Contains(f.Hint, advice); has != slices.Contains(k.want, advice) {
				t.Errorf("%s, split %v: the hint %q", k.backend, k.split, f.Hint)
			}
		}
	}
}

// A plan that fails for a teaching rank shows what that rank needs, and the largest batch is one that teaching ranks
// have room for, too.
func TestPlanOfLargeTeachingRank(t *testing.T) {
	contracttest.Cases(t, 2)
	c := shortData(t, ranksConfig(t))
	c.Ranks = Group{World: 1, Teachers: 1}
	free := newCPU(t)
	e, err := EstimateRun(context.Background(), c, free, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	budget := (e.Memory.Total + e.Teaching.Memory.Total) / 2 // for a learning rank alone
	e, err = EstimateRun(context.Background(), c, budgeted{free.(*cpu.Device), budget}, &quiet{})
	if fault.KindOf(err) != fault.Memory || e.Verdict != plan.TooLarge || e.Memory.Total <= budget ||
		e.LargestBatch.Size >= c.BatchSize {
		t.Fatalf("%v, %s, %d bytes of %d, largest batch %+v", err, e.Verdict, e.Memory.Total, budget, e.LargestBatch)
	}
	if c.BatchSize = e.LargestBatch.Size; c.BatchSize > 0 {
		if _, err := EstimateRun(context.Background(), c, budgeted{free.(*cpu.Device), budget}, &quiet{}); err != nil {
			t.Error(err)
		}
	}
}
