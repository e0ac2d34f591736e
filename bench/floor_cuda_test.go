//go:build emulate || gpu

package bench_test

import (
	"math"
	"testing"
	"time"

	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/distill"
	"apr/model"
	"apr/plan"
)

// TestFloorCUDA: the floor of a step runs its products and nothing else, in every arithmetic, whether the teacher's matrices are in
// blocks, which the step expands in pieces, or not.
func TestFloorCUDA(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      cuda.Options
		blocks bool
	}{{"bf16", cuda.Options{}, false}, {"blocks", cuda.Options{}, true}, {"tf32", cuda.Options{Compute: cuda.TF32}, false}, {"own products", cuda.Options{ForceFallbackGEMM: true}, false}} {
		t.Run(c.name, func(t *testing.T) {
			findDriver(t)
			d, err := cuda.Open(c.o)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			config := small(t, 512, 512)
			f, err := bench.RandomQuantised(config, 3, convert.Q4_K_M)
			if err != nil {
				t.Fatal(err)
			}
			run := distill.DryRun{
				Target: d.Target, Teacher: model.Describe(f), Form: device.Form{Blocks: c.blocks}, Student: config, Loss: bench.Loss, Vocab: 512, SeqLen: 16, Accum: 1,
			}
			s := plan.Setting{BatchSize: 2, MicroRows: 1, ChunkRows: 16}
			r, err := run.Record(s)
			if err != nil {
				t.Fatal(err)
			}
			products := int64(0)
			for _, o := range r.Products() {
				products += o.Times
			}
			before := d.Stats()
			floor, err := bench.MeasureFloor(t.Context(), d, d.NewStream(), plan.Of(s, r, 0, plan.Rates{}), math.MaxInt64, time.Millisecond)
			if err != nil || !(floor.Milliseconds > 0) {
				t.Fatalf("%+v, %v", floor, err)
			}
			after := d.Stats()
			ran, waits := after.Products-before.Products, after.HostWaits-before.HostWaits
			if ran%products != 0 || ran < 2*products || waits != ran/products {
				t.Errorf("%d products and %d waits; a step has %d products", ran, waits, products)
			}
			if launches := after.Launches - before.Launches; !c.o.ForceFallbackGEMM && launches > 20 { // the operands are filled, a bias is rounded
				t.Errorf("%d launches beside %d products", launches, ran)
			}
		})
	}
}
