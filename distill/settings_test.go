package distill

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/model"
	"apr/optim"
)

// A run does what its settings say: the student is, to the bit, that of a trainer set up by hand with each of them, on
// the rows that a loader of its seed gives.
func TestSettingsReachTheStep(t *testing.T) {
	c := tinyConfig(t)
	c.Loss = device.LossSpec{Alpha: 0.3, Temperature: 2.5, Divergence: device.JSD, Beta: 0.2}
	c.AdamW = device.AdamW{Beta1: 0.8, Beta2: 0.9, Eps: 1e-5, WeightDecay: 3}
	c.Steps, c.BatchSize, c.GradAccum, c.ChunkRows, c.MaxGradNorm = 5, 3, 2, 50, 0.02
	c.LR, c.WarmupRatio, c.MinLRRatio, c.Schedule = 3e-3, 0.3, 0.25, optim.Linear
	mustRun(t, c, 0)
	records := readSteps(t, c)

	d := newCPU(t)
	s := d.NewStream()
	files := openModel(t, c.Teacher)
	tok, err := files.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	trained := openModel(t, filepath.Join(c.Output, "student"))
	student := model.NewTrainable(d, trained.Config)
	student.Init(s, c.Seed)
	tr := NewTrainer(student, s, 6, c.SeqLen)
	tr.Teacher, tr.MicroRows = loadTeacher(t, d, c.Teacher), 3
	tr.Loss = Loss{Spec: c.Loss, Vocab: tok.RealIDs(), ChunkRows: 50}
	tr.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Linear, Peak: 3e-3, Warmup: 2, Steps: 5, MinRatio: 0.25}, // ⌈0.3·5⌉ of warm-up
		AdamW:    c.AdamW, MaxNorm: 0.02,
	}
	loader := textLoader(t, c)
	for k, record := range records {
		// By hand: two steps of warm-up to the peak, and from there in thirds to a quarter of it.
		if want := 3e-3 * []float64{1. / 2, 1, 1, 3. / 4, 1. / 2}[k]; math.Abs(record["lr"].(float64)-want) > 1e-15 {
			t.Errorf("step %d: learning rate %v, want %g", k, record["lr"], want)
		}
		b, err := loader.Next()
		if err != nil {
			t.Fatal(err)
		}
		rec := apply(t, tr, b)
		for key, want := range map[string]float64{"lr": rec.LR, "loss": rec.Loss, "ce": rec.MeanCE, "kl": rec.MeanD, "grad_norm": rec.GradNorm} {
			if record[key] != want {
				t.Errorf("step %d: %s %v, by hand %v", k, key, record[key], want)
			}
		}
		if record["clipped"] != true {
			t.Errorf("step %d: a gradient of norm %v was not clipped", k, record["grad_norm"])
		}
	}
	for name, want := range get(t, tr, value) {
		if got, err := trained.ReadFloat32(name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
	contracttest.Cases(t, len(records))
}

// textLoader serves the text of c as a run does.
func textLoader(t *testing.T, c Config) *corpus.Loader {
	t.Helper()
	tok, err := openModel(t, c.Teacher).Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	enc, err := corpus.ForTokenizer(tok, "auto")
	if err != nil {
		t.Fatal(err)
	}
	eos, err := corpus.EndOfText(tok)
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := corpus.Load(context.Background(), c.Data, enc, corpus.EncodeOptions{EOS: eos, Vocab: tok.RealIDs()})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := corpus.Pack(text, c.SeqLen)
	if err != nil {
		t.Fatal(err)
	}
	loader, err := corpus.NewLoader(rows, corpus.LoaderOptions{BatchRows: c.Rows(), Shuffle: true, Seed: c.Seed})
	if err != nil {
		t.Fatal(err)
	}
	return loader
}

// What is held out is not trained on, and nothing is lost between the two.
func TestHeldOutTextIsNotTrainedOn(t *testing.T) {
	c := tinyConfig(t)
	whole, err := openInputs(context.Background(), c, newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer whole.close()
	c.ValFraction = 0.3
	in, err := openInputs(context.Background(), c, newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	if in.held == nil || len(in.held.Docs) == 0 || len(in.train.Docs)+len(in.held.Docs) != len(whole.train.Docs) {
		t.Fatalf("%d documents are trained on, %v held out, of %d", len(in.train.Docs), in.held, len(whole.train.Docs))
	}
	if err := corpus.CheckOverlap(in.train, in.held); err != nil {
		t.Error(err)
	}
	if n := in.rows.Len(); n != len(in.train.IDs)/(c.SeqLen+1) {
		t.Errorf("%d rows of %d ids", n, len(in.train.IDs))
	}
}

// In a run on conversations the assistant's turns are the targets, or all turns are.
func TestAssistantOnly(t *testing.T) {
	tok, err := openModel(t, "../testdata/models/gosrc").Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for only, turns := range map[bool]corpus.Turns{true: corpus.AutoTurns, false: corpus.AllTurns} {
		c := tinyConfig(t)
		path := filepath.Join(t.TempDir(), "chat.jsonl")
		if err := os.WriteFile(path, []byte(conversations), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Data, c.AssistantOnly, c.Packing, c.SeqLen, c.Steps = []string{path}, only, false, 64, 1
		mustRun(t, c, 0)
		if got, want := readSteps(t, c)[0]["targets"], float64(conversationRows(t, tok, turns).TargetCount()); got != want {
			t.Errorf("assistant only %v: %v targets, want %v", only, got, want)
		}
	}
}
