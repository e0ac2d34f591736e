//go:build gpu || emulate

package distill

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/model"
	"apr/modelfile"
	"apr/plan"
	runlog "apr/run/log"
	"apr/tensor"
)

// A step of a student in blocks on a GPU is what it is on a CPU, in float32 and in bfloat16: see TestQuantizeAwareStep.
func TestCUDAQuantizeAwareStep(t *testing.T) {
	for name, compute := range map[string]cuda.Compute{"float32": cuda.F32, "bfloat16": cuda.BF16} {
		onCUDA(t, compute)
		t.Run(name, TestQuantizeAwareStep)
	}
}

// What products read of a student in blocks is what they read of the exported file: the logits are those, bit for bit.
func TestCUDAQuantizeAwareExport(t *testing.T) {
	onCUDA(t, cuda.BF16)
	contracttest.Cases(t, 1)
	c, types := inBlocks(t)
	d := testDevice(t)
	s := d.NewStream()
	m := model.NewTrainableAs(d, c, types)
	m.Init(s, 3)
	b := randomBatch(4, 12, 320, 0.9)
	tr := newTrainer(m, s, b, nil, device.LossSpec{Temperature: 1})
	apply(t, tr, b)
	want := logitsOf(t, d, s, m.Frozen(), b)
	file := &modelfile.Files{Config: c, Container: &modelfile.Container{File: fileOf(t, m.StoredSources(s))}}
	for _, form := range []device.Form{{}, {Blocks: true}} {
		exported, err := model.LoadFrozenAs(d, file, device.StudentWeights, form)
		if err != nil {
			t.Fatal(err)
		}
		got := logitsOf(t, d, s, exported, b)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%+v: logit %d of the file is %g, it was %g in training", form, i, got[i], want[i])
			}
		}
	}
}

// inMemory is a file of tensors that are in memory.
type inMemory map[string]tensor.Stored

func (f inMemory) Path() string  { return "memory" }
func (f inMemory) Verify() error { return nil }
func (f inMemory) Close() error  { return nil }

func (f inMemory) Tensors() (all []tensor.Stored) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		all = append(all, f[name])
	}
	return all
}

func (f inMemory) Tensor(name string) (tensor.Stored, bool) {
	t, ok := f[name]
	return t, ok
}

// fileOf is the file that sources make.
func fileOf(t *testing.T, all []tensor.Source) inMemory {
	t.Helper()
	f := inMemory{}
	for _, src := range all {
		var b bytes.Buffer
		if err := src.Payload(&b); err != nil {
			t.Fatal(err)
		}
		f[src.Name] = tensor.Stored{Info: src.Info, ReaderAt: bytes.NewReader(b.Bytes())}
	}
	return f
}

// A dry step of a student in blocks says what a step takes on a GPU, to the byte; nothing is allocated and no module
// loaded after it.
func TestCUDADryQuantizeAwareStep(t *testing.T) {
	openEmulator(t)
	for name, compute := range map[string]cuda.Compute{"float32": cuda.F32, "bfloat16": cuda.BF16} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := tinyConfig(t)
			c.Data, c.Dataset, c.SeqLen = nil, "ids", 16
			c.Quantize = &Quantize{Scheme: "q4_0", Types: func(a arch.Config) (map[string]tensor.DType, []string, error) {
				types := map[string]tensor.DType{}
				for _, slot := range arch.Slots(a) {
					switch {
					case len(slot.Shape) < 2:
					case slot.Shape[1]%32 == 0:
						types[slot.Name] = tensor.Q4_0
					default:
						types[slot.Name] = tensor.BF16
					}
				}
				return types, nil, nil
			}}
			in := &inputs{records: map[string]runlog.Input{}}
			if err := in.openModels(c, &quiet{}); err != nil {
				t.Fatal(err)
			}
			defer in.close()
			if err := in.quantize(c, &quiet{}); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			d, err := cuda.Open(cuda.Options{Compute: compute, KernelLog: &log})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s := plan.Setting{BatchSize: 2, MicroRows: 1, ChunkRows: 40}
			rec, err := in.dryRun(c, d.Target).Record(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Prepare(rec); err != nil {
				t.Fatal(err)
			}
			d.Seal()
			before := d.Stats().Allocated
			in.choice = &teacherChoice{Chosen: &Candidate{}}
			held := loraPeak(t, d, in, c, s)
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
