package model_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// TestMapsAgainstFloat64: the divergence of all attention maps from those of a model of the same description, and its gradients over
// every parameter, are those of float64, whatever is computed again: with keys that layers share, windows, sinks, gates and norms.
func TestMapsAgainstFloat64(t *testing.T) {
	const invN, weight = .1, 3.
	eachShape(t, func(t *testing.T, name string) {
		f := randomFamily(t, name, 2, 11)
		big := fixtureOf(f.config, rand.New(rand.NewPCG(77, 78)), 2, 11)
		big.ids = f.ids
		d := testDevice(t)
		s := d.NewStream()
		m, teacher := f.trainable(t, d, s), big.frozen(t, d)
		tokens := f.tokens(d, s)

		own, other := f.net().Forward(f.ints(), f.rows), big.net().Forward(f.ints(), f.rows)
		keep, grads, sum := model.Kept{Maps: map[int]device.AttnMap{}}, map[int]ref.MapGrads{}, 0.0
		for i, l := range f.config.Layers {
			if l.Linear() {
				continue
			}
			one, dq, dk, db := ref.AttentionDivergence(own.Map(i), other.Map(i), nil, weight, invN)
			sum += one
			grads[i] = ref.MapGrads{Q: dq, K: dk, Sinks: db}
			keep.Maps[i] = teacher.AttentionMap(i, len(f.ids), func(name string, d tensor.DType, rows, cols int) device.Tensor {
				return s.Temp(name, device.Activations, d, rows, cols)
			})
		}
		want := own.BackwardFrom(ref.New(len(f.ids), f.config.Vocab), nil, grads)
		x, plain := s.Temp("x", device.Activations, tensor.F32, len(f.ids), f.config.Hidden), s.Temp("plain", device.Activations, tensor.F32, len(f.ids), f.config.Hidden)
		teacher.HiddenKeeping(s, x, tokens, keep)
		teacher.Hidden(s, plain, tokens)
		if !equalBits(download(t, s, x), download(t, s, plain)) {
			t.Error("keeping maps changes hidden states")
		}
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			m.ResetTraining(s)
			s.SetScalars(device.Scalars{InvN: invN})
			v := m.Forward(s, tokens, r)
			v.AtAttention = func(layer int, own device.AttnMap, dq, dk device.Tensor) {
				s.CompareMaps(dq, dk, own, teacher.MapOf(layer, keep.Maps[layer], 0, tokens), device.Tensor{}, weight)
			}
			f.backwardFrom(m, s, v, make([]float32, len(f.ids)*f.config.Vocab))
			v.ReleaseTo(s)
			got, err := s.Wait(context.Background())
			must(t, err)
			near.Check(t, fmt.Sprint(r, ": divergence"), []float64{got.Sums[device.AttentionTransfer]}, []float64{sum}, 1e-5*(1+sum))
			for _, p := range m.Parts() {
				near.CheckL2(t, fmt.Sprint(r, ": gradient of ", p.Name), download(t, s, p.Of(p.Param.Grad)), want[p.Name].V, 1e-4)
			}
		}
	})
}
