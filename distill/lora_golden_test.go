package distill

import (
	"math"
	"path/filepath"
	"testing"

	"apr/adapter"
	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/tensor"
)

// peft is a case of testdata/golden/lora: what PEFT computes with an adapter of qwen2/tied_gqa/student.
type peft struct {
	Trainable       int64
	LossAndGradNorm [][2]float64 `json:"loss_and_gradnorm"`
	x               fixture
	base            *modelfile.Files
	a               *adapter.Adapter
}

var peftCases = []string{"plain", "all", "rslora_patterns"}

func openPEFT(t *testing.T, name string) (g peft) {
	t.Helper()
	dir := filepath.Join(goldens, "lora", name)
	readJSON(t, filepath.Join(dir, "golden.json"), &g)
	g.x = openFixture(t, filepath.Join(dir, "golden.safetensors"))
	g.base = openModel(t, filepath.Join(goldens, "qwen2", "tied_gqa", "student"))
	a, err := adapter.Open(dir, g.base)
	if err != nil {
		t.Fatal(err)
	}
	g.a = a
	return g
}

// student returns the base with the adapter beside it.
func (g peft) student(t *testing.T, d device.Device, s device.Stream) *model.Model {
	t.Helper()
	m, err := model.LoadFrozenAs(d, g.base, device.StudentWeights, baseForm(d.Info()))
	if err != nil {
		t.Fatal(err)
	}
	adapt(m, g.a, 1)
	m.SetAdapters(s, g.a.Values())
	return m
}

// batch is that of transformers' loss: each position but the last teaches the id behind it.
func (g peft) batch() corpus.Batch {
	ids, n := g.x.ints("input_ids"), 19
	b := corpus.Batch{Rows: 2, SeqLen: n, Tokens: ids, Targets: make([]int32, len(ids)), Mask: make([]uint8, len(ids))}
	for i := range ids {
		if i%n < n-1 {
			b.Targets[i], b.Mask[i] = ids[i+1], 1
		}
	}
	return b
}

func (g peft) trainer(m *model.Model, s device.Stream, b corpus.Batch) *Trainer {
	tr := newTrainer(m, s, b, nil, device.LossSpec{Temperature: 1})
	tr.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Constant, Peak: 1e-3, Steps: 1000},
		AdamW:    device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}, MaxNorm: 1,
	}
	return tr
}

func TestPEFT(t *testing.T) {
	for _, name := range peftCases {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			g := openPEFT(t, name)
			if n := g.a.Parameters(); n != g.Trainable {
				t.Errorf("%d parameters, PEFT trains %d", n, g.Trainable)
			}
			t.Run("logits", g.logits)
			t.Run("gradients", g.gradients)
			t.Run("adamw", g.adamW)
		})
	}
}

func (g peft) logits(t *testing.T) {
	d := testDevice(t)
	s := d.NewStream()
	m, b := g.student(t, d, s), g.batch()
	want := g.x.floats("logits")
	near.Check(t, "logits", logitsOf(t, d, s, m.Frozen(), b), want, 2e-4*widest(want))
	near.Check(t, "logits of a snapshot", logitsOf(t, d, s, m.Snapshot(s), b), want, 2e-4*widest(want))
}

// logitsOf returns the logits of all positions.
func logitsOf(t *testing.T, d device.Device, s device.Stream, m *model.Model, b corpus.Batch) []float32 {
	t.Helper()
	db := model.NewBatch(d, b.Rows, b.SeqLen)
	db.Load(s, b, b.Rows)
	n := b.Rows * b.SeqLen
	hidden := s.Temp("hidden", device.Activations, d.Info().Activations, n, m.Config.Hidden)
	z := s.Temp("logits", device.Logits, tensor.F32, n, m.Config.Vocab)
	m.Hidden(s, hidden, db.Tokens)
	m.Logits(s, z, hidden)
	got := make([]float32, n*m.Config.Vocab)
	if err := s.Download(got, z); err != nil {
		t.Fatal(err)
	}
	s.Release(hidden, z)
	return got
}

func widest(v []float32) (x float64) {
	for _, w := range v {
		x = math.Max(x, math.Abs(float64(w)))
	}
	return x
}

func (g peft) gradients(t *testing.T) {
	for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
		for _, rows := range []int{2, 1} {
			d := testDevice(t)
			s := d.NewStream()
			m, b := g.student(t, d, s), g.batch()
			tr := g.trainer(m, s, b)
			tr.Recompute, tr.MicroRows = r, rows
			tr.gradients(b, b.TargetCount())
			for _, p := range m.Parts() {
				got := make([]float32, p.Elements())
				if err := s.Download(got, p.Of(p.Param.Grad)); err != nil {
					t.Fatal(err)
				}
				near.CheckL2(t, "gradient of "+p.Name, got, g.x.floats("grad."+p.Name), 1e-4)
			}
		}
	}
}

func (g peft) adamW(t *testing.T) {
	d := testDevice(t)
	s := d.NewStream()
	m, b := g.student(t, d, s), g.batch()
	tr := g.trainer(m, s, b)
	for _, want := range g.LossAndGradNorm {
		rec, err := tr.Apply(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		near.CheckRel(t, "loss", []float64{rec.Loss}, want[:1], 1e-5)
		near.CheckRel(t, "gradient norm", []float64{rec.GradNorm}, want[1:], 1e-4)
	}
	before := g.a.Values()
	for _, p := range m.Parts() {
		got := make([]float32, p.Elements())
		if err := s.Download(got, p.Of(p.Param.Value)); err != nil {
			t.Fatal(err)
		}
		want := g.x.floats("adamw3." + p.Name)
		moved, wanted := make([]float32, len(got)), make([]float32, len(got))
		for i, v := range before[p.Name] {
			moved[i], wanted[i] = got[i]-v, want[i]-v
		}
		near.CheckL2(t, "weights of "+p.Name, got, want, 1e-4)
		near.CheckL2(t, "change of "+p.Name, moved, wanted, 2e-3)
	}
}
