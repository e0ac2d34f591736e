//go:build gpu || emulate

package distill

import (
	"context"
	"math"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/plan"
	runlog "apr/run/log"
	"apr/teacher"
)

// TestCUDAProject: on a GPU a teacher with another tokenizer teaches what it teaches on a CPU: sums and gradient of a
// step within float32, and as far as bfloat16 allows, where the text teaches elsewhere and where nothing does.
func TestCUDAProject(t *testing.T) {
	models := newChunkModels(t, 400, 700)
	models.by = 2 // where logits are large, bfloat16 moves probabilities
	step := func(d device.Device, text bool) (sums []float64, grads [][]float32) {
		tr, _, pair, b := models.step(t, d, chunkText, 24)
		inner := tr.Teacher.(*teacher.Chunks).Inner
		aligned := &teacher.Aligned{
			Inner: inner, Device: d, Pair: pair, Most: 48, Fresh: true, Temperature: 2, Text: text,
		}
		tr.Teacher = aligned
		if text {
			aligned.Temperature, tr.Loss.Spec.Temperature = 1, 1
		}
		if err := aligned.Align(b); err != nil {
			t.Fatal(err)
		}
		if c := aligned.Counts(); c.Taught == 0 || c.Taught == c.Targets {
			t.Errorf("%d of %d positions are taught", c.Taught, c.Targets)
		}
		tr.gradients(b, b.TargetCount())
		sc, err := tr.stream.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return []float64{sc.CE, sc.D}, gradientsOf(t, tr)
	}
	for _, text := range []bool{false, true} {
		sums, grads := step(newCPU(t), text)
		openEmulator(t)
		for _, v := range []struct {
			compute cuda.Compute
			within  float64
		}{{cuda.F32, 1e-4}, {cuda.BF16, .05}} {
			d, err := cuda.Open(cuda.Options{Compute: v.compute})
			if err != nil {
				t.Fatal(err)
			}
			s, g := step(d, text)
			near.Check(t, "sums", []float64{s[0] / sums[0], s[1] / sums[1]}, []float64{1, 1}, v.within)
			for i := range g {
				var off, all float64
				for j, x := range grads[i] {
					off, all = off+math.Pow(float64(g[i][j]-x), 2), all+float64(x)*float64(x)
				}
				near.Check(t, "gradient", []float64{math.Sqrt(off / all)}, []float64{0}, v.within)
				contracttest.Cases(t, 1)
			}
			d.Close()
		}
	}
}

// TestCUDAProjectPlanned: the plan of a step takes all memory and kernels beforehand, and the host waits once a step.
func TestCUDAProjectPlanned(t *testing.T) {
	c := in(t, projectedConfig(t, true))
	c.SeqLen = 12
	openEmulator(t)
	for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
		in := &inputs{records: map[string]runlog.Input{}}
		if err := in.openModels(c, &quiet{}); err != nil {
			t.Fatal(err)
		}
		defer in.close()
		waits := func(steps int) int64 {
			d, err := cuda.Open(cuda.Options{Compute: compute, StrictSeal: true})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s := plan.Setting{BatchSize: 2, MicroRows: 1, ChunkRows: 10}
			rec, err := in.dryRun(c, d.Target).Record(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Prepare(rec); err != nil {
				t.Fatal(err)
			}
			d.Seal()
			before := d.Stats()
			stepped(t, d, in, c, s, make([]bool, steps)...)
			after := d.Stats()
			if after.LateLoads != 0 || after.Allocated != before.Allocated {
				t.Errorf("%v: %d late loads, %d bytes more than planned", compute, after.LateLoads,
					after.Allocated-before.Allocated)
			}
			contracttest.Cases(t, 1)
			return after.HostWaits
		}
		if one, two := waits(1), waits(2); two != one+1 {
			t.Errorf("%v: the host waits %d times for one step, %d for two", compute, one, two)
		}
	}
}
