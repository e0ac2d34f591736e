package bench

import (
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/dry"
	"apr/distill"
	"apr/internal/contracttest"
	"apr/model"
	"apr/plan"
	"apr/tensor"
)

// gpu is a GPU with bfloat16 activations that keeps teachers by keep and needs 128 MiB for itself.
func gpu(keep func(device.WeightSpec) (dry.Kept, error), budget int64) func() dry.Target {
	return func() dry.Target {
		return dry.Target{
			Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Keep: keep,
			Align: 256, Reserved: 128 << 20, Budget: budget,
		}
	}
}

// sevenBillion is the step of Qwen2.5 7B teaching 0.5B at 1024 positions a row.
func sevenBillion(t *testing.T, stored tensor.DType, target func() dry.Target) distill.DryRun {
	t.Helper()
	big, err := Shape("7b")
	if err != nil {
		t.Fatal(err)
	}
	small, err := Shape("0.5b")
	if err != nil {
		t.Fatal(err)
	}
	return distill.DryRun{
		Target: target, Teacher: model.OutlineOf(big, stored), Student: small, Loss: device.LossSpec{Alpha: 0.5, Temperature: 1},
		Vocab: 151665, SeqLen: 1024, Accum: 1,
	}
}

// The goals of memory for a step of 8 rows: 28.0 GiB with the teacher in bfloat16, 16.8 GiB with 4-bit blocks; nothing
// worth a word is lost to holes between temps.
func TestSevenBillionFits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		stored tensor.DType
		keep   func(device.WeightSpec) (dry.Kept, error)
		budget float64 // GiB
		want   plan.Setting
	}{
		{"bf16", tensor.BF16, dry.As(tensor.BF16), 28, plan.Setting{BatchSize: 8, MicroRows: 4, ChunkRows: 512}},
		{"4 bits", tensor.Q4_K, dry.BlocksOr(tensor.BF16), 16.8, plan.Setting{BatchSize: 8, MicroRows: 4, ChunkRows: 1024, Recompute: model.RecomputeNorms}},
		{"80 GB", tensor.BF16, dry.As(tensor.BF16), 74, plan.Setting{BatchSize: 8, MicroRows: 8, ChunkRows: 1024}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			budget := int64(tt.budget * (1 << 30))
			p, err := sevenBillion(t, tt.stored, gpu(tt.keep, budget)).Plan(distill.Choice{BatchSize: 8})
			if err != nil {
				t.Fatal(err)
			}
			if p.Setting != tt.want || p.Memory.Total > budget {
				t.Errorf("%v: %.3f GiB; want %v\n%s", p.Setting, plan.GiB(p.Memory.Total), tt.want, p.Memory.Table())
			}
			if lost := float64(p.Memory.Holes) / float64(p.Memory.Arena); lost > 0.03 {
				t.Errorf("%.2f %% of the temps' memory lost to holes", 100*lost)
			}
		})
	}
}

// A step of 8 rows costs what the shapes say: 6 operations a parameter and position for what is trained, 2 for the
// teacher, and attention.
func TestSevenBillionCosts(t *testing.T) {
	run := sevenBillion(t, tensor.BF16, gpu(dry.As(tensor.BF16), 0))
	rec, err := run.Record(plan.Setting{BatchSize: 8, MicroRows: 8, ChunkRows: 1024})
	if err != nil {
		t.Fatal(err)
	}
	const n, seq, vocab = 8 * 1024.0, 1024.0, 151680.0 // the heads compute the next multiple of 64 of 151,665 ids
	matrices := func(c arch.Config) float64 {          // without the embedding and head
		s := c.Sizes()
		q, kv := float64(s.Heads*s.HeadDim), float64(s.KVHeads*s.HeadDim)
		return float64(s.Layers) * (float64(s.Hidden)*(2*q+2*kv) + 3*float64(s.Hidden)*float64(s.Width))
	}
	attention := func(c arch.Config) float64 {
		s := c.Sizes()
		return float64(s.Layers) * 4 * float64(s.Heads*s.HeadDim) * 8 * seq * (seq + 1) / 2
	}
	big, small := run.Teacher.Config, run.Student
	want := n*(2*matrices(big)+6*matrices(small)) + 2*n*vocab*float64(big.Hidden) + 6*n*vocab*float64(small.Hidden) +
		attention(big) + 3.5*attention(small)
	got := rec.Cost().FLOPs
	if d := (got - want) / want; !(d < 1e-9 && d > -1e-9) {
		t.Errorf("%g operations, want %g", got, want)
	}
	if rec.Waits != 1 {
		t.Errorf("%d host waits", rec.Waits)
	}
}
