package distill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/adapter"
	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/optim"
	"apr/teacher"
)

// worldSizes are the numbers of ranks that a step is tried with.
var worldSizes = []int{1, 2, 4, 8}

// together makes a trainer for each rank of a world in this process.
func together(t *testing.T, world, leaves int, one func() *Trainer) []*Trainer {
	t.Helper()
	all := make([]*Trainer, world)
	for r, c := range collective.Local(world) {
		all[r] = one()
		all[r].Ranks = Ranks{Comm: c, Leaves: leaves}
	}
	return all
}

// applyAll applies one step on every rank, at the same time.
func applyAll(all []*Trainer, b func(rank int) corpus.Batch) ([]Record, []error) {
	recs, errs := make([]Record, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for r, tr := range all {
		wg.Go(func() { recs[r], errs[r] = tr.Apply(context.Background(), b(r)) })
	}
	wg.Wait()
	return recs, errs
}

// applied is applyAll of a step that succeeds, and the record of rank 0, which is that of every rank but for times.
func applied(t *testing.T, all []*Trainer, b corpus.Batch) Record {
	t.Helper()
	recs, errs := applyAll(all, func(int) corpus.Batch { return b })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for r := range recs {
		recs[r].Phases, recs[r].Exchange = recs[0].Phases, recs[0].Exchange
		if recs[r] != recs[0] {
			t.Fatalf("rank %d records %+v, rank 0 %+v", r, recs[r], recs[0])
		}
	}
	return recs[0]
}

// sharedLosses are the objectives that ranks are tried with.
var sharedLosses = map[string]device.LossSpec{
	"kd":         {Alpha: 0.5, Temperature: 2},
	"reverse kl": {Alpha: 1, Temperature: 1, Divergence: device.ReverseKL},
}

// The gradient of a step does not depend on how many ranks compute it, though rows have many, few and no targets and
// ranks may have none, or no row at all: the losses of all rows are divided by one N and added.
func TestRanksDoNotChangeTheGradient(t *testing.T) {
	// 5 rows: shares of different sizes, and ranks without a row.
	for _, b := range []corpus.Batch{unevenBatch(), unevenBatch().Slice(0, 5)} {
		for name, spec := range sharedLosses {
			one := tinyTrainer(t, b, spec)
			whole := apply(t, one, b)
			want, weights := get(t, one, grad), get(t, one, value)
			for _, leaves := range []int{0, WorldLeaves} {
				for _, world := range worldSizes {
					contracttest.Cases(t, 1)
					what := fmt.Sprintf("%s, %d rows, %d ranks, %d leaves", name, b.Rows, world, leaves)
					all := together(t, world, leaves, func() *Trainer { return tinyTrainer(t, b, spec) })
					rec := applied(t, all, b)
					if rec.Targets != b.TargetCount() || rec.Tokens != b.Rows*b.SeqLen || rec.Positions != whole.Positions ||
						rec.Agree != whole.Agree {
						t.Errorf("%s: record %+v, want %+v", what, rec, whole)
					}
					near.CheckRel(t, what+": loss, CE, D, norm", []float64{rec.Loss, rec.MeanCE, rec.MeanD, rec.GradNorm},
						[]float64{whole.Loss, whole.MeanCE, whole.MeanD, whole.GradNorm}, 1e-6)
					for r, tr := range all {
						for name, g := range get(t, tr, grad) {
							near.CheckL2(t, fmt.Sprintf("%s: gradient of %s on rank %d", what, name, r), g, want[name], 1e-5)
						}
						for name, w := range get(t, tr, value) {
							near.CheckL2(t, fmt.Sprintf("%s: %s on rank %d", what, name, r), w, weights[name], rounding(name))
						}
					}
				}
			}
		}
	}
}

// rounding is what another order of sums may change in a parameter after a step, of its norm. The terms of a gradient
// of k's bias nearly cancel, since a softmax stays as it is when all scores of a row grow alike, and AdamW divides a
// gradient by its own size: with AVX2, whose vectors sum otherwise than AVX-512's, that bias is at 1.2e-5, all others
// below 1e-5.
func rounding(name string) float64 {
	if strings.HasSuffix(name, "k_proj.bias") {
		return 2e-5
	}
	return 1e-5
}

// With leaves, the bits of gradients, weights, moments and losses are the same for 1, 2, 4 and 8 ranks, step after
// step. Without them they are not: what is compared can tell them apart.
func TestLeavesGiveTheSameBits(t *testing.T) {
	for _, leaves := range []int{WorldLeaves, 0} {
		var want []map[string][]float32
		var records []Record
		same := true
		for _, world := range worldSizes {
			contracttest.Cases(t, 1)
			all := together(t, world, leaves, func() *Trainer { return tinyTrainer(t, unevenBatch(), sharedLosses["kd"]) })
			var got []Record
			for step := range 3 {
				b := unevenBatch()
				b.Mask[step] = 0
				rec := applied(t, all, b)
				rec.Phases, rec.Exchange = [device.NumPhases]time.Duration{}, 0
				got = append(got, rec)
			}
			for r, tr := range all {
				state := []map[string][]float32{get(t, tr, grad), get(t, tr, value), get(t, tr,
					func(p *device.Param) device.Tensor { return p.V })}
				if want == nil {
					want, records = state, got
				}
				for i := range want {
					for name := range want[i] {
						if !slices.Equal(state[i][name], want[i][name]) {
							same = false
							if leaves > 0 {
								t.Errorf("%d ranks, rank %d: %s has other bits than one rank gives", world, r, name)
							}
						}
					}
				}
			}
			for i := range records {
				if got[i] != records[i] {
					same = false
					if leaves > 0 {
						t.Errorf("%d ranks: step %d is %+v, of one rank %+v", world, i, got[i], records[i])
					}
				}
			}
		}
		if leaves == 0 && same {
			t.Error("sums of any order have the same bits: the comparison cannot fail")
		}
	}
}

// The 40 steps of the golden trajectory come out the same at every world size, as close as one process comes to them.
// With 8 ranks half of them have no row.
func TestRanksFollowTheGoldenTrajectory(t *testing.T) {
	const tol = 1e-5
	var g trajectory
	readJSON(t, filepath.Join(goldens, "trajectory", "trajectory.json"), &g)
	rows := openFixture(t, filepath.Join(goldens, "trajectory", "batches.safetensors")).ints("tokens")
	c := g.Config
	for _, world := range worldSizes[1:] {
		all := together(t, world, 0, func() *Trainer {
			d := testDevice(t)
			s := d.NewStream()
			tr := newTrainer(loadStudent(t, d, s, filepath.Join(goldens, "trajectory", "student")), s, corpus.Batch{Rows: c.B,
				SeqLen: c.T},
				loadTeacher(t, d, "../testdata/models/gosrc"), device.LossSpec{Alpha: 1 - c.CEWeight, Temperature: c.Temperature})
			tr.Optimizer.Schedule = optim.Schedule{Kind: optim.Cosine, Peak: c.LR, Warmup: c.Warmup, Steps: c.Steps,
				MinRatio: 0.1}
			return tr
		})
		worst := 0.0
		for k, want := range g.Steps {
			rec := applied(t, all, trajectoryBatch(rows, k, c.B, c.T))
			what := fmt.Sprintf("%d ranks, step %d: ", world, k)
			near.CheckRel(t, what+"loss, CE, KL", []float64{rec.Loss, rec.MeanCE, rec.MeanD}, []float64{want.Loss, want.CE,
				want.KL}, tol)
			near.CheckRel(t, what+"gradient norm", []float64{rec.GradNorm}, []float64{want.GradNorm}, 10*tol)
			worst = math.Max(worst, math.Abs(rec.Loss-want.Loss)/want.Loss)
		}
		near.Row(t, fmt.Sprintf("%d ranks, loss over %d steps: largest relative deviation", world, len(g.Steps)), worst, tol)
		contracttest.Cases(t, len(g.Steps))
	}
}

// A gradient that is not finite on one rank is refused by all of them, and no weight moves.
func TestRanksAgreeOnTheVerdict(t *testing.T) {
	b := unevenBatch()
	all := together(t, 4, 0, func() *Trainer { return tinyTrainer(t, b, sharedLosses["kd"]) })
	te := all[3].Teacher
	all[3].Teacher = infinite{te}
	before := get(t, all[0], value)
	recs, errs := applyAll(all, func(int) corpus.Batch { return b })
	for r, err := range errs {
		contracttest.Cases(t, 1)
		if !errors.Is(err, ErrNonFinite) || recs[r].Bad != recs[0].Bad || all[r].Steps != 1 || all[r].Optimizer.Applied != 0 {
			t.Errorf("rank %d: %v, first bad %q of %q; %d steps, %d applied", r, err, recs[r].Bad, recs[0].Bad, all[r].Steps,
				all[r].Optimizer.Applied)
		}
		for name, v := range get(t, all[r], value) {
			if !slices.Equal(v, before[name]) {
				t.Errorf("rank %d: %s changed", r, name)
			}
		}
	}
	all[3].Teacher = te
	applied(t, all, b) // and they go on together
}

// Ranks that have read another batch, or are at another step, are refused before gradients meet, and no weight moves.
func TestRanksRefuseDifferentBatches(t *testing.T) {
	b := unevenBatch()
	for name, c := range map[string]struct {
		change func(tr *Trainer, b *corpus.Batch)
		want   string
	}{
		"another token": {func(_ *Trainer, b *corpus.Batch) { b.Tokens = slices.Clone(b.Tokens); b.Tokens[90]++ },
			"checksum of the batch"},
		"another target": {func(_ *Trainer, b *corpus.Batch) { b.Targets = slices.Clone(b.Targets); b.Targets[3]++ },
			"checksum of the batch"},
		"another mask":   {func(_ *Trainer, b *corpus.Batch) { b.Mask = slices.Repeat([]uint8{1}, len(b.Mask)) }, "targets"},
		"another step":   {func(tr *Trainer, _ *corpus.Batch) { tr.Steps++ }, "steps"},
		"an update less": {func(tr *Trainer, _ *corpus.Batch) { tr.Optimizer.Applied++ }, "updates"},
	} {
		contracttest.Cases(t, 1)
		all := together(t, 4, 0, func() *Trainer { return tinyTrainer(t, b, sharedLosses["kd"]) })
		before := get(t, all[0], value)
		other := b
		c.change(all[2], &other)
		_, errs := applyAll(all, func(rank int) corpus.Batch {
			if rank == 2 {
				return other
			}
			return b
		})
		for r, err := range errs {
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "same batch") {
				t.Errorf("%s: rank %d: %v, want an error that names the %s", name, r, err, c.want)
			}
			for name, v := range get(t, all[r], value) {
				if !slices.Equal(v, before[name]) {
					t.Errorf("rank %d: %s changed", r, name)
				}
			}
		}
	}
}

// Weights that are not the same on every rank are found, and the rank that differs from rank 0 is named.
func TestRanksCompareWeights(t *testing.T) {
	b := unevenBatch()
	all := together(t, 4, 0, func() *Trainer { return tinyTrainer(t, b, sharedLosses["kd"]) })
	agree := func() error {
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for r, tr := range all {
			wg.Go(func() { errs[r] = tr.Agree() })
		}
		wg.Wait()
		for _, err := range errs {
			if (err == nil) != (errs[0] == nil) {
				t.Errorf("ranks judge differently: %v", errs)
			}
		}
		return errs[0]
	}
	applied(t, all, b)
	if err := agree(); err != nil {
		t.Fatal(err)
	}
	tr := all[2]
	p := tr.Student.Params()[len(tr.Student.Params())-1]
	host := make([]float32, p.Rows*p.Cols)
	if err := tr.stream.Download(host, p.Value); err != nil {
		t.Fatal(err)
	}
	host[len(host)-1] = math.Nextafter32(host[len(host)-1], 9) // the last bit of the last weight
	tr.stream.Upload(p.Value, host)
	contracttest.Cases(t, 2)
	if err := agree(); err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("error %v, want one that names rank 2", err)
	}
}

// An error of one rank ends the step of all, and each says which rank it was.
func TestARanksErrorReachesAll(t *testing.T) {
	b := unevenBatch()
	all := together(t, 4, 0, func() *Trainer { return tinyTrainer(t, b, sharedLosses["kd"]) })
	all[1].Teacher = broken{all[1].Teacher}
	_, errs := applyAll(all, func(int) corpus.Batch { return b })
	for r, err := range errs {
		contracttest.Cases(t, 1)
		var lost *collective.Lost
		if !errors.As(err, &lost) != (r == 1) || !strings.Contains(err.Error(), "the cache cannot be read") {
			t.Errorf("rank %d: %v", r, err)
		}
		if r != 1 && lost.Rank != 1 {
			t.Errorf("rank %d: %v, want rank 1 named", r, err)
		}
	}
}

// Dropout depends on a position's place in the step, not on who computes it.
func TestRanksDropTheSame(t *testing.T) {
	b := unevenBatch()
	adapted := func() *Trainer {
		d := newCPU(t)
		s := d.NewStream()
		f := openModel(t, filepath.Join(tiedDir, "student"))
		a, err := adapter.New(f.Config, []string{"q", "down", "head"}, 4, 8, 0.3)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := LoadAdapted(d, f, a, 7)
		if err != nil {
			t.Fatal(err)
		}
		m.Init(s, 7)
		return newTrainer(m, s, b, loadTeacher(t, d, filepath.Join(tiedDir, "teacher")), sharedLosses["kd"])
	}
	one := adapted()
	apply(t, one, b)
	apply(t, one, b) // B is no longer zero: A has a gradient
	want := get(t, one, grad)
	for _, world := range worldSizes {
		contracttest.Cases(t, 1)
		all := together(t, world, WorldLeaves, adapted)
		applied(t, all, b)
		applied(t, all, b)
		for name, g := range get(t, all[0], grad) {
			near.CheckL2(t, fmt.Sprintf("%d ranks: gradient of %s", world, name), g, want[name], 1e-4)
		}
	}
}

// infinite is a teacher whose logits are not finite.
type infinite struct{ teacher.Teacher }

func (x infinite) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	x.Teacher.Logits(s, lo, hi, dst)
	s.Scale(dst, dst, math.MaxFloat64)
}

// broken is a teacher that cannot be asked.
type broken struct{ teacher.Teacher }

func (broken) Fetch(corpus.Batch) error { return errors.New("the cache cannot be read") }
