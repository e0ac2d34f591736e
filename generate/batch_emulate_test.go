//go:build emulate

package generate_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/cuda/emulator"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
)

// On a GPU, where a pass has one shape, a text is the same alone, among neighbours, in any order and with any number of slots: for
// every family, in the types that training computes in.
func TestCUDATextsDoNotDependOnNeighbours(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := modeltest.Open(t, dir)
			d, err := cuda.Open(cuda.Options{Compute: cuda.BF16})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			requests := requestsOf(rng, f.Config.Vocab, 3, 6, 3)
			o := generate.EngineOptions{Slots: 1, Capacity: 10, Rows: 4, Vocab: f.Config.Vocab}
			var alone []written
			for _, r := range requests {
				alone = append(alone, write(t, m, o, []generate.Request{r}, []int{0})...)
			}
			o.Slots = 2 + rng.IntN(2)
			sameTexts(t, fmt.Sprintf("%d slots", o.Slots), write(t, m, o, requests, rng.Perm(len(requests))), alone)
		})
	}
}

// TestCUDAPassLaunches: a pass over five sequences of different lengths has as many launches as one over two.
func TestCUDAPassLaunches(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	f := modeltest.Open(t, "../testdata/golden/families/llama")
	d, err := cuda.Open(cuda.Options{Compute: cuda.BF16})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	launches := func(d device.Device, slots int) int64 {
		m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			t.Fatal(err)
		}
		sizes := model.PagedSizes{Slots: slots, Rows: 8, Capacity: 16, Positions: model.PageRows * slots}
		s, p := d.NewStream(), m.NewPaged(sizes)
		defer p.Free()
		ids := d.Alloc("ids", device.Batch, tensor.I32, 8, 1)
		hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, 8, f.Config.Hidden)
		defer d.Free(ids, hidden)
		var all []int
		for slot := range slots {
			p.Admit(s, slot, 16)
			all = append(all, slot)
			m.ExtendEach(s, hidden, p, ids, all) // lengths become slots, slots−1, …, 1
		}
		stats := func() int64 {
			if _, err := s.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			return m.Device().(interface{ Stats() cuda.Stats }).Stats().Launches
		}
		before := stats()
		m.ExtendEach(s, hidden, p, ids, all)
		return stats() - before
	}
	if two, five := launches(d, 2), launches(d, 5); two != five {
		t.Errorf("%d launches for two sequences, %d for five", two, five)
	} else {
		apart := gathers{d}
		t.Logf("%d launches; with gathered keys %d for two, %d for five", two, launches(apart, 2), launches(apart, 5))
	}
}

// gathers is a card that does not attend over pages.
type gathers struct{ *cuda.Device }

func (d gathers) Info() device.Info { return unpaged{d.Device}.Info() }
