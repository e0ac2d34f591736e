//go:build emulate || gpu

package cuda_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/quant"
	"apr/tensor"
)

// blocksOf is a random matrix in blocks.
type blocksOf struct {
	info tensor.Info
	data []byte
}

func (b *blocksOf) Info() tensor.Info { return b.info }
func (b *blocksOf) ReadRows(dst []byte, lo, hi int) error {
	row := len(b.data) / b.info.Shape[0]
	copy(dst, b.data[lo*row:hi*row])
	return nil
}

// decodeBench has a device with a stream and makes what layers need.
type decodeBench struct {
	t      *testing.T
	blocks tensor.DType
	rng    *rand.Rand
	d      *cuda.Device
	s      device.Stream
}

func (b *decodeBench) values(n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(scale * b.rng.NormFloat64())
	}
	return v
}

func (b *decodeBench) matrix(rows, cols int) device.Weight {
	b.t.Helper()
	info := tensor.Info{Name: "w", DType: b.blocks, Shape: []int{rows, cols}, Size: int64(rows) * b.blocks.RowBytes(cols)}
	data := make([]byte, info.Size)
	if err := quant.Quantize(data, b.values(rows*cols, 1/math.Sqrt(float64(cols))), b.blocks); err != nil {
		b.t.Fatal(err)
	}
	w, err := b.d.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: []device.Source{&blocksOf{info, data}}, Form: device.Form{Blocks: true},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

func (b *decodeBench) tensor(d tensor.DType, rows, cols int, scale, about float64) device.Tensor {
	v := b.values(rows*cols, scale)
	for i := range v {
		v[i] += float32(about)
	}
	t := b.d.Alloc("t", device.Batch, d, rows, cols)
	b.s.Upload(t, v)
	return t
}

const (
	variantHidden, variantInter, variantHeads, variantKV, variantDim = 256, 512, 4, 2, 64
	variantPosition, variantCapacity                                 = 37, 48
)

// layers are one with norms of q and k, one that rotates nothing, and one that rotates a part of a head, with a window in a ring.
func (b *decodeBench) layers() device.Decode {
	d := device.Decode{Position: variantPosition, Eps: 1e-5, Norm: b.tensor(tensor.F32, 1, variantHidden, .1, 1)}
	q, kv := variantHeads*variantDim, variantKV*variantDim
	ropes := []*device.Frequencies{{Inv: make([]float64, variantDim/2)}, nil, {Inv: make([]float64, variantDim/8), Factor: 1.2}}
	for i := range ropes[0].Inv {
		ropes[0].Inv[i] = math.Pow(1e4, -2*float64(i)/variantDim)
	}
	for i := range ropes[2].Inv { // of a quarter of a head
		ropes[2].Inv[i] = math.Pow(1e6, -8*float64(i)/variantDim) / 4
	}
	for i := range 3 {
		l := device.DecodeLayer{
			AttnNorm: b.tensor(tensor.F32, 1, variantHidden, .1, 1), FFNNorm: b.tensor(tensor.F32, 1, variantHidden, .1, 1),
			Heads: variantHeads, KVHeads: variantKV, HeadDim: variantDim, QKV: b.matrix(q+2*kv, variantHidden), Rope: ropes[i],
			Cache: b.tensor(tensor.BF16, variantCapacity, 2*kv, 1, 0), Row: variantPosition, Keys: variantPosition + 1, Scale: .2,
			O: b.matrix(variantHidden, q), GateUp: b.matrix(2*variantInter, variantHidden), Down: b.matrix(variantHidden, variantInter),
			Residual: .7, QBeta: .3 * float64(i), QLength: 5,
		}
		if i != 1 {
			l.QNorm, l.KNorm = b.tensor(tensor.F32, 1, variantDim, .5, 1), b.tensor(tensor.F32, 1, variantDim, .5, 1)
		}
		if i == 2 {
			l.Row, l.First, l.Keys = 9, 5, 20
		}
		d.Layers = append(d.Layers, l)
	}
	return d
}

// step computes a layer operation by operation, with a cache of its own.
func (b *decodeBench) step(x device.Tensor, l *device.DecodeLayer, d device.Decode, cache device.Tensor) {
	s, none := b.s, device.Tensor{}
	temp := func(cols int) device.Tensor { return s.Temp("t", device.Activations, tensor.BF16, 1, cols) }
	q, kv := variantHeads*variantDim, variantKV*variantDim
	h, qkv, o, gu, m := temp(variantHidden), temp(q+2*kv), temp(q), temp(2*variantInter), temp(variantInter)
	s.RMSNorm(h, none, none, x, none, l.AttnNorm, d.Eps)
	s.MatMul(qkv, h, l.QKV, none, false)
	for i, cols := range [][2]int{{0, q}, {q, q + kv}} {
		part := qkv.ColRange(cols[0], cols[1])
		if w := []device.Tensor{l.QNorm, l.KNorm}[i]; !w.IsZero() {
			s.HeadNorm(part, none, part, w, variantDim, d.Eps)
		}
		turn := device.Rotary{HeadDim: variantDim, Table: l.Rope, SeqLen: 1, Offset: d.Position}
		if l.Rope == nil {
			turn.Table = &device.Frequencies{Inv: []float64{0}} // which leaves a head as it is
		}
		if i == 0 {
			turn.QBeta, turn.QLength = l.QBeta, l.QLength
		}
		s.Rotate(part, turn)
	}
	s.Copy(cache.RowRange(l.Row, l.Row+1), qkv.ColRange(q, q+2*kv))
	seen := cache.RowRange(l.First, l.First+l.Keys)
	s.Attention(o, none, qkv.ColRange(0, q), seen.ColRange(0, kv), seen.ColRange(kv, 2*kv), device.Attn{
		Batch: 1, QLen: 1, KLen: l.Keys, QOffset: l.Keys - 1, KStride: l.Keys, Heads: variantHeads, KVHeads: variantKV, HeadDim: variantDim, Scale: l.Scale,
	})
	s.MatMul(h, o, l.O, none, false)
	s.Scale(h, h, l.Residual)
	s.Add(x, h)
	s.RMSNorm(h, none, none, x, none, l.FFNNorm, d.Eps)
	if l.Experts != nil {
		b.experts(h, l.Experts)
	} else {
		s.MatMulGLU(m, gu, h, l.GateUp, device.SiLU, true)
		s.MatMul(h, m, l.Down, none, false)
	}
	s.Scale(h, h, l.Residual)
	s.Add(x, h)
	s.Release(h, qkv, o, gu, m)
}

// TestDecodeVariants compares the one launch with the operations, and with what they give where a feature is left out: the launch must
// be nearer to the right ones by far.
func TestDecodeVariants(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, blocks := range []tensor.DType{tensor.Q8_0, tensor.Q4_K} { // of both kernels
		t.Run(blocks.String(), func(t *testing.T) { checkDecodeVariants(t, blocks) })
	}
}

func checkDecodeVariants(t *testing.T, blocks tensor.DType) {
	b := &decodeBench{t: t, blocks: blocks, rng: rand.New(rand.NewPCG(3, 4)), d: open(t, cuda.Options{})}
	defer b.d.Close()
	b.s = b.d.NewStream()
	d := b.layers()
	input := b.values(variantHidden, 1)
	byOperation := func(change func(l *device.DecodeLayer, i int)) []float32 {
		x, y := b.d.Alloc("x", device.Batch, tensor.BF16, 1, variantHidden), b.d.Alloc("y", device.Batch, tensor.BF16, 1, variantHidden)
		b.s.Upload(x, input)
		for i, l := range d.Layers {
			change(&l, i)
			cache := b.d.Alloc("cache", device.Batch, tensor.BF16, variantCapacity, l.Cache.Cols)
			b.s.Copy(cache, l.Cache)
			b.step(x, &l, d, cache)
		}
		b.s.RMSNorm(y, device.Tensor{}, device.Tensor{}, x, device.Tensor{}, d.Norm, d.Eps)
		return b.download(y)
	}
	right := byOperation(func(*device.DecodeLayer, int) {})
	wrong := map[string][]float32{}
	for name, change := range map[string]func(l *device.DecodeLayer, i int){
		"no norm of q":       func(l *device.DecodeLayer, i int) { l.QNorm = device.Tensor{} },
		"no norm of k":       func(l *device.DecodeLayer, i int) { l.KNorm = device.Tensor{} },
		"q's norm for k":     func(l *device.DecodeLayer, i int) { l.KNorm = l.QNorm },
		"all layers rotate":  func(l *device.DecodeLayer, i int) { l.Rope = d.Layers[0].Rope },
		"one key too many":   func(l *device.DecodeLayer, i int) { l.First, l.Keys = max(0, l.First-1), l.Keys+min(1, l.First) },
		"one key too few":    func(l *device.DecodeLayer, i int) { l.Keys -= i / 2 },
		"the row beside":     func(l *device.DecodeLayer, i int) { l.Row -= i / 2 },
		"no factor":          func(l *device.DecodeLayer, i int) { l.Residual = 1 },
		"no scale of q":      func(l *device.DecodeLayer, i int) { l.QBeta = 0 },
		"the scale of width": func(l *device.DecodeLayer, i int) { l.Scale = 0 },
	} {
		wrong[name] = byOperation(change)
	}
	x, y := b.d.Alloc("x", device.Batch, tensor.BF16, 1, variantHidden), b.d.Alloc("y", device.Batch, tensor.BF16, 1, variantHidden)
	b.s.Upload(x, input)
	before := b.d.Alloc("cache", device.Batch, tensor.BF16, variantCapacity, d.Layers[2].Cache.Cols)
	b.s.Copy(before, d.Layers[2].Cache)
	if err := b.s.(device.Decoder).Decode(y, x, d); err != nil {
		t.Fatal(err)
	}
	got := b.download(y)
	near := distance(got, right)
	if !(near < .02) {
		t.Errorf("the one launch differs from the operations by %.3g", near)
	}
	for name, y := range wrong {
		if far := distance(got, y); !(far > 2.5*near) {
			t.Errorf("%s: as near, %.3g, as what is right, %.3g", name, far, near)
		}
	}
	b.checkCache(before, d.Layers[2])
}

// checkCache fails unless the launch has written the position's row of the cache, and it alone.
func (b *decodeBench) checkCache(before device.Tensor, l device.DecodeLayer) {
	was, is := b.download(before), b.download(l.Cache)
	cols := l.Cache.Cols
	for r := range l.Cache.Rows {
		changed := distance(is[r*cols:(r+1)*cols], was[r*cols:(r+1)*cols]) > 0
		if changed != (r == l.Row) {
			b.t.Errorf("row %d of the cache changed: %v", r, changed)
		}
	}
}

func (b *decodeBench) download(y device.Tensor) []float32 {
	b.t.Helper()
	out := make([]float32, y.Rows*y.Cols)
	if err := b.s.Download(out, y); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.s.Wait(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	return out
}

// distance is that of two vectors by the length of the second.
func distance(x, y []float32) float64 {
	sum, size := 0.0, 0.0
	for i := range y {
		d := float64(x[i]) - float64(y[i])
		sum += d * d
		size += float64(y[i]) * float64(y[i])
	}
	return math.Sqrt(sum / size)
}
