package distill

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/adapter"
	"apr/arch"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/plan"
	"apr/teacher"
	"apr/tensor"
)

const quantisedBase = "../testdata/models/gosrc-q4_k_m.gguf"

// loraConfig is a run that trains adapters beside a quantised model.
func loraConfig(t *testing.T) Config {
	t.Helper()
	c := tinyConfig(t)
	c.Student, c.StudentConfig, c.AllowSameModel = quantisedBase, "", true
	c.LoRA = &LoRA{Rank: 4, Alpha: 8, Dropout: .2, Targets: []string{"q", "v", "o", "gate", "up", "down", "head"}, Merge: true}
	c.Steps, c.CheckpointEvery, c.KeepCheckpoints = 5, 2, 3
	return c
}

func adapterBytes(t *testing.T, c Config) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Output, adapterFolder, "adapter_model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A run with adapters writes them as PEFT does, and the merged student; its checkpoints hold nothing of the base;
// workers, what is computed again, and a resumption change no bit.
func TestLoRARun(t *testing.T) {
	c := loraConfig(t)
	out, student := mustRun(t, c, 1)
	want := adapterBytes(t, c)
	for _, name := range []string{"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "student.apr", "student/model.safetensors"} {
		if out.Outputs[filepath.FromSlash(name)] == "" {
			t.Errorf("no hash of %s in the receipt", name)
		}
	}
	base := openModel(t, quantisedBase)
	a, err := adapter.Open(filepath.Join(c.Output, adapterFolder), base)
	if err != nil {
		t.Fatal(err)
	}
	checkMerged(t, c, a)
	checkCheckpoint(t, c, a)
	for name, change := range map[string]func(*Config){
		"another way to compute again": func(c *Config) { c.Recompute = []model.Recompute{model.RecomputeBlocks} },
		"without merging":              func(c *Config) { l := *c.LoRA; l.Merge = false; c.LoRA = &l },
	} {
		c := in(t, c)
		change(&c)
		if _, _, err := runOnce(t, c, 2, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(adapterBytes(t, c), want) {
			t.Errorf("%s: the adapter differs", name)
		}
		if _, err := os.Stat(filepath.Join(c.Output, "student.apr")); (err == nil) != c.LoRA.Merge {
			t.Errorf("%s: student.apr: %v", name, err)
		}
		contracttest.Cases(t, 1)
	}
	for _, stop := range []int{1, 3} {
		c := in(t, c)
		if _, _, err := runOnce(t, c, 0, stop); fault.KindOf(err) != fault.Stopped {
			t.Fatalf("error %v, want one of kind stopped", err)
		}
		c.Resume = ResumeAuto
		if _, got := mustRun(t, c, 0); !bytes.Equal(got, student) || !bytes.Equal(adapterBytes(t, c), want) {
			t.Errorf("stopped after step %d and resumed: the adapter differs", stop)
		}
		contracttest.Cases(t, 1)
	}
}

// checkMerged compares student.apr with the base and the adapter, merged again, bit by bit, and wants all matrices
// moved that should.
func checkMerged(t *testing.T, c Config, a *adapter.Adapter) {
	t.Helper()
	base, merged, final := openModel(t, quantisedBase), openModel(t, quantisedBase), openModel(t, filepath.Join(c.Output, "student.apr"))
	if err := a.Merge(merged); err != nil {
		t.Fatal(err)
	}
	adapted := map[string]bool{}
	for _, m := range a.Modules {
		adapted[m.Slot.Name] = true
	}
	for _, s := range arch.Slots(base.Config) {
		var v [3][]float32
		for i, f := range []*modelfile.Files{base, merged, final} {
			var err error
			if v[i], err = f.ReadFloat32(s.Name); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(v[1], v[2]) {
			t.Errorf("%s of student.apr is not base and adapter merged", s.Name)
		}
		if same := slices.Equal(v[0], v[1]); same == adapted[s.Name] {
			t.Errorf("%s: as in the base: %v, has an adapter: %v", s.Name, same, adapted[s.Name])
		}
	}
}

// checkCheckpoint wants A, B and their moments in the last checkpoint, and nothing else.
func checkCheckpoint(t *testing.T, c Config, a *adapter.Adapter) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(c.Output, checkpointFolder, "step-000005", tensorsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var n int64
	for _, s := range f.Tensors() {
		if !strings.Contains(s.Name, ".lora_") {
			t.Errorf("a checkpoint holds %s", s.Name)
		}
		n += s.Elements()
	}
	if n != 3*a.Parameters() {
		t.Errorf("a checkpoint holds %d values, want %d", n, 3*a.Parameters())
	}
}

// Without a teacher the base is held once: nothing of a teacher, no gradient and no moment of the base. What is written
// is what a distillation with α = 0 writes beside a teacher.
func TestLoRAWithoutTeacher(t *testing.T) {
	c := loraConfig(t)
	c.Loss.Alpha = 0
	_, want := mustRun(t, c, 0)
	alone := in(t, c)
	alone.Teacher, alone.NoTeacher, alone.AllowSameModel = alone.Student, true, false
	_, got := mustRun(t, alone, 0)
	if !bytes.Equal(got, want) {
		t.Error("the student depends on a teacher that teaches nothing")
	}
	inputs := openLoRA(t, alone)
	d := newCPU(t).(*cpu.Device)
	rec, err := inputs.dryRun(alone, d.Target).Record(plan.Setting{BatchSize: 2, MicroRows: 2, ChunkRows: 64})
	if err != nil {
		t.Fatal(err)
	}
	n := 4 * inputs.adapter.Parameters()
	if rec.Peak[device.TeacherWeights] != 0 || rec.Peak[device.Moments] > 2*n+1<<14 || rec.Peak[device.Gradients] > n+1<<14 {
		t.Errorf("held %v; adapters are %d bytes", rec.Peak, n)
	}
}

func openLoRA(t *testing.T, c Config) *inputs {
	t.Helper()
	x, err := openInputs(t.Context(), c, newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.close() })
	return x
}

// A dry step says to the byte what a step with adapters holds, with blocks and with matrices that are expanded, with
// dropout and without, beside a teacher and with one that is the base.
func TestDryLoRAStepIsTheStep(t *testing.T) {
	for _, keep := range []int64{0, 1 << 30} {
		for _, rate := range []float64{0, .3} {
			for _, alpha := range []float64{.5, 0} {
				for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeBlocks} {
					t.Run(fmt.Sprintf("%d bytes expanded, dropout %g, alpha %g, %v", keep, rate, alpha, r), func(t *testing.T) {
						contracttest.Cases(t, 1)
						c := loraConfig(t)
						c.LoRA.Dropout, c.Loss.Alpha, c.SeqLen = rate, alpha, 16
						if alpha == 0 {
							c.Teacher = c.Student
						}
						x := openLoRA(t, c)
						d, err := cpu.New(cpu.Options{KeepExpanded: keep})
						if err != nil {
							t.Fatal(err)
						}
						defer d.Close()
						s := plan.Setting{BatchSize: 3, MicroRows: 2, ChunkRows: 20, Recompute: r}
						rec, err := x.dryRun(c, d.Target).Record(s)
						if err != nil {
							t.Fatal(err)
						}
						if held := loraPeak(t, d, x, c, s); !maps.Equal(rec.Peak, held) {
							t.Errorf("planned %v\nheld    %v", rec.Peak, held)
						}
					})
				}
			}
		}
	}
}

// loraPeak runs a real step and returns the highest bytes by component.
func loraPeak(t *testing.T, d accounted, x *inputs, c Config, s plan.Setting) map[device.Component]int64 {
	t.Helper()
	stream := d.NewStream()
	big, student, err := x.models(c, d)
	if err != nil {
		t.Fatal(err)
	}
	student.Init(stream, 1)
	tr := newTrainer(student, stream, dryBatch(s.BatchSize, c.SeqLen), nil, c.Loss)
	tr.Cut(s)
	if tr.Loss.Vocab = x.vocab; c.Loss.Alpha != 0 {
		tr.Teacher = &teacher.Resident{Model: big[0], Group: teacher.GroupRows(d.Info(), c.SeqLen)}
	}
	for _, left := range []uint8{0, 1} { // the last target of each micro-batch does not count, then all count
		b := dryBatch(s.BatchSize, c.SeqLen)
		for lo := 0; lo < b.Rows; lo += s.MicroRows {
			b.Mask[min(lo+s.MicroRows, b.Rows)*c.SeqLen-1] = left
		}
		if _, err := tr.Apply(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	_, peak := d.Memory()
	return peak
}

// What adapters exclude is refused before anything is written.
func TestLoRARefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		kind   fault.Kind
		says   string
	}{
		"a new student":     {func(c *Config) { c.StudentConfig, c.Student = tinyConfig(t).StudentConfig, "" }, fault.Usage, "--student-config"},
		"rank 0":            {func(c *Config) { c.LoRA.Rank = 0 }, fault.Usage, "--lora-rank"},
		"rank too large":    {func(c *Config) { c.LoRA.Rank = 1000 }, fault.Usage, "--lora-rank"},
		"an unknown target": {func(c *Config) { c.LoRA.Targets = []string{"hed"} }, fault.Usage, `"hed"`},
		"a balanced router": {func(c *Config) { c.RouterBalance = .1 }, fault.Usage, "--router-balance"},
		"a model that is not merged": {func(c *Config) { c.LoRA.Merge, c.Export = false, filepath.Join(t.TempDir(), "x.apr") }, fault.Usage,
			"--lora-merge off"},
	} {
		c := loraConfig(t)
		tt.change(&c)
		_, _, err := runOnce(t, c, 0, 0)
		if fault.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(c.Output); err == nil {
			t.Errorf("%s: the run directory was made", name)
		}
		contracttest.Cases(t, 1)
	}
}

// An adapter alone is exported as llama.cpp's form.
func TestLoRAExport(t *testing.T) {
	c := loraConfig(t)
	c.LoRA.Merge, c.Steps, c.Export = false, 1, filepath.Join(t.TempDir(), "a.gguf")
	if _, _, err := runOnce(t, c, 0, 0); err != nil {
		t.Fatal(err)
	}
	base := openModel(t, quantisedBase)
	x, err := adapter.Open(c.Export, base)
	if err != nil {
		t.Fatal(err)
	}
	y, err := adapter.Open(filepath.Join(c.Output, adapterFolder), base)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Modules {
		if fmt.Sprint(x.Modules[i].A, x.Modules[i].B, x.Modules[i].Scale) != fmt.Sprint(y.Modules[i].A, y.Modules[i].B, y.Modules[i].Scale) {
			t.Errorf("%s differs", x.Modules[i].Slot.Name)
		}
	}
	if x.Norms != y.Norms || x.Norms == "" {
		t.Errorf("the base is recorded as %q and %q", x.Norms, y.Norms)
	}
}

// The state of 0.5B in adapters is below 0.27 GB where that of full training is 7.9, and a 7B base in Q4_K trains in 9
// GB, on a GPU.
func TestLoRAMemory(t *testing.T) {
	const gb = 1e9
	sizes := func(hidden, layers, heads, kv, dim, width, vocab int, tied bool) arch.Config {
		return arch.Qwen2(arch.Sizes{Hidden: hidden, Layers: layers, Heads: heads, KVHeads: kv, HeadDim: dim, Width: width, Vocab: vocab,
			MaxPositions: 32768, Theta: 1e6, Eps: 1e-6, Tied: tied, DType: tensor.BF16})
	}
	targets := []string{"q", "v", "o", "gate", "up", "down"}
	record := func(c arch.Config, d tensor.DType, rows, micro, seqLen int) *dry.Record {
		a, err := adapter.New(c, targets, 32, 64, 0)
		if err != nil {
			t.Fatal(err)
		}
		o := model.OutlineOf(c, d)
		target := func() dry.Target { return cuda.ImaginedTarget(cuda.BF16, 80<<30) }
		run := DryRun{Target: target, Teacher: o, Base: o, SameFile: true, Adapter: a, Student: c, Loss: device.LossSpec{Temperature: 1},
			Vocab: c.Vocab, SeqLen: seqLen, Accum: 1}
		rec, err := run.Record(plan.Setting{BatchSize: rows, MicroRows: micro, ChunkRows: 1024, Recompute: model.RecomputeBlocks})
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	half := record(sizes(896, 24, 14, 2, 64, 4864, 151936, true), tensor.BF16, 1, 1, 128)
	if state := float64(half.Peak[device.Gradients] + half.Peak[device.Moments] + 4*16_809_984); !(state < .27*gb) {
		t.Errorf("A, B, their gradients and moments at 0.5B take %.3g GB", state/gb)
	}
	seven := record(sizes(3584, 28, 28, 4, 128, 18944, 152064, false), tensor.Q4_K, 8, 4, 1024)
	var all int64
	for _, n := range seven.Peak {
		all += n
	}
	if !(float64(all) <= 9*gb) {
		t.Errorf("7B in Q4_K: %.3g GB: %v", float64(all)/gb, seven.Peak)
	}
	t.Logf("7B in Q4_K, 8 rows of 1024: %.2f GB: %v", float64(all)/gb, seven.Peak)
}
