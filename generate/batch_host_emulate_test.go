//go:build emulate

package generate_test

import (
	"slices"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda"
	"apr/device/cuda/emulator"
	"apr/model"
	"apr/model/modeltest"
)

// BenchmarkPassHost reports what a pass of 64 rows costs the goroutine that asks for it, without the device's
// work: kernels run on the emulator while nothing is timed.
func BenchmarkPassHost(b *testing.B) {
	dir, err := emulator.Build()
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv("APR_CUDA_LIB_DIR", dir)
	for _, graphs := range []bool{false, true} {
		d, err := cuda.Open(cuda.Options{Compute: cuda.BF16, NoGraphs: !graphs})
		if err != nil {
			b.Fatal(err)
		}
		f := longer{modeltest.Open(b, "../testdata/golden/families/llama")}
		m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			b.Fatal(err)
		}
		const rows = 64
		s := d.NewStream()
		p := m.NewPaged(model.PagedSizes{Slots: rows, Rows: rows, Capacity: 4000, Positions: 64 * rows * 60})
		hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, rows, f.Config.Hidden)
		slots := make([]int, rows)
		for i := range slots {
			slots[i] = i
			p.Admit(s, i, 3000)
		}
		ids := make([]int32, rows)
		name := map[bool]string{false: "launches", true: "graph"}[graphs]
		b.Run(name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				for range 4 { // the later ones find what they need in the processor's caches
					start := time.Now()
					m.ExtendEach(s, hidden, p, ids, slots, model.Behind{})
					all = append(all, time.Since(start))
				}
				if _, err := s.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs/pass")
			b.ReportMetric(float64(all[len(all)/10].Microseconds()), "µs/pass-p10")
			b.ReportMetric(float64(d.Stats().GraphNanos)/1e3/max(1, float64(d.Stats().Graphs)), "µs/graph")
			b.ReportMetric(float64(d.Stats().Recalled), "recalled")
			b.ReportAllocs()
		})
		d.Close()
	}
}
