//go:build gpu || emulate

package model_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/tensor"
)

// gated is a dense model with sinks, gates and the activation of gpt-oss, alone and together, one layer with a window.
func gated() arch.Config {
	c := arch.Config{
		Family: "llama", Hidden: 24, Vocab: 19, MaxPositions: 64, Eps: 1e-5, EmbedScale: 1, LogitScale: 1, BOS: -1, Pad: -1, DType: tensor.F32,
		Ropes: []arch.Rope{{Kind: arch.RopeDefault, Theta: 50, HeadDim: 8, Width: 4, Attention: 1}},
	}
	for i := range 3 {
		a := arch.Attention{HeadDim: 8, Heads: 4, KVHeads: 2, KVFrom: i, Scale: .4, QKVBias: true, OBias: true, Sinks: i != 1, Gate: i != 2, QKNorm: arch.HeadNorm}
		if i == 0 {
			a.Window = 5
		}
		c.Layers = append(c.Layers, arch.Layer{Attn: a, FFN: arch.FFN{Act: arch.OSS, Width: 20}, Pre: true, Residual: 1})
	}
	return c
}

// Sinks, gates and clamped units of a dense model on a GPU in float32: logits and gradients of float64, whatever is computed again,
// and the same with a cache in pieces.
func TestCUDAGates(t *testing.T) {
	contracttest.Cases(t, 1)
	onCUDA(t, cuda.F32)
	const seq = 17
	rng := rand.New(rand.NewPCG(5, 6))
	f := fixtureOf(gated(), rng, 2, seq)
	d := testDevice(t)
	s := d.NewStream()
	m, tokens := f.trainable(t, d, s), f.tokens(d, s)
	pass := f.net().Forward(f.ints(), f.rows)
	dz, raw := f.randomGrad(rng, pass)
	want := pass.Backward(dz)
	for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
		m.ResetTraining(s)
		v := m.Forward(s, tokens, r)
		near.CheckRel(t, fmt.Sprint(r, ": logits"), f.logitsOf(t, m, s, v.Hidden), pass.Logits.V, 1e-5)
		f.backwardFrom(m, s, v, raw)
		v.ReleaseTo(s)
		for _, p := range m.Parts() {
			near.CheckL2(t, fmt.Sprint(r, ": gradient of ", p.Name), download(t, s, p.Of(p.Param.Grad)), want[p.Name].V, 1e-4)
		}
	}
	frozen := f.frozen(t, d)
	x := s.Temp("hidden", device.Activations, tensor.F32, 1, f.config.Hidden)
	cache := frozen.NewCache(seq)
	frozen.Extend(s, x, cache, tokens.IDs.RowRange(0, 9))
	for cache.Len() < seq {
		at := cache.Len()
		frozen.Extend(s, x, cache, tokens.IDs.RowRange(at, at+1))
		near.CheckRel(t, fmt.Sprint("position ", at), f.logitsOf(t, frozen, s, x), pass.Logits.Row(at), 1e-5)
	}
}
