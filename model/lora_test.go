package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/adapter"
	"apr/arch"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// adapterGradient bounds the relative L2 distance of two gradients in float32, with an adapter beside the matrix and with one merged into
// it; 1.7e-4 was seen, behind attention whose scores are soft-capped.
const adapterGradient = 4e-4

// adapted is a golden's model with adapters of every matrix that can have one, of several ranks and scales, and its values.
type adapted struct {
	f      *fixture
	m      *model.Model
	slots  map[string]arch.Slot
	all    []model.Adapter
	values map[string][]float32
}

func newAdapted(t *testing.T, f *fixture, d device.Device, s device.Stream, rate float64) *adapted {
	t.Helper()
	a := &adapted{f: f, m: f.frozen(t, d), slots: map[string]arch.Slot{}, values: map[string][]float32{}}
	unit := 1
	if d.Info().Activations == tensor.BF16 {
		unit = 8 // for which a device may have kernels
	}
	for i, slot := range adapter.Slots(f.config) {
		if i%7 == 3 {
			continue // a stack some of whose parts have none
		}
		a.slots[slot.Name] = slot
		a.all = append(a.all, model.Adapter{Slot: slot.Name, Rank: unit * (1 + i%4), Scale: []float64{1, .5, 2}[i%3]})
	}
	a.m.Adapt(a.all, rate, 5)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range a.m.Parts() {
		v := make([]float32, p.Elements())
		for i := range v {
			v[i] = float32(.1 * rng.NormFloat64())
		}
		a.values[p.Name] = v
	}
	a.m.SetAdapters(s, a.values)
	return a
}

// merged is the golden with the adapters merged into its weights.
func (a *adapted) merged() *fixture {
	f := *a.f
	f.values = map[string][]float32{}
	for name, v := range a.f.values {
		f.values[name] = v
	}
	for _, ad := range a.all {
		slot := a.slots[ad.Slot]
		w := f.values[ad.Slot]
		if slot.Role == arch.Head && f.config.Tied {
			w = f.values["model.embed_tokens.weight"]
		}
		out, in := slot.Shape[0], slot.Shape[1]
		sum := make([]float32, len(w))
		va, vb := a.values[ad.Name("A")], a.values[ad.Name("B")]
		for r := range out {
			for c := range in {
				x := 0.0
				for k := range ad.Rank {
					x += float64(vb[r*ad.Rank+k]) * float64(va[k*in+c])
				}
				sum[r*in+c] = float32(float64(w[r*in+c]) + ad.Scale*x)
			}
		}
		f.values[ad.Slot] = sum
	}
	if _, ok := f.values["lm_head.weight"]; ok {
		f.config = adapter.Untied(f.config)
	}
	return &f
}

// wanted are the gradients over A and B by those over the merged matrices: dA = scale·Bᵀ·dW, dB = scale·dW·Aᵀ.
func (a *adapted) wanted(dw map[string][]float32) map[string][]float64 {
	out := map[string][]float64{}
	for _, ad := range a.all {
		slot := a.slots[ad.Slot]
		rows, cols := slot.Shape[0], slot.Shape[1]
		d := ref.Of(rows, cols, dw[ad.Slot])
		va, vb := ref.Of(ad.Rank, cols, a.values[ad.Name("A")]), ref.Of(rows, ad.Rank, a.values[ad.Name("B")])
		da, db := ref.New(ad.Rank, cols), ref.New(rows, ad.Rank)
		for r := range rows {
			for k := range ad.Rank {
				for c := range cols {
					da.Row(k)[c] += ad.Scale * vb.Row(r)[k] * d.Row(r)[c]
					db.Row(r)[k] += ad.Scale * d.Row(r)[c] * va.Row(k)[c]
				}
			}
		}
		out[ad.Name("A")], out[ad.Name("B")] = da.V, db.V
	}
	return out
}

// backward is that of the golden, of a model whose head may have an adapter.
func (a *adapted) backward(t *testing.T, s device.Stream, tokens model.Tokens, r model.Recompute) (logits []float32) {
	t.Helper()
	v := a.m.Forward(s, tokens, r)
	defer v.ReleaseTo(s)
	z := s.Temp("z", device.Logits, tensor.F32, len(a.f.ids), a.f.config.Vocab)
	defer s.Release(z)
	a.m.TrainingLogits(s, z, v.Hidden, tokens.At)
	logits = download(t, s, z)
	s.Upload(z, a.f.lossGrad(logits))
	dx := s.Temp("dx", device.Scratch, v.Hidden.DType, v.Hidden.Rows, v.Hidden.Cols)
	defer s.Release(dx)
	a.m.HeadBackward(s, dx, z, v.Hidden, tokens.At)
	a.m.Backward(s, v, dx)
	return logits
}

func (a *adapted) grads(t *testing.T, s device.Stream) map[string][]float32 {
	t.Helper()
	out := map[string][]float32{}
	for _, p := range a.m.Parts() {
		out[p.Name] = download(t, s, p.Of(p.Param.Grad))
	}
	return out
}

// Logits of a model with adapters are those of the merged model, and gradients follow from the merged model's, in every family,
// whatever is computed again. Merging is arithmetic that knows nothing of how adapters are computed.
func TestAdaptersOfFamilies(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		a, tokens := newAdapted(t, f, d, s, 0), f.tokens(d, s)
		g := a.merged()
		whole := g.trainable(t, d, s)
		g.backward(t, whole, s, tokens, model.RecomputeNone)
		dw := map[string][]float32{}
		for _, p := range whole.Parts() {
			dw[p.Name] = download(t, s, p.Of(p.Param.Grad))
		}
		want, first := a.wanted(dw), map[string][]float32{}
		wantLogits := logitsOf(t, d, s, whole, f, tokens)
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			a.m.ResetTraining(s)
			logits := a.backward(t, s, tokens, r)
			near.CheckL2(t, "logits", logits, wantLogits, 1e-5)
			for name, got := range a.grads(t, s) {
				if r == model.RecomputeNone {
					first[name] = got
					near.CheckL2(t, "gradient of "+name, got, want[name], adapterGradient)
				} else if !equalBits(got, first[name]) {
					t.Errorf("%v changes the gradient of %s", r, name)
				}
			}
		}
		near.CheckL2(t, "logits of a snapshot", logitsOf(t, d, s, a.m.Snapshot(s), f, tokens), wantLogits, 1e-5)
	})
}

// A student writes the rows of its next step beside the present one: its frozen form drops nothing while it trains.
func TestFrozenDropsNothing(t *testing.T) {
	f := readFixture(t, goldens+"/families/gemma3_text")
	d := testDevice(t)
	s := d.NewStream()
	a, tokens := newAdapted(t, f, d, s, .4), f.tokens(d, s)
	want := logitsOf(t, d, s, a.m.Frozen(), f, tokens)
	defer a.m.BeginDropping()()
	if !equalBits(logitsOf(t, d, s, a.m.Frozen(), f, tokens), want) {
		t.Error("values are dropped")
	}
	if equalBits(logitsOf(t, d, s, a.m, f, tokens), want) {
		t.Error("the control drops nothing")
	}
}

func logitsOf(t *testing.T, d device.Device, s device.Stream, m *model.Model, f *fixture, tokens model.Tokens) []float32 {
	t.Helper()
	x := s.Temp("hidden", device.Activations, d.Info().Activations, len(f.ids), f.config.Hidden)
	z := s.Temp("z", device.Logits, tensor.F32, len(f.ids), f.config.Vocab)
	defer s.Release(x, z)
	m.Hidden(s, x, tokens)
	m.Logits(s, z, x)
	return download(t, s, z)
}

// Before the first step B is zero, and a student with adapters gives the base's logits bit for bit: in training, with dropout
// too, those of the base in training, and in inference those of the base in inference. The two differ on a device whose
// products add to the residual stream, which only inference lets them do. So do the adapters that a seed gives, of which A
// is uniform.
func TestStepZeroIsTheBase(t *testing.T) {
	eachFamily(t, func(t *testing.T, f *fixture) {
		d := testDevice(t)
		s := d.NewStream()
		tokens := f.tokens(d, s)
		want := logitsOf(t, d, s, f.frozen(t, d), f, tokens)
		a := newAdapted(t, f, d, s, .3)
		a.m.Init(s, 11)
		for _, p := range a.m.Parts() {
			checkBeginning(t, p, download(t, s, p.Of(p.Param.Value)))
		}
		if got := logitsOf(t, d, s, a.m.Frozen(), f, tokens); !equalBits(got, want) {
			t.Error("inference differs from the base")
		}
		if !d.Info().Adds && !equalBits(trainingLogits(t, d, s, f.trainable(t, d, s), f, tokens), want) {
			t.Error("the base's training differs from its inference")
		}
		want = trainingLogits(t, d, s, f.trainable(t, d, s), f, tokens)
		if got := a.backward(t, s, tokens, model.RecomputeNone); !equalBits(got, want) {
			t.Error("training differs from the base's")
		}
		moved := false
		for name, g := range a.grads(t, s) {
			for _, v := range g {
				moved = moved || v != 0 && name[len(name)-len("B.weight"):] == "B.weight"
			}
		}
		if !moved {
			t.Error("no B has a gradient")
		}
	})
}

// trainingLogits returns the logits of a training step's forward.
func trainingLogits(t *testing.T, d device.Device, s device.Stream, m *model.Model, f *fixture, tokens model.Tokens) []float32 {
	t.Helper()
	v := m.Forward(s, tokens, model.RecomputeNone)
	defer v.ReleaseTo(s)
	z := s.Temp("z", device.Logits, tensor.F32, len(f.ids), f.config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, v.Hidden)
	return download(t, s, z)
}

// checkBeginning judges an A or a B before training: the former uniform in ±1/√in, the latter zero.
func checkBeginning(t *testing.T, p model.Part, v []float32) {
	t.Helper()
	var squares, most float64
	for _, x := range v {
		squares += float64(x) * float64(x)
		most = math.Max(most, math.Abs(float64(x)))
	}
	bound := 1 / math.Sqrt(float64(p.Shape[1]))
	if p.Init == arch.Zeros {
		bound = 0
	}
	if !(most <= bound) || bound > 0 && !(math.Abs(squares/float64(len(v))/(bound*bound/3)-1) < .35) {
		t.Errorf("%s: at most %g, mean square %g; the bound is %g", p.Name, most, squares/float64(len(v)), bound)
	}
}

// What is dropped is a function of the step and of positions: equal whatever is computed again and however a batch is cut, another in
// another step. The gradient is the slope of the loss with those values dropped.
func TestAdapterDropout(t *testing.T) {
	f := readFixture(t, goldens+"/families/gemma3_text")
	d := testDevice(t)
	s := d.NewStream()
	a, tokens := newAdapted(t, f, d, s, .4), f.tokens(d, s)
	run := func(step int, r model.Recompute, cut bool) map[string][]float32 {
		a.m.ResetTraining(s)
		a.m.Dropout(step)
		if !cut {
			a.backward(t, s, tokens, r)
			return a.grads(t, s)
		}
		for row := range tokens.Rows {
			part := tokens.Slice(row, row+1)
			v := a.m.Forward(s, part, r)
			z := s.Temp("z", device.Logits, tensor.F32, part.SeqLen, f.config.Vocab)
			a.m.TrainingLogits(s, z, v.Hidden, part.At)
			all := make([]float32, len(f.ids)*f.config.Vocab)
			copy(all[part.At*f.config.Vocab:], download(t, s, z))
			s.Upload(z, f.lossGrad(all)[part.At*f.config.Vocab:][:part.SeqLen*f.config.Vocab])
			dx := s.Temp("dx", device.Scratch, v.Hidden.DType, v.Hidden.Rows, v.Hidden.Cols)
			a.m.HeadBackward(s, dx, z, v.Hidden, part.At)
			a.m.Backward(s, v, dx)
			s.Release(dx, z)
			v.ReleaseTo(s)
		}
		return a.grads(t, s)
	}
	first := run(3, model.RecomputeNone, false)
	other := run(4, model.RecomputeNone, false)
	for name, want := range first {
		if equalBits(other[name], want) {
			t.Errorf("another step drops the same before %s", name)
		}
	}
	for _, r := range []model.Recompute{model.RecomputeNorms, model.RecomputeBlocks, model.RecomputeNone} {
		for name, got := range run(3, r, false) {
			if !equalBits(got, first[name]) {
				t.Errorf("%v changes the gradient of %s", r, name)
			}
		}
	}
	for name, got := range run(3, model.RecomputeBlocks, true) {
		near.CheckL2(t, "cut by rows: "+name, got, first[name], 1e-5)
	}
	a.slopes(t, s, tokens, first)
	contracttest.Cases(t, 1)
}

// slopes compares gradients with central differences of the loss along a random direction of each tensor.
func (a *adapted) slopes(t *testing.T, s device.Stream, tokens model.Tokens, grads map[string][]float32) {
	t.Helper()
	a.m.Dropout(3)
	rng := rand.New(rand.NewPCG(3, 4))
	for i, p := range a.m.Parts() {
		if i%5 != 0 {
			continue // a few of each kind
		}
		w, u := a.values[p.Name], make([]float64, p.Elements())
		var slope, norm float64
		for j := range u {
			u[j] = rng.NormFloat64()
			slope += u[j] * float64(grads[p.Name][j])
			norm += float64(grads[p.Name][j]) * float64(grads[p.Name][j])
		}
		at := func(h float64) float64 {
			moved := make([]float32, len(w))
			for j := range w {
				moved[j] = float32(float64(w[j]) + h*u[j])
			}
			s.Upload(p.Of(p.Param.Value), moved)
			a.m.Refresh(s)
			return a.f.loss(a.backward(t, s, tokens, model.RecomputeNone))
		}
		const h = 1.0 / 128
		got := (at(h) - at(-h)) / (2 * h)
		s.Upload(p.Of(p.Param.Value), w)
		near.Check(t, fmt.Sprintf("slope of %s", p.Name), []float64{got}, []float64{slope}, .02*math.Sqrt(norm)+2e-4)
	}
	a.m.Refresh(s)
}

// loss is the masked mean cross-entropy of logits.
func (f *fixture) loss(z []float32) (mean float64) {
	seq, vocab, n := len(f.ids)/f.rows, f.config.Vocab, 0.0
	for i := range f.ids {
		if i%seq == seq-1 || f.want["loss_mask"][i] == 0 {
			continue
		}
		sum := 0.0
		for _, x := range z[i*vocab : (i+1)*vocab] {
			sum += math.Exp(float64(x))
		}
		mean += math.Log(sum) - float64(z[i*vocab+int(f.ids[i+1])])
		n++
	}
	return mean / n
}
