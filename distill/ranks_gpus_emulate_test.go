//go:build emulate

package distill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"apr/arch"
	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// gpuRank is what a rank on an emulated GPU ends with.
type gpuRank struct {
	state              [][]float32 // all of each parameter's value, moments and weight as products read it
	records            []Record
	planned            *dry.Record
	prepared, finished cuda.Stats
	held               map[device.Component]int64
}

// onGPUs trains a student on an emulated GPU for each rank of g, prepared as the plan says.
func onGPUs(t *testing.T, g Group, c arch.Config, s plan.Setting, batches []corpus.Batch) []gpuRank {
	t.Helper()
	ranks, errs := make([]gpuRank, g.World), make([]error, g.World)
	var wg sync.WaitGroup
	for r, comm := range collective.Local(g.World) {
		d, err := cuda.Open(cuda.Options{Index: r})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if g.World > 1 {
			d.KeepShare(device.Share{Rank: r, World: g.World})
		}
		dir := filepath.Join(tiedDir, "teacher")
		dryRun := DryRun{Target: d.Target, Teacher: model.Describe(openModel(t, dir)), Student: c, SeqLen: batches[0].SeqLen,
			Loss: device.LossSpec{Alpha: 0.5, Temperature: 2}, Vocab: c.Vocab, Accum: 1, Ranks: g}
		own := &ranks[r]
		if own.planned, err = dryRun.Record(s); err != nil {
			t.Fatal(err)
		}
		if err := d.Prepare(own.planned); err != nil {
			t.Fatal(err)
		}
		own.prepared = d.Stats()
		te := loadTeacher(t, d, dir)
		wg.Go(func() {
			errs[r] = own.train(d, comm, te, c, g, s, batches)
			if errs[r] != nil {
				comm.Abort(errs[r])
				d.Part(errs[r])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ranks
}

// train takes the steps of a rank and gathers what all ranks have.
func (own *gpuRank) train(d *cuda.Device, comm collective.Comm, te *teacher.Resident, c arch.Config, g Group,
	set plan.Setting, batches []corpus.Batch) error {
	if g.World > 1 {
		if err := JoinDevices(comm, d); err != nil {
			return err
		}
	}
	s, m := d.NewStream(), model.NewTrainable(d, c)
	m.Init(s, 7)
	b := batches[0]
	tr := newTrainer(m, s, corpus.Batch{Rows: g.shareOf(b.Rows), SeqLen: b.SeqLen}, te,
		device.LossSpec{Alpha: 0.5, Temperature: 2})
	tr.Cut(set)
	if tr.Ranks = g.ranks(); g.World > 1 {
		tr.Ranks.Comm, tr.Ranks.Joined = comm, true
	}
	for _, b := range batches {
		rec, err := tr.Apply(context.Background(), b)
		if err != nil {
			return err
		}
		rec.Phases, rec.Exchange = device.Scalars{}.Phases, 0
		own.records = append(own.records, rec)
	}
	own.finished = d.Stats()
	_, own.held = d.Memory()
	for _, p := range m.Params() {
		for _, k := range []device.Companion{device.OfValue, device.OfM, device.OfV} {
			at := p.Companion(k)
			if p.Shared(k) {
				s.(device.Exchanger).GatherWhole(p, k)
				at = p.Grad
			}
			host := make([]float32, p.Rows*p.Cols)
			if err := s.Download(host, at); err != nil {
				return err
			}
			own.state = append(own.state, host)
		}
		host := make([]float32, p.Rows*p.Cols)
		s.(device.Exchanger).Widen(p)
		if err := s.Download(host, p.Grad); err != nil {
			return err
		}
		own.state = append(own.state, host)
	}
	return nil
}

// The plan of a rank on a GPU is what it reserves, to the byte, and its steps then take nothing more: with shares of
// the training state, with gradients that travel beside the backward pass, and with parts that are computed one after
// the other. What lives long is planned by component.
func TestCUDAPlanOfRanks(t *testing.T) {
	openEmulator(t)
	t.Setenv("APR_EMULATOR_DEVICES", "8")
	for _, g := range []Group{{World: 3}, {World: 2, SameBits: true}, {World: 4, SameBits: true}} {
		t.Run(fmt.Sprint(g.World, g.SameBits), func(t *testing.T) {
			b := unevenBatch()
			s := plan.Setting{BatchSize: b.Rows, MicroRows: 2, ChunkRows: 1024}
			totals := map[int64]bool{}
			for r, own := range onGPUs(t, g, pairConfig(), s, []corpus.Batch{b, b}) {
				contracttest.Cases(t, 1)
				if own.prepared.Allocated != own.planned.Total() {
					t.Errorf("rank %d: %d bytes prepared, the plan says %d", r, own.prepared.Allocated, own.planned.Total())
				}
				if n := own.finished.Allocated - own.prepared.Allocated; n != 0 {
					t.Errorf("rank %d: %d bytes more than planned", r, n)
				}
				for _, c := range []device.Component{device.TeacherWeights, device.StudentWeights, device.Gradients,
					device.Moments} {
					if own.planned.Peak[c] != own.held[c] {
						t.Errorf("rank %d: %d bytes of %v, planned %d", r, own.held[c], c, own.planned.Peak[c])
					}
				}
				totals[own.planned.Total()] = true
			}
			if len(totals) != 1 {
				t.Errorf("ranks plan for different amounts: %v", totals)
			}
		})
	}
}

// wideConfig is a student of which eight ranks share something.
func wideConfig() arch.Config {
	c := pairConfig()
	c.Layers = c.Layers[:1]
	c.Layers[0].FFN.Width = 544
	return c
}

// Under --deterministic=world 1, 2, 4 and 8 GPUs end with the same masters, moments and weights, and have the same
// records, bit for bit: for uneven masks, and rows without a target.
func TestCUDASameBitsForAnyWorld(t *testing.T) {
	openEmulator(t)
	t.Setenv("APR_EMULATOR_DEVICES", "8")
	b := unevenBatch()
	s := plan.Setting{BatchSize: b.Rows, MicroRows: 1, ChunkRows: 1024}
	var alone gpuRank
	for _, world := range []int{1, 2, 4, 8} {
		shared := false
		for r, own := range onGPUs(t, Group{World: world, SameBits: true}, wideConfig(), s, []corpus.Batch{b, b}) {
			if world == 1 {
				alone = own
				continue
			}
			contracttest.Cases(t, 1)
			for i := range own.state {
				if !slices.Equal(own.state[i], alone.state[i]) {
					t.Errorf("rank %d of %d: tensor %d has other bits than one GPU's", r, world, i)
				}
			}
			if fmt.Sprint(own.records) != fmt.Sprint(alone.records) {
				t.Errorf("rank %d of %d: records %+v, one GPU's %+v", r, world, own.records, alone.records)
			}
			shared = shared || own.held[device.Moments] < alone.held[device.Moments]
		}
		if !shared && world > 1 {
			t.Errorf("%d ranks share nothing: the test is of whole tensors alone", world)
		}
	}
}
