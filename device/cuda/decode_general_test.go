//go:build emulate || gpu

package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

const generalHidden, generalExtra = 256, 256

// norm returns weights of a norm of so many columns.
func (b *decodeBench) norm(cols int) device.Tensor { return b.tensor(tensor.F32, 1, cols, .4, 1) }

// generalLayer returns a layer whose position is the last of a cache; features beyond shapes are the caller's.
func (b *decodeBench) generalLayer(heads, kv, d, inter, qkvRows, position int) device.DecodeLayer {
	return device.DecodeLayer{
		Heads: heads, KVHeads: kv, HeadDim: d, QKV: b.matrix(qkvRows, generalHidden), O: b.matrix(generalHidden, heads*d),
		GateUp: b.matrix(2*inter, generalHidden), Down: b.matrix(generalHidden, inter),
		Cache: b.tensor(tensor.BF16, position+3, 2*kv*d, 1, 0), Row: position, Keys: position + 1,
	}
}

// turning returns frequencies of so many pairs.
func turning(pairs int, base, factor float64) *device.Frequencies {
	f := &device.Frequencies{Inv: make([]float64, pairs), Factor: factor}
	for i := range f.Inv {
		f.Inv[i] = math.Pow(base, -float64(i)/float64(pairs))
	}
	return f
}

// generalLayers are four layers of different shapes that have, together, every feature: norms of rows and none before branches; a window
// in a ring, soft-caps, GELU; heads of 512 columns, values that are keys, per-layer embeddings; a cache of another layer.
func (b *decodeBench) generalLayers(position int) device.Decode {
	extra := func() *device.DecodePerLayer {
		return &device.DecodePerLayer{
			Gate: b.matrix(generalExtra, generalHidden), Project: b.matrix(generalHidden, generalExtra),
			Input: b.tensor(tensor.BF16, 1, generalExtra, 1, 0), Norm: b.norm(generalHidden),
		}
	}
	rows := b.generalLayer(4, 2, 64, 512, 512, position)
	rows.AttnPost, rows.FFNPost, rows.QNorm, rows.KNorm = b.norm(generalHidden), b.norm(generalHidden), b.norm(256), b.norm(128)
	rows.Rope, rows.QBeta, rows.QLength, rows.Scale = turning(32, 1e4, 0), .3, 5, .3
	rows.Bias = b.tensor(tensor.F32, 1, 512, .5, 0)

	window := b.generalLayer(4, 1, 128, 768, 768, 45)
	window.AttnNorm, window.AttnPost, window.FFNNorm, window.FFNPost = b.norm(generalHidden), b.norm(generalHidden), b.norm(generalHidden), b.norm(generalHidden)
	window.QNorm, window.KNorm, window.Rope = b.norm(128), b.norm(128), turning(64, 1e2, 1.1)
	window.Act, window.Cap, window.Residual, window.Scale = device.GELUTanh, 3, .7, .2
	window.Row, window.First, window.Keys = 9, 5, 20

	wide := b.generalLayer(2, 1, 512, 512, 1536, position)
	wide.AttnNorm = b.tensor(tensor.F32, 1, generalHidden, .4, 3) // what is not normalised is large
	wide.FFNNorm, wide.VNorm, wide.VIsK, wide.PerLayer = b.norm(generalHidden), true, true, extra()
	wide.KNorm, wide.Rope, wide.OutScale, wide.OBias = b.norm(512), turning(64, 1e3, 0), .6, b.tensor(tensor.F32, 1, generalHidden, .5, 0)

	shared := b.generalLayer(4, 1, 512, 1024, 2048, position)
	shared.AttnNorm, shared.FFNNorm, shared.FFNPost, shared.PerLayer = b.norm(generalHidden), b.norm(generalHidden), b.norm(generalHidden), extra()
	shared.QNorm, shared.Rope, shared.Shared, shared.Cache = b.norm(512), turning(256, 1e4, 0), true, wide.Cache
	shared.Act, shared.Cap = device.GELUTanh, 4
	return device.Decode{Position: position, Eps: 1e-5, Norm: b.norm(generalHidden), Layers: []device.DecodeLayer{rows, window, wide, shared}}
}

// normed returns the norm of x as a temp, or x.
func (b *decodeBench) normed(x, w device.Tensor, eps float64) device.Tensor {
	if w.IsZero() {
		return x
	}
	none := device.Tensor{}
	y := b.s.Temp("y", device.Activations, tensor.BF16, 1, x.Cols)
	b.s.RMSNorm(y, none, none, x, none, w, eps)
	return y
}

// added adds a branch to x: x += Residual·norm(z, w).
func (b *decodeBench) added(x, z, w device.Tensor, residual, eps float64) {
	z = b.normed(z, w, eps)
	if residual != 0 {
		b.s.Scale(z, z, residual)
	}
	b.s.Add(x, z)
}

// operations computes a layer operation by operation, with a cache of its own. Temps live until the stream's end: the model is small.
func (b *decodeBench) operations(x device.Tensor, l *device.DecodeLayer, d device.Decode, cache device.Tensor) {
	s, none := b.s, device.Tensor{}
	temp := func(cols int) device.Tensor { return s.Temp("t", device.Activations, tensor.BF16, 1, cols) }
	q, kv := l.Heads*l.HeadDim, l.KVHeads*l.HeadDim
	qkv := temp(l.QKV.Rows())
	s.MatMul(qkv, b.normed(x, l.AttnNorm, d.Eps), l.QKV, l.Bias, false)
	turned := qkv.ColRange(0, q)
	headNorm := func(y, x, w device.Tensor) {
		if !w.IsZero() {
			s.HeadNorm(y, none, x, w, w.Cols, d.Eps)
		}
	}
	turn := device.Rotary{HeadDim: l.HeadDim, Table: l.Rope, SeqLen: 1, Offset: d.Position}
	if !l.Shared {
		k, v := qkv.ColRange(q, q+kv), temp(kv)
		if l.VIsK {
			s.Copy(v, k)
		} else {
			s.Copy(v, qkv.ColRange(q+kv, q+2*kv))
		}
		if l.VNorm {
			s.HeadNorm(v, none, v, none, l.HeadDim, d.Eps)
		}
		headNorm(k, k, l.KNorm)
		s.Rotate(k, turn)
		s.Copy(cache.RowRange(l.Row, l.Row+1).ColRange(0, kv), k)
		s.Copy(cache.RowRange(l.Row, l.Row+1).ColRange(kv, 2*kv), v)
	}
	headNorm(turned, turned, l.QNorm)
	turn.QBeta, turn.QLength = l.QBeta, l.QLength
	s.Rotate(turned, turn)
	o, z, seen := temp(q), temp(generalHidden), cache.RowRange(l.First, l.First+l.Keys)
	s.Attention(o, none, turned, seen.ColRange(0, kv), seen.ColRange(kv, 2*kv), device.Attn{
		Batch: 1, QLen: 1, KLen: l.Keys, QOffset: l.Keys - 1, KStride: l.Keys, Heads: l.Heads, KVHeads: l.KVHeads, HeadDim: l.HeadDim, Scale: l.Scale, Cap: l.Cap,
	})
	s.MatMul(z, o, l.O, l.OBias, false)
	b.added(x, z, l.AttnPost, l.Residual, d.Eps)
	inter := l.Down.Cols()
	m, gu := temp(inter), temp(2*inter)
	s.MatMulGLU(m, gu, b.normed(x, l.FFNNorm, d.Eps), l.GateUp, l.Act, true)
	s.MatMul(z, m, l.Down, none, false)
	b.added(x, z, l.FFNPost, l.Residual, d.Eps)
	if p := l.PerLayer; p != nil {
		m, gu := temp(generalExtra), temp(2*generalExtra)
		s.MatMul(gu.ColRange(0, generalExtra), x, p.Gate, none, false)
		s.Copy(gu.ColRange(generalExtra, 2*generalExtra), p.Input)
		s.GLU(m, gu, device.GELUTanh)
		s.MatMul(z, m, p.Project, none, false)
		b.added(x, z, p.Norm, 0, d.Eps)
	}
	if l.OutScale != 0 {
		s.Scale(x, x, l.OutScale)
	}
}

// generalMistakes are what a kernel might compute instead, by the layers that show it.
var generalMistakes = map[string]func(l *device.DecodeLayer, i int, all []device.DecodeLayer){
	"no norm after attention": func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.AttnPost = device.Tensor{} },
	"no norm after network":   func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.FFNPost = device.Tensor{} },
	"the other norm behind":   func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.FFNPost = l.AttnPost },
	"no norm before":          func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.AttnNorm = device.Tensor{} },
	"the other norm before":   func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.FFNNorm = l.AttnNorm },
	"a norm before that is none": func(l *device.DecodeLayer, i int, all []device.DecodeLayer) {
		if i == 0 {
			l.AttnNorm = all[1].AttnNorm
		}
	},
	"norms of heads for rows": func(l *device.DecodeLayer, i int, _ []device.DecodeLayer) {
		if i == 0 {
			l.QNorm, l.KNorm = l.QNorm.ColRange(0, l.HeadDim), l.KNorm.ColRange(0, l.HeadDim)
		}
	},
	"no norm of q":      func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.QNorm = device.Tensor{} },
	"no norm of k":      func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.KNorm = device.Tensor{} },
	"no norm of v":      func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.VNorm = false },
	"no bias":           func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.Bias = device.Tensor{} },
	"no bias of o":      func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.OBias = device.Tensor{} },
	"no cap":            func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.Cap = 0 },
	"the other scale":   func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.Scale = 0 },
	"SiLU":              func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.Act = device.SiLU },
	"GELU":              func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.Act = device.GELUTanh },
	"no factor":         func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.Residual = 0 },
	"no factor behind":  func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.OutScale = 0 },
	"no scale of q":     func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.QBeta = 0 },
	"no per-layer part": func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) { l.PerLayer = nil },
	"one per-layer input": func(l *device.DecodeLayer, i int, all []device.DecodeLayer) {
		if i == 3 {
			p := *l.PerLayer
			p.Input = all[2].PerLayer.Input
			l.PerLayer = &p
		}
	},
	"one key too many": func(l *device.DecodeLayer, _ int, _ []device.DecodeLayer) {
		l.First, l.Keys = max(0, l.First-1), l.Keys+min(1, l.First)
	},
	"one key too few": func(l *device.DecodeLayer, i int, _ []device.DecodeLayer) {
		if i == 1 {
			l.First, l.Keys = l.First+1, l.Keys-1
		}
	},
	"the table of others": func(l *device.DecodeLayer, i int, all []device.DecodeLayer) {
		if i == 1 {
			l.Rope = turning(64, 1e4, 0)
		}
	},
	"a whole head turns": func(l *device.DecodeLayer, i int, all []device.DecodeLayer) {
		if i == 2 {
			l.Rope = all[3].Rope
		}
	},
	"the position is not in the shared cache": func(l *device.DecodeLayer, i int, _ []device.DecodeLayer) {
		if i == 3 {
			l.Row, l.Keys = l.Row-1, l.Keys-1
		}
	},
}

// TestDecodeGeneral compares the one launch with the operations, and with what they give where something is computed otherwise: the launch
// must be nearer to the right ones by far. After 1600 positions keys are cut into shares.
func TestDecodeGeneral(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, c := range []struct {
		blocks   tensor.DType
		position int
	}{{tensor.Q8_0, 11}, {tensor.Q4_K, 11}, {tensor.Q4_0, 1600}} {
		t.Run(fmt.Sprintf("%v after %d", c.blocks, c.position), func(t *testing.T) { checkDecodeGeneral(t, c.blocks, c.position) })
	}
}

func checkDecodeGeneral(t *testing.T, blocks tensor.DType, position int) {
	b := &decodeBench{t: t, blocks: blocks, rng: rand.New(rand.NewPCG(5, 6)), d: open(t, cuda.Options{})}
	defer b.d.Close()
	b.s = b.d.NewStream()
	d := b.generalLayers(position)
	input := b.values(generalHidden, 1)
	byOperation := func(change func(l *device.DecodeLayer, i int, all []device.DecodeLayer)) []float32 {
		x, y := b.d.Alloc("x", device.Batch, tensor.BF16, 1, generalHidden), b.d.Alloc("y", device.Batch, tensor.BF16, 1, generalHidden)
		b.s.Upload(x, input)
		caches := map[device.Buffer]device.Tensor{}
		for i, l := range d.Layers {
			change(&l, i, d.Layers)
			if caches[l.Cache.Buf].IsZero() {
				cache := b.d.Alloc("cache", device.Batch, tensor.BF16, l.Cache.Rows, l.Cache.Cols)
				b.s.Copy(cache, l.Cache)
				caches[l.Cache.Buf] = cache
			}
			b.operations(x, &l, d, caches[l.Cache.Buf])
		}
		b.s.RMSNorm(y, device.Tensor{}, device.Tensor{}, x, device.Tensor{}, d.Norm, d.Eps)
		return b.download(y)
	}
	right := byOperation(func(*device.DecodeLayer, int, []device.DecodeLayer) {})
	wrong := map[string][]float32{}
	for name, change := range generalMistakes {
		if position < 100 { // of many keys one more or less is nothing
			wrong[name] = byOperation(change)
		}
	}
	before := map[int]device.Tensor{}
	for i := range 3 {
		before[i] = b.d.Alloc("cache", device.Batch, tensor.BF16, d.Layers[i].Cache.Rows, d.Layers[i].Cache.Cols)
		b.s.Copy(before[i], d.Layers[i].Cache)
	}
	x, y := b.d.Alloc("x", device.Batch, tensor.BF16, 1, generalHidden), b.d.Alloc("y", device.Batch, tensor.BF16, 1, generalHidden)
	b.s.Upload(x, input)
	if err := b.s.(device.Decoder).Decode(y, x, d); err != nil {
		t.Fatal(err)
	}
	got := b.download(y)
	near := distance(got, right)
	t.Logf("the one launch differs from the operations by %.4f", near)
	if !(near < .02) {
		t.Errorf("the one launch differs from the operations by %.3g", near)
	}
	for name, y := range wrong {
		if far := distance(got, y); !(far > 2.5*near) {
			t.Errorf("%s: as near, %.3g, as what is right, %.3g", name, far, near)
		}
	}
	for i, was := range before {
		b.checkCache(was, d.Layers[i])
	}
}
