//go:build emulate

package distill

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/model"
)

// sectionGPU is a rank of a split teacher on an emulated GPU.
type sectionGPU struct {
	dev      *cuda.Device
	run      *Run
	planned  *dry.Record // of a section
	prepared int64       // bytes
}

// sectionGPUs opens a GPU for each of g's ranks, and prepares those of sections as the plan says.
func sectionGPUs(t *testing.T, g Group, whole *model.Outline, b corpus.Batch) []sectionGPU {
	t.Helper()
	all := make([]sectionGPU, g.All())
	for r, comm := range collective.Local(g.All()) {
		d, err := cuda.Open(cuda.Options{Index: r})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		all[r] = sectionGPU{dev: d, run: &Run{dev: d, comm: comm}}
		own := g
		if own.Rank = r; r >= g.World {
			plans, err := (DryRun{Target: d.Target, Teacher: whole, SeqLen: b.SeqLen, Accum: 1, Ranks: g}).planSections(b.Rows)
			if err != nil {
				t.Fatal(err)
			}
			all[r].planned = plans[r-g.World]
			if err := d.Prepare(all[r].planned); err != nil {
				t.Fatal(err)
			}
			all[r].prepared = d.Stats().Allocated
		} else {
			all[r].run.pupil = &pupil{comm: comm, group: own}
		}
		all[r].run.Config.Ranks = own
	}
	return all
}

// heard asks what the split teacher says of each batch, through the host and from GPU to GPU where that is allowed, and
// returns the answers.
func (k sectionGPU) heard(batches []corpus.Batch, width int) (got [][]byte, err error) {
	p, s := k.run.pupil, k.dev.NewStream()
	act := k.dev.Info().Activations
	for _, p.direct = range []bool{false, p.passes()} {
		for _, b := range batches {
			if err := p.ask(b); err != nil {
				return nil, err
			}
		}
		for _, b := range batches {
			h, err := p.bring(b)
			if err != nil {
				return nil, err
			}
			if h.Receive != nil {
				x := s.Temp("x", device.Activations, act, b.TargetCount(), width)
				h.Receive(s, x)
				if h.Stored, err = download(s, x); err != nil {
					return nil, err
				}
				s.Release(x)
			} else if p.direct {
				return nil, errors.New("what was to come from GPU to GPU came through the host")
			}
			got = append(got, h.Stored)
		}
	}
	return got, nil
}

// teach is the work of a section, on room that was prepared.
func (k sectionGPU) teach(w model.Weights, b corpus.Batch) error {
	g, s := k.run.Config.Ranks, k.dev.NewStream()
	x, err := loadSection(k.dev, s, w, device.Form{}, g.Rank-g.World, g.Teachers, b.Rows, b.SeqLen, false)
	if err != nil {
		return err
	}
	defer func() { x.batch.Free(k.dev) }()
	x.paired = true
	return x.teach(k.run.comm, g, w.Arch().Vocab, func() bool { return false }, nil)
}

// answered lets the ranks meet, ask about batches and teach, and returns the answers to each learning rank.
func answered(t *testing.T, g Group, ranks []sectionGPU, w model.Weights, batches []corpus.Batch) [][][]byte {
	t.Helper()
	errs, told := make([]error, g.All()), make([][][]byte, g.World)
	var asking, all sync.WaitGroup
	asking.Add(g.World)
	for r, k := range ranks {
		all.Go(func() {
			err := k.run.pairDevices()
			if err == nil && r >= g.World {
				err = k.teach(w, batches[0])
			} else if r < g.World {
				if err == nil {
					told[r], err = k.heard(batches, w.Arch().Hidden)
				}
				if asking.Done(); err == nil && r == 0 {
					asking.Wait()
					err = k.run.pupil.dismiss()
				}
			}
			if errs[r] = err; err != nil {
				k.run.comm.Abort(err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return told
}

// Sections of a teacher on GPUs of their own say what the whole teacher says on one, bit for bit: the residual stream,
// with what is still to be added to it (olmo2), and the answer go from GPU to GPU, the answer through the host where
// several learning ranks want one, and before the first step. What a section takes is planned to the byte.
func TestCUDASectionsPassTensors(t *testing.T) {
	openEmulator(t)
	t.Setenv("APR_EMULATOR_DEVICES", "4")
	uneven := unevenBatch()
	for i := range uneven.Tokens {
		uneven.Tokens[i] %= 160 // of both vocabularies
	}
	full := rowBatch(3, uneven.SeqLen, false)
	copy(full.Tokens, uneven.Tokens)
	batches := []corpus.Batch{uneven, full, uneven.Slice(3, 5)}
	for _, k := range []struct {
		g     Group
		model string
	}{
		{Group{World: 1, Teachers: 3, Split: true}, filepath.Join(tiedDir, "teacher")},
		{Group{World: 2, Teachers: 2, Split: true}, filepath.Join(goldens, "families", "olmo2")},
	} {
		files := openModel(t, k.model)
		want, ranks := wholeOnGPU(t, files, batches), sectionGPUs(t, k.g, model.Describe(files), uneven)
		for r, got := range answered(t, k.g, ranks, files, batches) {
			contracttest.Cases(t, 1)
			for i := range got {
				if !slices.Equal(got[i], want[i%len(want)]) {
					t.Errorf("%+v: answer %d to rank %d has other bits than the whole teacher's", k.g, i, r)
				}
			}
			if len(got) != 2*len(want) || ranks[r].run.pupil.passes() != (k.g.World == 1) {
				t.Errorf("%+v: %d answers to rank %d", k.g, len(got), r)
			}
		}
		for r, x := range ranks[k.g.World:] {
			contracttest.Cases(t, 1)
			want, now := x.planned.Total(), x.dev.Stats().Allocated
			if x.prepared != want || now != want {
				t.Errorf("%+v: section %d: %d bytes planned, %d prepared, %d in the end", k.g, r, want, x.prepared, now)
			}
		}
	}
}

// wholeOnGPU returns what the whole teacher says of each batch.
func wholeOnGPU(t *testing.T, w model.Weights, batches []corpus.Batch) (all [][]byte) {
	t.Helper()
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := model.LoadFrozenAs(d, w, device.TeacherWeights, device.Form{})
	if err != nil {
		t.Fatal(err)
	}
	l := newLecturer(d, d.NewStream(), m, batches[0].Rows, batches[0].SeqLen, false)
	for _, b := range batches {
		x, err := l.states(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}
