package model_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

const testRows, testSeq = 2, 6

// functional is L = Σ c⊙logits with random c: linear in the logits, so that its gradient tests the model alone.
type functional struct {
	m      *model.Model
	s      device.Stream
	tokens model.Tokens
	ids    []int32
	c      []float32
	dz     device.Tensor // c on the device
}

func newFunctional(t *testing.T, c arch.Config) *functional {
	t.Helper()
	return newFunctionalOn(t, newCPU(t), c)
}

func newFunctionalOn(t *testing.T, d device.Device, c arch.Config) *functional {
	t.Helper()
	f := &functional{s: d.NewStream()}
	f.m = randomModel(t, d, f.s, c)
	f.tokens, f.ids = tokens(d, f.s, c.Vocab, testRows, testSeq)
	rng := rand.New(rand.NewPCG(9, 10))
	f.c = make([]float32, len(f.ids)*c.Vocab)
	for i := range f.c {
		f.c[i] = float32(rng.NormFloat64())
	}
	f.dz = d.Alloc("dz", device.Logits, tensor.F32, len(f.ids), c.Vocab)
	f.s.Upload(f.dz, f.c)
	return f
}

// logits computes the logits as training does.
func (f *functional) logits(t *testing.T, v *model.Saved) []float32 {
	t.Helper()
	z := f.s.Temp("z", device.Logits, tensor.F32, f.dz.Rows, f.dz.Cols)
	defer f.s.Release(z)
	f.m.Logits(f.s, z, v.Hidden)
	return download(t, f.s, z)
}

// value returns L at the present weights.
func (f *functional) value(t *testing.T) float64 {
	t.Helper()
	f.m.Refresh(f.s)
	v := f.m.Forward(f.s, f.tokens, model.RecomputeNone)
	defer v.ReleaseTo(f.s)
	sum := 0.0
	for i, z := range f.logits(t, v) {
		sum += float64(z) * float64(f.c[i])
	}
	return sum
}

// gradients computes ∂L/∂w of every tensor, twice over if twice is set, and returns the logits.
func (f *functional) gradients(t *testing.T, twice bool) []float32 {
	t.Helper()
	logits := f.backward(t, model.RecomputeNone)
	if twice {
		logits = f.backward(t, model.RecomputeNone)
	}
	return logits
}

// backward adds ∂L/∂w of every tensor and returns the logits.
func (f *functional) backward(t *testing.T, r model.Recompute) []float32 {
	t.Helper()
	v := f.m.Forward(f.s, f.tokens, r)
	defer v.ReleaseTo(f.s)
	head, param := f.m.Head()
	dx := f.s.Temp("dx", device.Scratch, tensor.F32, v.Hidden.Rows, v.Hidden.Cols)
	defer f.s.Release(dx)
	f.s.MatMulInputGrad(dx, f.dz, head, false)
	f.s.MatMulWeightGrad(param.Grad, device.Tensor{}, f.dz, v.Hidden)
	f.m.Backward(f.s, v, dx)
	return f.logits(t, v)
}

// reference returns the float64 model with the same weights.
func (f *functional) reference(t *testing.T) *ref.Net {
	t.Helper()
	r := &ref.Net{Arch: f.m.Config, Params: map[string]ref.Mat{}}
	for _, p := range f.m.Parts() {
		rows := 1
		if len(p.Shape) == 2 {
			rows = p.Shape[0]
		}
		r.Params[p.Name] = ref.Of(rows, p.Elements()/rows, download(t, f.s, p.Of(p.Param.Value)))
	}
	return r
}

// Logits and every tensor's gradient are those of the float64 model; gradients add up over backward passes.
func TestModelAgainstFloat64(t *testing.T) {
	for name, c := range shapes {
		for _, twice := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				f := newFunctional(t, c)
				got := f.gradients(t, twice)
				r := f.reference(t)
				ids := make([]int, len(f.ids))
				for i, id := range f.ids {
					ids[i] = int(id)
				}
				trace := r.Forward(ids, testRows)
				near.CheckRel(t, "logits", got, trace.Logits.V, 1e-5)
				dz := ref.Of(f.dz.Rows, f.dz.Cols, f.c)
				if twice {
					dz.Add(dz.Clone())
				}
				want := trace.Backward(dz)
				for _, p := range f.m.Parts() {
					near.CheckL2(t, "gradient of "+p.Name, download(t, f.s, p.Of(p.Param.Grad)), want[p.Name].V, 1e-5)
				}
			})
		}
	}
}

// The gradient is the slope of what the forward computes: along a random direction u of each tensor, with f(h) the
// functional at w+hu, g·u = (8(f(h)−f(−h)) − (f(2h)−f(−2h)))/12h + O(h⁴). That remainder is below 0.001‖g‖ here. The
// forward is float32: the functional, a sum of some 400 products, carries roundings of about 5e-6, which h divides.
func TestGradientIsTheSlope(t *testing.T) {
	const h, tol, rounding = 1.0 / 512, 2e-3, 1e-5
	for name, c := range shapes {
		t.Run(name, func(t *testing.T) {
			f := newFunctional(t, c)
			f.gradients(t, false)
			rng := rand.New(rand.NewPCG(11, 12))
			for _, p := range f.m.Parts() {
				value, grad := p.Of(p.Param.Value), download(t, f.s, p.Of(p.Param.Grad))
				w := download(t, f.s, value)
				u := make([]float64, len(w))
				var slope, norm float64
				for i := range u {
					u[i] = rng.NormFloat64()
					slope += u[i] * float64(grad[i])
					norm += float64(grad[i]) * float64(grad[i])
				}
				at := func(step float64) float64 {
					moved := make([]float32, len(w))
					for i := range w {
						moved[i] = float32(float64(w[i]) + step*u[i])
					}
					f.s.Upload(value, moved)
					return f.value(t)
				}
				got := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
				f.s.Upload(value, w)
				near.Check(t, "slope of "+p.Name, []float64{got}, []float64{slope}, tol*math.Sqrt(norm)+rounding/h)
			}
		})
	}
}

// Weights that were saved, and loaded frozen, give the hidden states of the trainable model they came from, and so do
// its frozen view and its snapshot. When the model is trained on, the view follows and the snapshot does not.
func TestFrozenModels(t *testing.T) {
	for name, c := range shapes {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := newFunctional(t, c)
			v := f.m.Forward(f.s, f.tokens, model.RecomputeNone)
			want := download(t, f.s, v.Hidden)
			v.ReleaseTo(f.s)
			folder := filepath.Join(t.TempDir(), "m")
			_, err := modelfile.SaveHF(folder, c, nil, f.m.Sources(f.s, tensor.F32), tensor.F32, false)
			must(t, err)
			loaded, err := model.LoadFrozen(f.m.Device(), open(t, folder), device.TeacherWeights)
			must(t, err)
			again := model.NewTrainable(f.m.Device(), c)
			must(t, again.LoadWeights(f.s, open(t, folder)))
			snapshot, view := f.m.Snapshot(f.s), f.m.Frozen()
			for what, m := range map[string]*model.Model{"loaded": loaded, "trainable": again, "snapshot": snapshot, "view": view} {
				near.Check(t, what, f.hidden(t, m), want, 1e-5)
				near.Check(t, what+": logits", f.frozenLogits(t, m), f.frozenLogits(t, f.m), 1e-4)
			}
			if loaded.Params() != nil || view.Params() != nil || snapshot.Parts() != nil {
				t.Error("a frozen model has parameters to train")
			}
			f.m.Init(f.s, 3)
			near.Check(t, "snapshot of before", f.hidden(t, snapshot), want, 1e-5)
			near.Check(t, "view of now", f.hidden(t, view), f.hidden(t, f.m), 0)
			if near.Abs("", f.hidden(t, view), want, 1e-3) == nil {
				t.Error("the view shows the weights of before")
			}
		})
	}
}

// hidden returns the final hidden states that m computes without keeping anything.
func (f *functional) hidden(t *testing.T, m *model.Model) []float32 {
	t.Helper()
	x := f.s.Temp("hidden", device.Activations, tensor.F32, f.dz.Rows, m.Config.Hidden)
	defer f.s.Release(x)
	m.Hidden(f.s, x, f.tokens)
	return download(t, f.s, x)
}

func (f *functional) frozenLogits(t *testing.T, m *model.Model) []float32 {
	t.Helper()
	x := f.s.Temp("hidden", device.Activations, tensor.F32, f.dz.Rows, m.Config.Hidden)
	z := f.s.Temp("z", device.Logits, tensor.F32, f.dz.Rows, m.Config.Vocab)
	defer f.s.Release(z, x)
	m.Hidden(f.s, x, f.tokens)
	m.Logits(f.s, z, x)
	return download(t, f.s, z)
}
