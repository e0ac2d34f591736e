//go:build emulate || gpu

package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/quant"
	"apr/tensor"
)

// few is a layer of experts for few tokens.
type few struct {
	d              *cuda.Device
	s              *cuda.Stream
	rng            *rand.Rand
	experts, f, h  int
	tokens, active int
	gate, up, down tensor.DType
	biases         bool
}

func (b *few) values(rows, cols int, scale float64) device.Tensor {
	return b.typed(tensor.F32, rows, cols, scale)
}

func (b *few) typed(d tensor.DType, rows, cols int, scale float64) device.Tensor {
	t := b.d.Alloc("values", device.Activations, d, rows, cols)
	v := make([]float32, rows*cols)
	for i := range v {
		v[i] = float32(b.rng.NormFloat64() * scale)
	}
	b.s.Upload(t, v)
	return t
}

// stack makes the matrices [experts, out, in] in a type.
func (b *few) stack(t *testing.T, d tensor.DType, out, in int) device.Weight {
	t.Helper()
	v := make([]float32, b.experts*out*in)
	for i := range v {
		v[i] = float32(b.rng.NormFloat64() / 8)
	}
	s := stacked{tensor.Info{Name: "w", DType: d, Shape: []int{b.experts, out, in}}, make([]byte, int(d.RowBytes(len(v))))}
	s.info.Size = int64(len(s.bytes))
	if d.IsQuantized() {
		if err := quant.Quantize(s.bytes, v, d); err != nil {
			t.Fatal(err)
		}
	} else {
		tensor.Narrow(s.bytes, v, d)
	}
	w, err := b.d.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: []device.Source{s}, Form: device.Form{Blocks: true}, Experts: b.experts,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (b *few) bias(cols int) device.Tensor {
	if !b.biases {
		return device.Tensor{}
	}
	return b.values(b.experts, cols, 1)
}

// TestMix: the experts of few tokens by two kernels have the bits of the operations that they replace.
func TestMix(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for i, b := range []few{
		{tokens: 1, experts: 8, active: 2, f: 256, h: 512, gate: tensor.Q4_K, up: tensor.Q4_K, down: tensor.Q6_K},
		{tokens: 1, experts: 40, active: 8, f: 72, h: 136, gate: tensor.BF16, up: tensor.BF16, down: tensor.BF16},
		{tokens: 3, experts: 5, active: 3, f: 96, h: 64, gate: tensor.MXFP4, up: tensor.MXFP4, down: tensor.MXFP4, biases: true},
		{tokens: 8, experts: 4, active: 4, f: 256, h: 288, gate: tensor.Q8_0, up: tensor.Q8_0, down: tensor.Q5_K, biases: true},
		{tokens: 2, experts: 3, active: 1, f: 256, h: 256, gate: tensor.IQ4_NL, up: tensor.Q5_0, down: tensor.Q4_0},
		{tokens: 2, experts: 3, active: 2, f: 512, h: 2304, gate: tensor.Q6_K, up: tensor.Q6_K, down: tensor.Q4_K, biases: true},
		{tokens: 1, experts: 6, active: 4, f: 4192, h: 72, gate: tensor.BF16, up: tensor.BF16, down: tensor.MXFP4, biases: true},
		{tokens: 1, experts: 6, active: 4, f: 40, h: 4192, gate: tensor.MXFP4, up: tensor.MXFP4, down: tensor.BF16, biases: true},
	} {
		for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS} {
			t.Run(fmt.Sprintf("%d %s", i, act), func(t *testing.T) {
				b.d, b.s, b.rng = d, d.NewStream().(*cuda.Stream), rand.New(rand.NewPCG(3, uint64(i)))
				b.compare(t, act)
			})
		}
	}
}

func (b *few) compare(t *testing.T, act device.Activation) {
	t.Helper()
	s, slots := b.s, b.tokens*b.active
	ints := func(n int) device.Tensor { return b.d.Alloc("slots", device.Batch, tensor.I32, n, 1) }
	r := device.Routing{Experts: b.experts, Active: b.active, Renorm: true, Chosen: ints(slots), Slots: ints(slots), Rows: ints(slots), Starts: ints(b.experts + 1)}
	e := device.ExpertNets{
		Gate: b.stack(t, b.gate, b.f, b.h), Up: b.stack(t, b.up, b.f, b.h), Down: b.stack(t, b.down, b.h, b.f),
		GateBias: b.bias(b.f), UpBias: b.bias(b.f), DownBias: b.bias(b.h), Act: act,
	}
	acts := func(rows, cols int) device.Tensor {
		return b.d.Alloc("acts", device.Activations, tensor.BF16, rows, cols)
	}
	y, w := b.typed(tensor.BF16, b.tokens, b.h, 2), b.values(b.tokens, b.active, 1)
	s.Route(w, b.values(b.tokens, b.experts, 1), device.Tensor{}, r)
	xs, gateUp, glu, ys, want := acts(slots, b.h), acts(slots, 2*b.f), acts(slots, b.f), acts(slots, b.h), acts(b.tokens, b.h)
	s.Gather(xs, y, r.Rows)
	s.GroupedMatMul(gateUp.ColRange(0, b.f), xs, e.Gate, e.GateBias, r)
	s.GroupedMatMul(gateUp.ColRange(b.f, 2*b.f), xs, e.Up, e.UpBias, r)
	s.GLU(glu, gateUp, act)
	s.GroupedMatMul(ys, glu, e.Down, e.DownBias, r)
	s.Combine(want, ys, w, r, false)
	got, unit := acts(b.tokens, b.h), acts(slots, b.f)
	sum, wantSum := acts(b.tokens, b.h), b.typed(tensor.BF16, b.tokens, b.h, 1)
	s.Copy(sum, wantSum)
	s.Combine(wantSum, ys, w, r, true)
	if _, err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := b.d.Stats().Launches
	if !s.MixExperts(got, unit, y, w, e, r, false) {
		t.Fatal("the device has no operation for them")
	}
	s.MixExperts(sum, unit, y, w, e, r, true)
	if _, err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.d.Stats().Launches - before; n != 4 {
		t.Errorf("%d launches", n)
	}
	for _, c := range []struct {
		name      string
		got, want device.Tensor
	}{{"gated unit", unit, glu}, {"sum", got, want}, {"sum that is added", sum, wantSum}} {
		x, z := make([]float32, c.got.Rows*c.got.Cols), make([]float32, c.got.Rows*c.got.Cols)
		if err := s.Download(x, c.got); err != nil {
			t.Fatal(err)
		}
		if err := s.Download(z, c.want); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x, z) || !slices.ContainsFunc(x, func(v float32) bool { return v != 0 }) {
			t.Errorf("the %s differs from that of single operations", c.name)
		}
	}
}
