package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// randomConfig returns a description of features that no family has together, each layer with its own.
func randomConfig(rng *rand.Rand) arch.Config {
	yes := func(percent int) bool { return rng.IntN(100) < percent }
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	factor := func(percent int) float64 {
		if yes(percent) {
			return .5 + rng.Float64()
		}
		return 1
	}
	c := arch.Config{
		Family: "llama", Hidden: 8 * (1 + rng.IntN(3)), Vocab: 11 + rng.IntN(20), MaxPositions: 64, Eps: 1e-5, NormOffset: float64(rng.IntN(2)),
		EmbedScale: factor(50), LogitScale: factor(50), Tied: yes(50), BOS: -1, Pad: -1, InitRange: .1, DType: tensor.F32,
	}
	if yes(40) {
		c.FinalCap = 2 + rng.Float64()
	}
	if yes(30) {
		c.PLE = arch.PLE{Width: 1 + rng.IntN(6), Vocab: c.Vocab}
	}
	for i := range 2 + rng.IntN(4) {
		d := pick(4, 6, 10)
		a := arch.Attention{HeadDim: d, KVHeads: 1 + rng.IntN(3), KVFrom: i, Rope: -1, Scale: (.3 + rng.Float64()) / float64(d), QKVBias: yes(40), OBias: yes(40)}
		a.Heads = a.KVHeads * (1 + rng.IntN(3))
		if yes(40) {
			a.Window = 1 + rng.IntN(12)
		}
		a.QKNorm = []arch.QKNorm{arch.NoQKNorm, arch.HeadNorm, arch.RowNorm}[rng.IntN(3)]
		a.VNorm, a.VIsK = yes(30), yes(30)
		if yes(30) {
			a.Cap = 1 + rng.Float64()
		}
		a.Sinks, a.Gate = yes(30), yes(30)
		if yes(80) {
			a.Rope = len(c.Ropes)
			c.Ropes = append(c.Ropes, arch.Rope{Kind: arch.RopeDefault, Theta: 10 + 90*rng.Float64(), HeadDim: d, Width: pick(2, 4, d), Attention: factor(30)})
			if yes(30) {
				a.QBeta, a.QLength = rng.Float64(), 1+rng.IntN(4)
			}
		}
		if from := rng.IntN(i + 1); from < i && c.OwnKV(from) && yes(60) { // the keys of an earlier layer
			o := c.Layers[from].Attn
			a.KVFrom, a.HeadDim, a.KVHeads, a.Heads, a.Window, a.Rope, a.VIsK = from, o.HeadDim, o.KVHeads, o.KVHeads*2, o.Window, o.Rope, false
		}
		l := arch.Layer{Attn: a, FFN: arch.FFN{Act: arch.SiLU, Width: 3 + rng.IntN(20)}, Residual: factor(40), OutScale: yes(30)}
		if yes(50) {
			l.FFN.Act = arch.GELUTanh
		}
		if yes(30) {
			l.FFN.Act = arch.OSS
		}
		if yes(25) {
			n := 1 + rng.IntN(6)
			l.FFN.Width, l.FFN.MoE = 0, arch.MoE{Experts: n, Active: 1 + rng.IntN(n), Width: 3 + rng.IntN(9), TopKFirst: yes(30), Renorm: yes(40), Bias: yes(30)}
		}
		norms := rng.IntN(3)
		l.Pre, l.Post = norms != 0, norms != 1
		c.Layers = append(c.Layers, l)
	}
	return c
}

// Any combination of features gives the logits and gradients of float64. A mistake shows as 1e-2 and more; what is allowed
// are the roundings of float32 where a combination is steep.
func TestRandomBlocks(t *testing.T) {
	const (
		logitsTol, gradientTol = 5e-5, 1e-3
		gradientFloor          = 1e-7 // of all gradients: some sums are 0 but for their rounding, as of a bias of all keys without a sink
	)
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			contracttest.Cases(t, 1)
			rng := rand.New(rand.NewPCG(seed, 77))
			f := fixtureOf(randomConfig(rng), rng, 2, 3+rng.IntN(12))
			if last := len(f.config.Layers) - 1; f.config.Layers[last].OutScale && seed%4 == 0 {
				clear(f.values[fmt.Sprintf("model.layers.%d.layer_scalar", last)]) // nothing of the layer is left
			}
			d := newCPU(t)
			s := d.NewStream()
			m := f.trainable(t, d, s)
			tokens := f.tokens(d, s)
			pass := f.net().Forward(f.ints(), f.rows)
			dz, raw := f.randomGrad(rng, pass)
			want := pass.Backward(dz)
			r := model.Recompute(rng.IntN(3))
			v := m.Forward(s, tokens, r)
			near.CheckRel(t, "logits", f.logitsOf(t, m, s, v.Hidden), pass.Logits.V, logitsTol)
			check := completes(t, m, s, v)
			f.backwardFrom(m, s, v, raw)
			check()
			v.ReleaseTo(s)
			all := 0.0
			for _, p := range m.Parts() {
				all = math.Hypot(all, length(want[p.Name].V))
			}
			for _, p := range m.Parts() {
				got, w := download(t, s, p.Of(p.Param.Grad)), want[p.Name].V
				for i := range got {
					got[i] -= float32(w[i])
				}
				if far := length(got); !(far <= gradientTol*length(w)+gradientFloor*all) {
					t.Errorf("%v: gradient of %s: off by %.2g of %.2g, of all %.2g", r, p.Name, far, length(w), all)
				}
			}
			frozen := f.frozen(t, d)
			n := tokens.SeqLen
			x := s.Temp("hidden", device.Activations, tensor.F32, 1, f.config.Hidden)
			cache := frozen.NewCache(n)
			frozen.Extend(s, x, cache, tokens.IDs.RowRange(0, n/2))
			frozen.Extend(s, x, cache, tokens.IDs.RowRange(n/2, n))
			near.CheckRel(t, "last of a row in pieces", f.logitsOf(t, frozen, s, x), pass.Logits.Row(n-1), logitsTol)
		})
	}
}

// length returns the L2 norm.
func length[T float32 | float64](v []T) (n float64) {
	for _, x := range v {
		n = math.Hypot(n, float64(x))
	}
	return n
}

// randomGrad returns a random gradient over the logits, and over the logits before their cap.
func (f *fixture) randomGrad(rng *rand.Rand, pass *ref.Pass) (dz ref.Mat, raw []float32) {
	dz = ref.New(pass.Logits.Rows, pass.Logits.Cols)
	raw = make([]float32, len(dz.V))
	for i := range dz.V {
		dz.V[i] = rng.NormFloat64()
		raw[i] = float32(dz.V[i])
		if c := f.config.FinalCap; c > 0 {
			raw[i] = float32(dz.V[i] * (1 - pass.Logits.V[i]/c*pass.Logits.V[i]/c))
		}
	}
	return dz, raw
}

// A model that lacks a feature runs no operation for it: those of Qwen2 are counted.
func TestOperationsOfQwen2(t *testing.T) {
	const layers = 3
	d := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16})
	s := d.NewStream()
	m := model.NewTrainable(d, arch.Qwen2(arch.Sizes{Hidden: 16, Layers: layers, Heads: 2, KVHeads: 1, HeadDim: 8, Width: 24, Vocab: 40, MaxPositions: 64, Theta: 1e4, Eps: 1e-6, BOS: -1, EOS: -1}))
	ids := d.Alloc("ids", device.Batch, tensor.I32, 12, 1)
	check := func(what string, want map[device.Op]int64) {
		t.Helper()
		got := map[device.Op]int64{}
		for _, c := range d.Record().Ops {
			got[c.Kind] += c.Times
		}
		d.ResetOps()
		for op := range device.NumOps {
			if got[op] != want[op] {
				t.Errorf("%s: %d × %v, want %d", what, got[op], op, want[op])
			}
		}
	}
	d.ResetOps()
	v := m.Forward(s, model.Tokens{IDs: ids, Rows: 2, SeqLen: 6}, model.RecomputeNone)
	forward := map[device.Op]int64{
		device.OpEmbed: 1, device.OpRMSNorm: 2*layers + 1, device.OpMatMul: 3 * layers, device.OpRotate: layers, device.OpAttention: layers, device.OpMatMulGLU: layers,
	}
	check("forward", forward)
	m.Backward(s, v, v.Hidden)
	check("backward", map[device.Op]int64{
		device.OpZero: 1, device.OpRMSNormBackward: 2*layers + 1, device.OpMatMulWeightGrad: 4 * layers, device.OpMatMulInputGrad: 4 * layers,
		device.OpGLUBackward: layers, device.OpAttentionBackward: layers, device.OpRotate: layers, device.OpEmbedBackward: 1,
	})
	m.Hidden(s, v.Hidden, model.Tokens{IDs: ids, Rows: 2, SeqLen: 6})
	check("inference", forward)
	forward[device.OpCopy] = layers
	m.Extend(s, v.Hidden.RowRange(0, 1), m.NewCache(8), ids.RowRange(0, 5))
	check("decoding", forward)
}
