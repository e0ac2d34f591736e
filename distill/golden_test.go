package distill

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
	"apr/modelfile"
	"apr/optim"
	"apr/teacher"
	"apr/tensor"
)

// The goldens come from transformers and PyTorch in float64; testdata/golden/README.md says how.
const goldens = "../testdata/golden"

// golden is one case of testdata/golden/qwen2.
type golden struct {
	Combos []struct {
		CEWeight    float64 `json:"ce_weight"`
		Temperature float64
		CE          float64 `json:"ce"`
		ForwardKL   float64 `json:"forward_kl"`
		ReverseKL   float64 `json:"reverse_kl"` // KL(Q‖p), without T²
		Loss        float64
		GradNorm    float64 `json:"grad_norm"`
	}
	AdamW struct {
		LR              float64 `json:"lr"`
		Betas           [2]float64
		Eps             float64
		WeightDecay     float64 `json:"weight_decay"`
		Clip            float64
		LossAndGradNorm [][2]float64 `json:"loss_and_gradnorm"`
	} `json:"adamw"`
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testDevice opens the device that the goldens run on; tests of other devices set it.
var testDevice = newCPU

func newCPU(t *testing.T) device.Device {
	t.Helper()
	d := modeltest.CPU(t, cpu.Options{})
	return d
}

func openModel(t *testing.T, path string) *modelfile.Files {
	t.Helper()
	f := modeltest.Open(t, path)
	if err := f.CheckTensors(); err != nil {
		t.Fatal(err)
	}
	return f
}

func loadTeacher(t *testing.T, d device.Device, path string) *teacher.Resident {
	t.Helper()
	m, err := model.LoadFrozen(d, openModel(t, path), device.TeacherWeights)
	if err != nil {
		t.Fatal(err)
	}
	return &teacher.Resident{Model: m}
}

func loadStudent(t *testing.T, d device.Device, s device.Stream, path string) *model.Model {
	t.Helper()
	f := openModel(t, path)
	m := model.NewTrainable(d, f.Config)
	if err := m.LoadWeights(s, f); err != nil {
		t.Fatal(err)
	}
	return m
}

// fixture is the content of a golden.safetensors.
type fixture struct {
	t *testing.T
	f *safetensors.File
}

func openFixture(t *testing.T, path string) fixture {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return fixture{t, f}
}

func (x fixture) raw(name string) ([]byte, tensor.Info) {
	x.t.Helper()
	st, ok := x.f.Tensor(name)
	if !ok {
		x.t.Fatalf("fixture has no tensor %q", name)
	}
	b := make([]byte, st.Size)
	if n, err := st.ReadAt(b, 0); n < len(b) {
		x.t.Fatal(err)
	}
	return b, st.Info
}

func (x fixture) floats(name string) []float32 {
	x.t.Helper()
	b, info := x.raw(name)
	out := make([]float32, info.Elements())
	tensor.Widen(out, b, info.DType)
	return out
}

func (x fixture) ints(name string) []int32 {
	x.t.Helper()
	b, _ := x.raw(name)
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(b[4*i]) | int32(b[4*i+1])<<8 | int32(b[4*i+2])<<16 | int32(b[4*i+3])<<24
	}
	return out
}

// batch builds the golden batch, whose labels are aligned with the inputs already.
func (x fixture) batch() corpus.Batch {
	ids, labels, mask := x.ints("input_ids"), x.ints("labels"), x.floats("loss_mask")
	b := corpus.Batch{Rows: 3, SeqLen: 17, Tokens: ids, Targets: make([]int32, len(ids)), Mask: make([]uint8, len(ids))}
	for i, m := range mask {
		b.Mask[i] = uint8(m)
		if m != 0 {
			b.Targets[i] = labels[i]
		}
	}
	return b
}

func newTrainer(student *model.Model, s device.Stream, b corpus.Batch, t teacher.Teacher, spec device.LossSpec) *Trainer {
	tr := NewTrainer(student, s, b.Rows, b.SeqLen)
	tr.Teacher = t
	tr.Loss.Spec, tr.Loss.Vocab = spec, student.Config.Vocab
	tr.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Constant, Peak: 1e-3, Steps: 1000},
		AdamW:    device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, MaxNorm: 1,
	}
	return tr
}

func TestGoldenQwen2(t *testing.T) {
	for _, name := range []string{"tied_gqa", "untied_mha"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(goldens, "qwen2", name)
			var g golden
			readJSON(t, filepath.Join(dir, "golden.json"), &g)
			x := openFixture(t, filepath.Join(dir, "golden.safetensors"))
			t.Run("logits", func(t *testing.T) { goldenLogits(t, dir, x) })
			t.Run("losses", func(t *testing.T) { goldenLosses(t, dir, x, g) })
			t.Run("gradients", func(t *testing.T) { goldenGradients(t, dir, x) })
			t.Run("adamw", func(t *testing.T) { goldenAdamW(t, dir, x, g) })
		})
	}
}

// goldenLogits compares both models' logits at all positions.
func goldenLogits(t *testing.T, dir string, x fixture) {
	d := testDevice(t)
	s := d.NewStream()
	b := x.batch()
	for i := range b.Mask {
		b.Mask[i] = 1
	}
	db := model.NewBatch(d, b.Rows, b.SeqLen)
	db.Load(s, b, b.Rows)
	for _, m := range []struct {
		name string
		*model.Model
	}{
		{"student", loadStudent(t, d, s, filepath.Join(dir, "student")).Frozen()},
		{"teacher", loadTeacher(t, d, filepath.Join(dir, "teacher")).Model},
	} {
		n := b.Rows * b.SeqLen
		hidden := s.Temp("hidden", device.Activations, d.Info().Activations, n, m.Config.Hidden)
		logits := s.Temp("logits", device.Logits, tensor.F32, n, m.Config.Vocab)
		m.Hidden(s, hidden, db.Tokens)
		m.Logits(s, logits, hidden)
		got := make([]float32, n*m.Config.Vocab)
		if err := s.Download(got, logits); err != nil {
			t.Fatal(err)
		}
		want := x.floats(m.name + "_logits")
		largest := 0.0
		for _, w := range want {
			largest = math.Max(largest, math.Abs(float64(w)))
		}
		near.Check(t, m.name+" logits", got, want, 2e-4*largest)
		s.Release(hidden, logits)
	}
}

// goldenLosses compares loss, CE, both KL directions and the gradient norm for four weightings.
func goldenLosses(t *testing.T, dir string, x fixture, g golden) {
	for _, c := range g.Combos {
		for _, div := range []device.Divergence{device.ForwardKL, device.ReverseKL} {
			d := testDevice(t)
			s := d.NewStream()
			tr := newTrainer(loadStudent(t, d, s, filepath.Join(dir, "student")), s, x.batch(), loadTeacher(t, d, filepath.Join(dir, "teacher")),
				device.LossSpec{Alpha: 1 - c.CEWeight, Temperature: c.Temperature, Divergence: div})
			rec, err := tr.Apply(context.Background(), x.batch())
			if err != nil {
				t.Fatal(err)
			}
			near.CheckRel(t, "CE", []float64{rec.MeanCE}, []float64{c.CE}, 1e-5)
			if div == device.ReverseKL {
				near.CheckRel(t, "reverse KL", []float64{rec.MeanD}, []float64{c.ReverseKL}, 1e-5)
				continue
			}
			near.CheckRel(t, "forward KL", []float64{rec.MeanD}, []float64{c.ForwardKL}, 1e-5)
			near.CheckRel(t, "loss", []float64{rec.Loss}, []float64{c.Loss}, 1e-5)
			near.CheckRel(t, "gradient norm", []float64{rec.GradNorm}, []float64{c.GradNorm}, 1e-4)
		}
	}
}

// goldenGradients compares every tensor's gradient, whatever the chunk size and the split into micro-batches.
func goldenGradients(t *testing.T, dir string, x fixture) {
	for _, split := range []struct {
		name             string
		microRows, chunk int
	}{{"whole", 3, 1024}, {"rows", 1, 1024}, {"uneven", 2, 7}, {"one by one", 1, 1}} {
		t.Run(split.name, func(t *testing.T) {
			d := testDevice(t)
			s := d.NewStream()
			tr := newTrainer(loadStudent(t, d, s, filepath.Join(dir, "student")), s, x.batch(), loadTeacher(t, d, filepath.Join(dir, "teacher")),
				device.LossSpec{Alpha: 0.5, Temperature: 2})
			tr.MicroRows, tr.Loss.ChunkRows = split.microRows, split.chunk
			if _, err := tr.Apply(context.Background(), x.batch()); err != nil {
				t.Fatal(err)
			}
			for _, p := range tr.Student.Parts() {
				got := make([]float32, p.Elements())
				if err := s.Download(got, p.Of(p.Param.Grad)); err != nil {
					t.Fatal(err)
				}
				near.CheckL2(t, "gradient of "+p.Name, got, x.floats("grad."+p.Name), 1e-4)
			}
		})
	}
}

// goldenAdamW compares weights after three updates; the fixture decays every parameter.
func goldenAdamW(t *testing.T, dir string, x fixture, g golden) {
	d := testDevice(t)
	s := d.NewStream()
	tr := newTrainer(loadStudent(t, d, s, filepath.Join(dir, "student")), s, x.batch(), loadTeacher(t, d, filepath.Join(dir, "teacher")),
		device.LossSpec{Alpha: 0.5, Temperature: 2})
	for _, p := range tr.Student.Params() {
		p.Decay = true
	}
	for _, want := range g.AdamW.LossAndGradNorm {
		rec, err := tr.Apply(context.Background(), x.batch())
		if err != nil {
			t.Fatal(err)
		}
		near.CheckRel(t, "loss", []float64{rec.Loss}, want[:1], 1e-5)
		near.CheckRel(t, "gradient norm", []float64{rec.GradNorm}, want[1:], 1e-4)
	}
	for _, p := range tr.Student.Parts() {
		got := make([]float32, p.Elements())
		if err := s.Download(got, p.Of(p.Param.Value)); err != nil {
			t.Fatal(err)
		}
		near.CheckL2(t, "weights of "+p.Name, got, x.floats("adamw3."+p.Name), 1e-4)
	}
}

// trajectory is testdata/golden/trajectory: 40 steps in float64.
type trajectory struct {
	Config struct {
		Steps, B, T, Warmup int
		LR, Temperature, WD float64
		CEWeight            float64 `json:"ce_weight"`
		Betas               [2]float64
		Clip                float64
	}
	Steps []struct {
		LR, Loss, CE, KL float64
		GradNorm         float64 `json:"grad_norm"`
	}
}

func TestGoldenTrajectory(t *testing.T) { goldenTrajectory(t, 1e-5, 40) }

// goldenTrajectory compares the losses of each of the first steps, relatively, and its gradient norm with ten times as
// much room.
func goldenTrajectory(t *testing.T, tol float64, steps int) {
	var g trajectory
	readJSON(t, filepath.Join(goldens, "trajectory", "trajectory.json"), &g)
	rows := openFixture(t, filepath.Join(goldens, "trajectory", "batches.safetensors")).ints("tokens")
	d := testDevice(t)
	s := d.NewStream()
	c := g.Config
	b := corpus.Batch{Rows: c.B, SeqLen: c.T}
	tr := newTrainer(loadStudent(t, d, s, filepath.Join(goldens, "trajectory", "student")), s, b,
		loadTeacher(t, d, "../testdata/models/gosrc"), device.LossSpec{Alpha: 1 - c.CEWeight, Temperature: c.Temperature})
	tr.Optimizer.Schedule = optim.Schedule{Kind: optim.Cosine, Peak: c.LR, Warmup: c.Warmup, Steps: c.Steps, MinRatio: 0.1}
	worst := 0.0
	for k, want := range g.Steps[:steps] {
		rec, err := tr.Apply(context.Background(), trajectoryBatch(rows, k, c.B, c.T))
		if err != nil {
			t.Fatal(err)
		}
		near.CheckRel(t, "learning rate", []float64{rec.LR}, []float64{want.LR}, 1e-12)
		near.CheckRel(t, "loss", []float64{rec.Loss}, []float64{want.Loss}, tol)
		near.CheckRel(t, "CE", []float64{rec.MeanCE}, []float64{want.CE}, tol)
		near.CheckRel(t, "KL", []float64{rec.MeanD}, []float64{want.KL}, tol)
		near.CheckRel(t, "gradient norm", []float64{rec.GradNorm}, []float64{want.GradNorm}, 10*tol)
		worst = math.Max(worst, math.Abs(rec.Loss-want.Loss)/want.Loss)
	}
	near.Row(t, fmt.Sprintf("loss over %d steps: largest relative deviation", steps), worst, tol)
	contracttest.Cases(t, steps)
}

// trajectoryBatch cuts step k of the fixture's tokens [steps, B, T+1] into inputs and targets.
func trajectoryBatch(rows []int32, k, rowsPerStep, seqLen int) corpus.Batch {
	n := rowsPerStep * seqLen
	b := corpus.Batch{Rows: rowsPerStep, SeqLen: seqLen, Tokens: make([]int32, n), Targets: make([]int32, n), Mask: make([]uint8, n)}
	for r := range rowsPerStep {
		row := rows[(k*rowsPerStep+r)*(seqLen+1):][:seqLen+1]
		copy(b.Tokens[r*seqLen:], row[:seqLen])
		copy(b.Targets[r*seqLen:(r+1)*seqLen], row[1:])
		for i := range seqLen {
			b.Mask[r*seqLen+i] = 1
		}
	}
	return b
}
