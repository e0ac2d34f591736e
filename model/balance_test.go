package model_test

import (
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// withExperts are random families whose layers have experts.
var withExperts = []string{"qwen 3 with experts", "gemma 4 with experts"}

// TestBalance: the gradient of the load-balance loss is that of float64, whatever is kept for the backward, and comes to everything
// below a router.
func TestBalance(t *testing.T) {
	for _, name := range withExperts {
		t.Run(name, func(t *testing.T) {
			f := randomFamily(t, name, 2, 19)
			const weight = .25
			net := f.net()
			net.Balance = weight * float64(len(f.ids))
			want := net.Forward(f.ints(), f.rows).Backward(ref.New(len(f.ids), f.config.Vocab))
			for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
				d := testDevice(t)
				s := d.NewStream()
				m := f.trainable(t, d, s)
				must(t, m.Balance(weight))
				v := m.Forward(s, f.tokens(d, s), r)
				f.backwardFrom(m, s, v, make([]float32, len(f.ids)*f.config.Vocab))
				v.ReleaseTo(s)
				moved := 0
				for _, p := range m.Parts() {
					got, exact := download(t, s, p.Of(p.Param.Grad)), want[p.Name]
					if slices.Max(exact.V) == 0 && slices.Min(exact.V) == 0 {
						continue
					}
					moved++
					if d := apart(p.Name, got, exact.V); !(d <= 2e-4) {
						t.Errorf("%v: gradient of %s is %g away from float64", r, p.Name, d)
					}
				}
				if moved < 8 {
					t.Errorf("%v: %d tensors have a gradient", r, moved)
				}
			}
		})
	}
}

// TestBalanceDifferences: the gradient in float64 is the slope of the loss, where no choice changes.
func TestBalanceDifferences(t *testing.T) {
	for _, name := range withExperts {
		t.Run(name, func(t *testing.T) {
			f := randomFamily(t, name, 2, 7)
			net := f.net()
			net.Balance = 1
			ids := f.ints()
			grads := net.Forward(ids, f.rows).Backward(ref.New(len(ids), f.config.Vocab))
			checked := 0
			for name, p := range net.Params {
				if grads[name].V == nil {
					continue
				}
				const step = 1e-6
				at := len(p.V) / 3
				was := p.V[at]
				p.V[at] = was + step
				up := net.Forward(ids, f.rows).Aux()
				p.V[at] = was - step
				down := net.Forward(ids, f.rows).Aux()
				p.V[at] = was
				slope, g := (up-down)/(2*step), grads[name].V[at]
				if !(math.Abs(slope-g) <= 1e-7+1e-4*math.Abs(g)) {
					t.Errorf("%s[%d]: slope %g, gradient %g", name, at, slope, g)
				}
				if g != 0 {
					checked++
				}
			}
			if checked < 8 {
				t.Errorf("%d slopes that are not 0", checked)
			}
		})
	}
}

// TestBalanceRefuses: a model without experts has no load to balance.
func TestBalanceRefuses(t *testing.T) {
	f := randomFamily(t, "qwen 3", 1, 4)
	m := model.NewTrainable(newCPU(t), f.config)
	if err := m.Balance(.1); fault.KindOf(err) != fault.Usage {
		t.Errorf("got %v", err)
	}
	if err := m.Balance(0); err != nil {
		t.Error(err)
	}
}

// TestHiddenCounting: what is counted is the choices of float64, layer by layer, and hidden states are the same bits.
func TestHiddenCounting(t *testing.T) {
	for _, name := range withExperts {
		f := randomFamily(t, name, 2, 19)
		d := testDevice(t)
		s := d.NewStream()
		m := f.frozen(t, d)
		layers, most := m.Mixtures()
		act := d.Info().Activations
		x, y := d.Alloc("x", device.Activations, act, len(f.ids), f.config.Hidden), d.Alloc("y", device.Activations, act, len(f.ids), f.config.Hidden)
		counts := d.Alloc("counts", device.Batch, tensor.F32, len(layers), most)
		s.Zero(counts)
		m.Hidden(s, x, f.tokens(d, s))
		for range 2 {
			m.HiddenCounting(s, y, f.tokens(d, s), counts)
		}
		if !equalBits(download(t, s, x), download(t, s, y)) {
			t.Errorf("%s: counting changes hidden states", name)
		}
		got, row := download(t, s, counts), 0
		f.net().Forward(f.ints(), f.rows).Routers(func(layer int, z ref.Mat, chosen []int) {
			want := make([]float32, most)
			for _, e := range chosen {
				want[e] += 2
			}
			if layers[row] != layer || !slices.Equal(got[row*most:(row+1)*most], want) {
				t.Errorf("%s: layer %d: %v, want %v", name, layer, got[row*most:(row+1)*most], want)
			}
			row++
		})
	}
}
