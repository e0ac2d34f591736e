//go:build gpu || emulate

package distill

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cuda"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/model"
	"apr/plan"
	"apr/run/log"
	"apr/tensor"
)

// A dry step of DeltaNet layers says what a step takes on a GPU, to the byte; nothing is allocated and no module loaded
// after it.
func TestCUDADryStepOfDeltaNet(t *testing.T) {
	openEmulator(t)
	dir := deltaFolder(t)
	for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := tinyConfig(t)
			c.Teacher, c.Student, c.StudentConfig, c.AllowSameModel = dir, dir, "", true
			c.Data, c.Dataset = nil, "ids" // there is no tokenizer
			c.SeqLen, c.GradAccum, c.DocumentMask = 70, 2, r != model.RecomputeNone
			c.Loss.Alpha = .5
			in := &inputs{records: map[string]runlog.Input{}}
			if err := in.openModels(c, &quiet{}); err != nil {
				t.Fatal(err)
			}
			defer in.close()
			var log strings.Builder
			d, err := cuda.Open(cuda.Options{KernelLog: &log})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s := plan.Setting{BatchSize: 2, MicroRows: 1, ChunkRows: 40, Recompute: r}
			rec, err := in.dryRun(c, d.Target).Record(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Prepare(rec); err != nil {
				t.Fatal(err)
			}
			d.Seal()
			before := d.Stats().Allocated
			if before != rec.Total() {
				t.Errorf("%d bytes taken, %d planned", before, rec.Total())
			}
			held := peakOfStep(t, d, in, c, s)
			held[device.Scratch] = rec.Peak[device.Scratch] // that of operations is the device's own, whatever runs
			if !maps.Equal(rec.Peak, held) {
				t.Errorf("planned %v\nheld    %v", rec.Peak, held)
			}
			if after := d.Stats().Allocated; after != before {
				t.Errorf("%d bytes beyond the plan", after-before)
			}
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, "late=true") && strings.Contains(line, "event=jit") {
					t.Errorf("loaded after the plan: %s", line)
				}
			}
		})
	}
}

// deltaFolder writes a model of two DeltaNet layers.
func deltaFolder(t *testing.T) string {
	t.Helper()
	const text = `{"model_type":"qwen3_5_text","hidden_size":32,"num_hidden_layers":2,"layer_types":["linear_attention","linear_attention"],"num_attention_heads":2,
		"num_key_value_heads":1,"head_dim":16,"intermediate_size":48,"vocab_size":64,"max_position_embeddings":128,"linear_num_key_heads":2,"linear_num_value_heads":4,
		"linear_key_head_dim":16,"linear_value_head_dim":16}`
	c, err := arch.Parse("config.json", text, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng, dir := rand.New(rand.NewPCG(1, 2)), t.TempDir()
	var sources []tensor.Source
	for _, s := range arch.Slots(c) {
		raw := make([]byte, 4*s.Elements())
		values := make([]float32, s.Elements())
		for i := range values {
			values[i] = float32(.2 * rng.NormFloat64())
		}
		tensor.Narrow(raw, values, tensor.F32)
		sources = append(sources, tensor.BytesSource(tensor.Info{Name: s.HF.Name, DType: tensor.F32, Shape: s.HF.Shape}, raw))
	}
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), sources, safetensors.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
