package plan_test

import (
	"fmt"

	"apr/device"
	"apr/device/dry"
	"apr/model"
	"apr/plan"
)

func Example() {
	// A step that needs 8 GiB for weights and 1 GiB for each row, half of it if norms are computed again.
	step := func(s plan.Setting) (*dry.Record, error) {
		perRow := int64(1<<30) >> s.Recompute
		return &dry.Record{Static: map[device.Component]int64{device.StudentWeights: 8 << 30}, Temps: perRow * int64(s.MicroRows)}, nil
	}
	p, err := plan.Choose(plan.Request{
		BatchSize: 8, SeqLen: 2048, MicroRows: plan.Splits(8), ChunkRows: []int{1024},
		Recompute: []model.Recompute{model.RecomputeNone, model.RecomputeNorms}, Budget: 12 << 30,
	}, step)
	fmt.Println(p.Setting, p.Verdict, err)
	// Output: micro-batches of 8 rows, chunks of 1024 positions, recomputing norms ready <nil>
}
