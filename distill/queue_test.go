package distill

import (
	"context"
	"strings"
	"testing"

	"apr/adapter"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/plan"
	"apr/tensor"
)

// TestQueueIsPlanned: rows a step ahead are written in a queue beside the step where its memory, named and added to the
// step's, suffices to the byte, with the step cut as without; else before the step, for a reason.
func TestQueueIsPlanned(t *testing.T) {
	c := ownConfig(t)
	c.OnPolicy.Lag = 1
	in, err := openInputs(context.Background(), c, newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	run := func(budget int64) DryRun { return in.dryRun(c, gpuLike(budget)) }
	before, err := run(0).Plan(Choice{BatchSize: c.BatchSize})
	if err != nil {
		t.Fatal(err)
	}
	free, why, err := run(0).planQueue(before)
	if err != nil || why != "" || free.Record.Beside == nil {
		t.Fatalf("not written beside the step: %q (%v)", why, err)
	}
	n := free.Record.Beside.Total()
	if free.Memory.Beside != n || n == 0 || free.Setting != before.Setting || free.Costs.FLOPs != before.Costs.FLOPs ||
		!strings.Contains(free.Memory.Table(), "beside the step") {
		t.Errorf("%d bytes beside the step, the queue takes %d; cut %v and %v", free.Memory.Beside, n, free.Setting,
			before.Setting)
	}
	if own := free.Memory.Total - n; own >= before.Memory.Total { // the writer's memory is no longer the step's
		t.Errorf("the step takes %d bytes without the queue, %d with its rows written before", own, before.Memory.Total)
	}
	for name, v := range map[string]struct {
		change func(d *DryRun)
		want   string
	}{
		"just enough memory": {func(d *DryRun) { d.Target = gpuLike(free.Memory.Total) }, ""},
		"a byte less":        {func(d *DryRun) { d.Target = gpuLike(free.Memory.Total - 1) }, "would need"},
		"adapters":           {func(d *DryRun) { d.Adapter = &adapter.Adapter{} }, "adapters"},
		"blocks":             {func(d *DryRun) { d.Types = map[string]tensor.DType{"w": tensor.Q4_K} }, "blocks"},
		"another device": {func(d *DryRun) {
			d.Target = func() dry.Target {
				t := gpuLike(0)()
				t.Info.Kind = "vulkan"
				return t
			}
		}, "one queue"},
	} {
		d := run(0)
		v.change(&d)
		p, why, err := d.planQueue(before)
		if err != nil || (why == "") != (v.want == "") || !strings.Contains(why, v.want) ||
			(p.Record.Beside != nil) != (v.want == "") || p.Verdict != plan.Ready {
			t.Errorf("%s: %q (%v), want %q", name, why, err, v.want)
		}
		contracttest.Cases(t, 1)
	}
}
