//go:build emulate || gpu

package bench_test

import (
	"slices"
	"testing"

	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/model"
	"apr/tensor"
)

// TestPassesInTiles: passes of several positions over matrices in tiles have the bits of single launches. The first
// pass of a kind is launched kernel by kernel (so is the second of all, before which biases were rounded), the next one
// captured; every later one, also of another number of positions that the same kernels serve, is one graph between the
// embedding and what a Download rounds.
func TestPassesInTiles(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f, err := bench.RandomQuantised(small(t, 512, 640), 7, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	type pass struct {
		n     int
		graph bool // no other launches, no new graph
	}
	passes := []pass{
		{5, false}, {5, false}, {5, false}, {5, true}, {8, true}, // as verified proposals are, more or fewer
		{20, false}, {20, false}, {20, true}, {3, true}, {31, true}, // as prompts are
		{40, false}, {64, false}, {5, true}, {64, true},
	}
	run := func(o cuda.Options) (all [][]float32, counts []cuda.Stats) {
		findDriver(t)
		d, err := cuda.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			t.Fatal(err)
		}
		s, c := d.NewStream(), m.NewCache(400)
		ids := d.Alloc("ids", device.Batch, tensor.I32, 64, 1)
		hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, 1, m.Config.Hidden)
		for i, p := range passes {
			s.UploadInts(ids, slices.Repeat([]int32{int32(i + 1), 7, 300, 2}, 16))
			before := d.Stats()
			m.Extend(s, hidden, c, ids.RowRange(0, p.n))
			got := make([]float32, m.Config.Hidden)
			if err := s.Download(got, hidden); err != nil {
				t.Fatal(err)
			}
			after := d.Stats()
			all = append(all, got)
			counts = append(counts, cuda.Stats{
				Launches: after.Launches - before.Launches, Graphs: after.Graphs - before.Graphs,
				GraphSets: after.GraphSets - before.GraphSets,
			})
		}
		return all, counts
	}
	want, one := run(cuda.Options{NoGraphs: true})
	got, counts := run(cuda.Options{})
	for i, p := range passes {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("pass %d, of %d positions, differs from single launches", i, p.n)
		}
		st := counts[i]
		graph := st.Launches <= 2 && st.Graphs == 1 && st.GraphSets > 0
		if graph != p.graph || one[i].Graphs != 0 || one[i].Launches < 15 {
			t.Errorf("pass %d, of %d positions: %d launches, %d graphs with %d kernels set, want a known graph %v; otherwise %d",
				i, p.n, st.Launches, st.Graphs, st.GraphSets, p.graph, one[i].Launches)
		}
	}
}
