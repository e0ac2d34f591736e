package distill

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/model"
	"apr/quant"
	runlog "apr/run/log"
	"apr/tensor"
)

// inBlocks is a description whose rows fill blocks of 32, and types for its matrices.
func inBlocks(t *testing.T) (arch.Config, map[string]tensor.DType) {
	t.Helper()
	c, err := arch.Parse("config.json", `{"model_type":"qwen2","hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":2,`+
		`"num_key_value_heads":1,"vocab_size":320,"max_position_embeddings":64,"tie_word_embeddings":true,"bos_token_id":1,"eos_token_id":1,"initializer_range":0.05}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]tensor.DType{}
	for _, s := range arch.Slots(c) {
		switch {
		case len(s.Shape) < 2:
		case s.Role == arch.V || s.Role == arch.Embedding:
			types[s.Name] = tensor.Q8_0
		default:
			types[s.Name] = tensor.Q4_0
		}
	}
	return c, types
}

// put uploads one companion of every tensor of a student.
func put(t *testing.T, tr *Trainer, of func(*device.Param) device.Tensor, values map[string][]float32) {
	t.Helper()
	for _, p := range tr.Student.Parts() {
		tr.stream.Upload(p.Of(of(p.Param)), values[p.Name])
	}
	tr.Student.Refresh(tr.stream)
}

func read(p *device.Param) device.Tensor    { return p.Read() }
func moment(p *device.Param) device.Tensor  { return p.M }
func squares(p *device.Param) device.Tensor { return p.V }

// storedOf returns the blocks of a student, and what they should be made of its values: the bytes of before, made anew.
func storedOf(t *testing.T, tr *Trainer, before [][]byte, search bool) (got, want [][]byte) {
	t.Helper()
	for i, p := range tr.Student.Params() {
		if len(p.Blocks) == 0 {
			got, want = append(got, nil), append(want, nil)
			continue
		}
		raw, err := model.StoredBytes(tr.stream, p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, raw)
		values := make([]float32, p.Rows*p.Cols)
		if err := tr.stream.Download(values, p.Value); err != nil {
			t.Fatal(err)
		}
		made := make([]byte, len(raw))
		if before != nil {
			copy(made, before[i])
		}
		rest := made
		for _, b := range p.Blocks {
			n, size := b.Rows*p.Cols, int(b.Bytes(p.Cols))
			how := quant.Round
			if search {
				how = quant.Quantize
			}
			if err := how(rest[:size], values[:n], b.DType); err != nil {
				t.Fatal(err)
			}
			values, rest = values[n:], rest[size:]
		}
		want = append(want, made)
	}
	return got, want
}

// A step of a student in blocks is bit by bit that of a plain student whose weights are what the blocks decode to, as
// far as loss and gradients go; its update is one of AdamW on the weights themselves with these gradients, taken once;
// and its blocks are those of the new weights: searched for at every second step, else rounded under the scales of
// before.
func TestQuantizeAwareStep(t *testing.T) {
	c, types := inBlocks(t)
	d := testDevice(t)
	b := randomBatch(4, 12, 320, 0.9)
	spec := device.LossSpec{Temperature: 1}
	fresh := func(types map[string]tensor.DType) *Trainer {
		s := d.NewStream()
		m := model.NewTrainableAs(d, c, types)
		m.Init(s, 3)
		tr := newTrainer(m, s, b, nil, spec)
		tr.SearchEvery = 2
		return tr
	}
	tr, plain, masters := fresh(types), fresh(nil), fresh(nil)
	stored, want := storedOf(t, tr, nil, true)
	sameBlocks(t, "before training", stored, want)
	for k := range 4 {
		contracttest.Cases(t, 1)
		before := trainingState(t, tr)
		put(t, plain, value, get(t, tr, read))
		put(t, masters, value, before["value"])
		put(t, masters, moment, before["first moment"])
		put(t, masters, squares, before["second moment"])
		plain.Steps, plain.Optimizer.Applied = tr.Steps, tr.Optimizer.Applied
		rec, of := apply(t, tr, b), apply(t, plain, b)
		if rec.Loss != of.Loss || rec.GradNorm != of.GradNorm || rec.GradNorm == 0 {
			t.Errorf("step %d: loss %g, norm %g; of a student that has the blocks' values %g, %g", k, rec.Loss, rec.GradNorm, of.Loss, of.GradNorm)
		}
		grads := map[string]map[string][]float32{"gradient": get(t, plain, grad)}
		sameState(t, "gradients", map[string]map[string][]float32{"gradient": get(t, tr, grad)}, grads)
		put(t, masters, grad, grads["gradient"])
		masters.stream.SetScalars(rec.Scalars)
		masters.stream.Verdict(masters.Student.Params())
		masters.stream.AdamW(masters.Student.Params(), masters.Optimizer.AdamW)
		sameState(t, "update", trainingState(t, tr), trainingState(t, masters))
		var made [][]byte
		stored, made = storedOf(t, tr, stored, (k+1)%2 == 0)
		sameBlocks(t, "after an update", stored, made)
	}
	restored(t, tr, fresh(types))
}

// restored: a checkpoint brings back the blocks, which do not follow from the weights alone.
func restored(t *testing.T, tr, other *Trainer) {
	t.Helper()
	contracttest.Cases(t, 1)
	apply(t, tr, randomBatch(4, 12, 320, 0.9))
	path := filepath.Join(t.TempDir(), "state.safetensors")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := safetensors.Encode(out, trainingTensors(tr.Student, tr.stream), nil); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := restoreTensors(other.Student, other.stream, f, nil); err != nil {
		t.Fatal(err)
	}
	got, searched := storedOf(t, other, nil, true)
	want, _ := storedOf(t, tr, nil, true)
	sameBlocks(t, "restored", got, want)
	if equalBlocks(searched, want) {
		t.Error("a search finds the blocks of the checkpoint: nothing is shown")
	}
	sameState(t, "restored", map[string]map[string][]float32{"read": get(t, other, read)}, map[string]map[string][]float32{"read": get(t, tr, read)})
}

func equalBlocks(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func sameBlocks(t *testing.T, when string, got, want [][]byte) {
	t.Helper()
	if !equalBlocks(got, want) {
		t.Errorf("%s: other blocks are stored than the weights make", when)
	}
}

// q8 has all matrices in Q8_0.
func q8(a arch.Config) (map[string]tensor.DType, []string, error) {
	types := map[string]tensor.DType{}
	for _, s := range arch.Slots(a) {
		if len(s.Shape) == 2 {
			types[s.Name] = tensor.Q8_0
		}
	}
	return types, nil, nil
}

// TestCoarseTeacher: a teacher that is the student in blocks as coarse as the student's teaches its rounding, which is
// told; one in 16 bits does not.
func TestCoarseTeacher(t *testing.T) {
	const student = "../testdata/models/gosrc"
	for teacher, told := range map[string]bool{student: false, student + "-q4_k_m.gguf": true} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) {
			from(student)(c)
			c.Teacher, c.Quantize = teacher, &Quantize{Scheme: "q8_0", Types: q8}
		})
		if r.event(runlog.CoarseTeacher) != told || hasFinding(r.findings, "coarse-teacher") != told ||
			strings.Contains(r.said, "its rounding is what it teaches") != told {
			t.Errorf("%s: %s; %+v", teacher, r.said, r.findings.Findings)
		}
	}
}

// A student that is its teacher has in blocks what rounding took to learn; one that was in these blocks before has
// nothing, which is told as an event and a finding.
func TestBlocksThatChangeNothing(t *testing.T) {
	rounded := changedCopy(t, tensor.F32, func(_ string, cols int, v []float32) {
		if cols < len(v) {
			raw := make([]byte, len(v)/32*tensor.Q8_0.BlockBytes())
			if err := quant.Quantize(raw, v, tensor.Q8_0); err != nil {
				t.Error(err)
			}
			quant.Dequantize(v, raw, tensor.Q8_0)
		}
	})
	for student, told := range map[string]bool{"../testdata/models/gosrc": false, rounded: true} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) {
			from(student)(c)
			c.Teacher, c.Quantize = student, &Quantize{Scheme: "q8_0", Types: q8}
		})
		if k := r.manifest.Kinship; k == nil || k.Relation != "same" {
			t.Errorf("%s: kinship %+v", student, k)
		}
		if r.event(runlog.BlocksChangeNothing) != told || hasFinding(r.findings, "blocks") != told ||
			strings.Contains(r.said, "the student's weights are in q8_0 already") != told {
			t.Errorf("%s: %s; %+v", student, r.said, r.findings.Findings)
		}
	}
}
