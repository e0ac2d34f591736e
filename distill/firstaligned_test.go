package distill

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/adapter"
	"apr/arch"
	"apr/internal/contracttest"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tensor"
	"apr/tokenizer"
)

// lessAdapter writes a model of a copy's values less products of a low rank, and an adapter that adds them.
func lessAdapter(t *testing.T, change func(name string, cols int, v []float32)) (base, lora string) {
	t.Helper()
	config := openModel(t, "../testdata/models/gosrc").Config
	a, err := adapter.New(config, []string{"q", "v", "o", "gate", "up", "down"}, 4, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	rng, of := rand.New(rand.NewPCG(3, 4)), map[string]*adapter.Module{}
	for i := range a.Modules {
		m := &a.Modules[i]
		rows, cols := m.Slot.Shape[0], m.Slot.Shape[1]
		m.A, m.B = make([]float32, m.Rank*cols), make([]float32, rows*m.Rank)
		for _, v := range [][]float32{m.A, m.B} {
			for j := range v {
				v[j] = float32(0.25 * rng.NormFloat64())
			}
		}
		of[m.Slot.Name] = m
	}
	base = changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		change(name, cols, v)
		m := of[name]
		if m == nil {
			return
		}
		for i := range v {
			for r := range m.Rank {
				v[i] -= m.B[i/cols*m.Rank+r] * m.A[r*cols+i%cols]
			}
		}
	})
	lora = filepath.Join(t.TempDir(), "lora")
	if _, err := a.SavePEFT(lora, true); err != nil {
		t.Fatal(err)
	}
	return base, lora
}

// A student that is the teacher by its adapter is told whatever its dropout does to the first step.
func TestFirstStepWithoutDropout(t *testing.T) {
	base, lora := lessAdapter(t, both(permuted, turned))
	for _, rate := range []float64{.2, .5} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) {
			from(base)(c)
			c.LoRA = &LoRA{Rank: 4, Alpha: 4, Dropout: rate, Targets: []string{"q"}, From: lora}
		})
		if !r.event(runlog.FirstStepEqual) && !r.event(runlog.FirstStepAgrees) {
			t.Errorf("dropout %g: no event: %s", rate, r.said)
		}
	}
}

// otherOrder writes a model with its ids in another order, and a tokenizer that has them so.
func otherOrder(t *testing.T, path string) string {
	t.Helper()
	f := openModel(t, path)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	d := tok.Data()
	old := make([]int, 0, f.Config.Vocab) // of each new id
	for id := range f.Config.Vocab {
		old = append(old, id)
	}
	n := slices.Index(d.TokenType, int(tokenizer.Control))
	if n < 0 {
		t.Fatal("no special token")
	}
	rand.New(rand.NewPCG(5, 6)).Shuffle(n, func(i, j int) { old[i], old[j] = old[j], old[i] })
	texts := slices.Clone(d.Vocabulary)
	for id := range texts {
		d.Vocabulary[id] = texts[old[id]]
	}
	if tok, err = tokenizer.FromData("another order", d); err != nil {
		t.Fatal(err)
	}
	var out []tensor.Source
	for _, s := range arch.Slots(f.Config) {
		v, err := f.ReadFloat32(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name == "model.embed_tokens.weight" || s.Name == "lm_head.weight" {
			from, h := slices.Clone(v), f.Config.Hidden
			for id, at := range old {
				copy(v[id*h:(id+1)*h], from[at*h:(at+1)*h])
			}
		}
		raw := make([]byte, 4*len(v))
		tensor.Narrow(raw, v, tensor.F32)
		out = append(out, tensor.BytesSource(tensor.Info{Name: s.Name, DType: tensor.F32, Shape: s.Shape}, raw))
	}
	dir := filepath.Join(t.TempDir(), "ordered")
	if _, err := modelfile.SaveHF(dir, f.Config, tok, out, tensor.F32, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A copy whose ids are in another order is told beside a teacher that is aligned, where it teaches: by its
// distribution and by its likelihoods, also one without a layer that does nothing. A model of other numbers is not,
// and neither is one with the teacher's table alone, or one that was cut out of the teacher.
func TestAlignedCopyIsTold(t *testing.T) {
	apart := both(permuted, turned)
	copied := otherOrder(t, changedCopy(t, tensor.F32, apart))
	coded := otherOrder(t, changedCopy(t, tensor.F32, both(permuteAndCode, turned)))
	other := otherOrder(t, untrained(t, 9))
	stranger := otherOrder(t, strangerWithTable(t))
	hf := "../testdata/models/gosrc"
	near := otherOrder(t, changedCopy(t, tensor.F32, noisy(0.01)))
	cut := otherOrder(t, reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Layers = c.Layers[:5] },
		func(_ string, _ []int, v []float32) []float32 { return v }))
	for _, tt := range []struct{ name, teacher, student, align, event string }{
		{"a copy", hf, copied, AlignAuto, runlog.FirstStepEqual}, {"a copy", hf, copied, AlignChunk, runlog.FirstStepEqual},
		{"in codes", hf, coded, AlignProject, runlog.FirstStepAgrees},
		{"in codes", hf, coded, AlignChunk, runlog.EmbeddingAgrees},
		{"other numbers", hf, other, AlignChunk, ""},
		{"with the table", hf, stranger, AlignProject, ""},
		{"a layer less", idleLayer(t), near, AlignChunk, runlog.EmbeddingAgrees},
		{"cut to 5 layers", hf, cut, AlignChunk, ""},
	} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) { from(tt.student)(c); c.Teacher, c.Align = tt.teacher, tt.align })
		k := r.manifest.Kinship
		t.Logf("%s, %s: cosine %.3g, angles %.3g: %s", tt.name, tt.align, float64(k.Embedding), float64(k.Angles), r.said)
		for event, finding := range map[string]string{runlog.FirstStepEqual: "copy", runlog.FirstStepAgrees: "agrees",
			runlog.EmbeddingAgrees: "agrees"} {
			if want := event == tt.event; r.event(event) != want || want && !hasFinding(r.findings, finding) ||
				want && !strings.Contains(r.said, "is it a copy") {
				t.Errorf("%s, %s: event %q: %v, want %v: %s", tt.name, tt.align, event, r.event(event), want, r.said)
			}
		}
		if like := float64(k.Angles) > 0.9; like == (tt.name == "other numbers") {
			t.Errorf("%s, %s: angles %g", tt.name, tt.align, float64(k.Angles))
		}
	}
}
