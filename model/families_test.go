package model_test

import (
	"math"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/tensor"
)

// Tolerances, with the largest difference seen of all goldens beside them; see internal/ref for what transformers' own
// float32 tables are worth (4e-7 of the logits, 8e-6 of a gradient).
const (
	familyLogits   = 1e-5 // of the largest logit; 6.7e-6
	familyHidden   = 1e-5 // relative L2 of the output of a layer; 2.6e-6
	familyGradient = 1e-4 // relative L2 of a tensor; 2.2e-5
)

// Logits and the hidden states of every layer are those of transformers in float64, as training computes them and as
// inference does.
func TestFamiliesForward(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		tokens := f.tokens(d, s)
		worst := 0.0
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			v := m.Forward(s, tokens, r)
			for i, x := range v.States() {
				name := "hidden." + string(rune('0'+i))
				got := download(t, s, x)
				if i == len(f.config.Layers) {
					for j := range got {
						got[j] /= float32(f.config.LogitScale)
					}
				}
				far := apart(name, got, f.want[name])
				worst = math.Max(worst, far)
				if !(far <= familyHidden) {
					t.Errorf("%v: %s: %.2g", r, name, far)
				}
			}
			f.checkLogits(t, r.String(), m, s, v.Hidden)
			v.ReleaseTo(s)
		}
		x := s.Temp("hidden", device.Activations, tensor.F32, len(f.ids), f.config.Hidden)
		m.Hidden(s, x, tokens)
		f.checkLogits(t, "inference of the trainable", m, s, x)
		frozen := f.frozen(t, d)
		frozen.Hidden(s, x, tokens)
		f.checkLogits(t, "frozen", frozen, s, x)
		snapshot := m.Snapshot(s)
		snapshot.Hidden(s, x, tokens)
		f.checkLogits(t, "snapshot", snapshot, s, x)
		t.Logf("hidden states %.1e", worst)
	})
}

func (f *fixture) checkLogits(t *testing.T, what string, m *model.Model, s device.Stream, hidden device.Tensor) {
	t.Helper()
	z := s.Temp("z", device.Logits, tensor.F32, hidden.Rows, f.config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, hidden)
	far := ofMax(download(t, s, z), f.want["logits"])
	if !(far <= familyLogits) {
		t.Errorf("%s: logits: %.2g of the largest", what, far)
	}
	t.Logf("%s: logits %.1e", what, far)
}

// Gradients of every tensor are those of transformers in float64, whatever is computed again.
func TestFamiliesBackward(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		m := f.trainable(t, d, s)
		tokens := f.tokens(d, s)
		before := map[string][]float32{}
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			m.ResetTraining(s)
			f.backward(t, m, s, tokens, r)
			grads := map[string][]float64{}
			for _, p := range m.Parts() {
				got := download(t, s, p.Of(p.Param.Grad))
				grads[p.Name] = nil
				if r == model.RecomputeNone {
					before[p.Name] = got
				} else if !equalBits(got, before[p.Name]) {
					t.Errorf("%v changes the gradient of %s", r, p.Name)
				}
			}
			worst, where := f.gradients(t, before)
			if !(worst <= familyGradient) {
				t.Errorf("%v: gradient of %s: %.2g", r, where, worst)
			}
			t.Logf("%v: gradient %.1e of %s", r, worst, where)
		}
	})
}

func equalBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// gradients returns the worst distance of gradients by slot from the golden's, which are by the file's tensors.
func (f *fixture) gradients(t *testing.T, grads map[string][]float32) (worst float64, where string) {
	t.Helper()
	files := map[string][]float64{}
	for _, s := range arch.Slots(f.config) {
		if s.Fixed {
			continue
		}
		p := s.Stacked()
		if files[p.Name] == nil {
			files[p.Name] = make([]float64, elements(p.Shape))
		}
		v := make([]float64, len(grads[s.Name]))
		for i, x := range grads[s.Name] {
			v[i] = float64(x)
		}
		arch.Scatter(s, p, v, [][]float64{files[p.Name]})
	}
	for name, got := range files {
		want, ok := f.want["grad."+name]
		if !ok {
			t.Fatalf("no gradient of %s", name)
		}
		if d := apart("grad."+name, got, want); !(d <= worst) {
			worst, where = math.Max(worst, d), name
		}
	}
	return worst, where
}

// backward adds the gradients of the masked mean cross-entropy, computed on the host in float64.
func (f *fixture) backward(t *testing.T, m *model.Model, s device.Stream, tokens model.Tokens, r model.Recompute) {
	t.Helper()
	v := m.Forward(s, tokens, r)
	defer v.ReleaseTo(s)
	z := s.Temp("z", device.Logits, tensor.F32, len(f.ids), f.config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, v.Hidden)
	s.Upload(z, f.lossGrad(download(t, s, z)))
	head, param := m.Head()
	dx := s.Temp("dx", device.Scratch, tensor.F32, v.Hidden.Rows, v.Hidden.Cols)
	defer s.Release(dx)
	s.MatMulInputGrad(dx, z, head, false)
	s.MatMulWeightGrad(param.Grad, device.Tensor{}, z, v.Hidden)
	check := completes(t, m, s, v)
	m.Backward(s, v, dx)
	check()
}

// lossGrad returns the gradient of the loss over the logits before their cap.
func (f *fixture) lossGrad(z []float32) []float32 {
	seq, vocab, n := len(f.ids)/f.rows, f.config.Vocab, 0.0
	counts := func(i int) bool { return i%seq < seq-1 && f.want["loss_mask"][i] != 0 }
	for i := range f.ids {
		if counts(i) {
			n++
		}
	}
	out := make([]float32, len(z))
	for i := range f.ids {
		if !counts(i) {
			continue
		}
		row, sum := z[i*vocab:(i+1)*vocab], 0.0
		for _, x := range row {
			sum += math.Exp(float64(x))
		}
		for j, x := range row {
			g := math.Exp(float64(x)) / sum
			if j == int(f.ids[i+1]) {
				g--
			}
			if c := f.config.FinalCap; c > 0 {
				g *= 1 - float64(x)/c*float64(x)/c
			}
			out[i*vocab+j] = float32(g / n)
		}
	}
	return out
}

// A cache gives the greedy ids of transformers, one position at a time and with the prompt in pieces.
func TestFamiliesGreedy(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		m := f.frozen(t, d)
		for _, pieces := range [][]int{{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {12}, {5, 1, 6}} {
			if got := f.greedy(t, m, d, s, pieces); !equalIDs(got, f.golden.Greedy) {
				t.Errorf("prompt in %v: %v, want %v", pieces, got, f.golden.Greedy)
			}
		}
	})
}

func equalIDs(a, b []int32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func (f *fixture) greedy(t *testing.T, m *model.Model, d device.Device, s device.Stream, pieces []int) (out []int32) {
	t.Helper()
	prompt := f.golden.Prompt
	c := m.NewCache(len(prompt) + len(f.golden.Greedy))
	defer c.Free(d)
	ids := d.Alloc("ids", device.Batch, tensor.I32, len(prompt), 1)
	hidden := d.Alloc("hidden", device.Activations, tensor.F32, 1, f.config.Hidden)
	choice := m.NewGreedy(f.config.Vocab)
	for _, n := range pieces {
		s.UploadInts(ids.RowRange(0, n), prompt[:n])
		m.Extend(s, hidden, c, ids.RowRange(0, n))
		prompt = prompt[n:]
	}
	for range f.golden.Greedy {
		id, finite, err := choice.Next(s, hidden)
		must(t, err)
		if !finite {
			t.Fatal("a logit is not finite")
		}
		out = append(out, id)
		m.Extend(s, hidden, c, choice.ID())
	}
	return out
}
