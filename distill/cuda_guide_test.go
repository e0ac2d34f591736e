//go:build gpu || emulate

package distill

import (
	"testing"

	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/plan"
)

// TestCUDAGuidedSteps holds the GPU's float32 to the tolerances of the CPU, with several teachers and with hidden
// states.
func TestCUDAGuidedSteps(t *testing.T) {
	onCUDA(t, cuda.F32)
	guidedSteps(t, 1e-5, 1e-4)
}

// TestCUDAGuidesPlanned: the plan of a step with several teachers or hidden states takes everything beforehand: the
// steps load and allocate nothing. Of routed rows a plan does not know how many each teacher gets: products of other
// shapes are loaded when they come, and the memory is that of the worst split.
func TestCUDAGuidesPlanned(t *testing.T) {
	openEmulator(t)
	for _, g := range guidedRuns {
		for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
			t.Run(g.name+" "+compute.String(), func(t *testing.T) {
				contracttest.Cases(t, 1)
				d, err := cuda.Open(cuda.Options{Compute: compute, StrictSeal: !g.ensemble.routed()})
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				c := g.config(t)
				in := g.open(t, c)
				s := plan.Setting{BatchSize: 3, MicroRows: 2, ChunkRows: 20, Recompute: g.recompute}
				rec, err := in.dryRun(c, d.Target).Record(s)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Prepare(rec); err != nil {
					t.Fatal(err)
				}
				d.Seal()
				before := d.Stats()
				stepped(t, d, in, c, s, false)
				if after := d.Stats(); after.LateLoads != 0 && !g.ensemble.routed() || after.Allocated != before.Allocated {
					t.Errorf("%d late loads, %d bytes more than planned", after.LateLoads, after.Allocated-before.Allocated)
				}
			})
		}
	}
}
