//go:build emulate || gpu

package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/quant"
	"apr/tensor"
)

// experts writes what the chosen experts make of h over it, operation by operation.
func (b *decodeBench) experts(h device.Tensor, e *device.DecodeExperts) {
	s, none := b.s, device.Tensor{}
	temp := func(d tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("t", device.Activations, d, rows, cols)
	}
	ids := func(n int) device.Tensor { return temp(tensor.I32, n, 1) }
	f := e.Down.Cols()
	z, w := temp(tensor.F32, 1, e.Count), temp(tensor.F32, 1, e.Active)
	xs, gu, m := temp(tensor.BF16, e.Active, h.Cols), temp(tensor.BF16, e.Active, 2*f), temp(tensor.BF16, e.Active, f)
	r := device.Routing{
		Experts: e.Count, Active: e.Active, Renorm: e.Renorm,
		Chosen: ids(e.Active), Slots: ids(e.Active), Rows: ids(e.Active), Starts: ids(e.Count + 1),
	}
	s.MatMul(z, h, e.Router, none, false)
	s.Route(w, z, none, r)
	s.Gather(xs, h, r.Rows)
	s.GroupedMatMul(gu.ColRange(0, f), xs, e.Gate, none, r)
	s.GroupedMatMul(gu.ColRange(f, 2*f), xs, e.Up, none, r)
	s.GLU(m, gu, device.SiLU)
	s.GroupedMatMul(xs, m, e.Down, none, r)
	s.Combine(h, xs, w, r, false)
	s.Release(z, w, xs, gu, m, r.Chosen, r.Slots, r.Rows, r.Starts)
}

// stack returns matrices [rows, cols] of experts below each other, in blocks of a type.
func (b *decodeBench) stack(d tensor.DType, experts, rows, cols int) device.Weight {
	b.t.Helper()
	v := b.values(experts*rows*cols, 1/math.Sqrt(float64(cols)))
	info := tensor.Info{Name: "w", DType: d, Shape: []int{experts, rows, cols}, Size: d.RowBytes(len(v))}
	s := stacked{info, make([]byte, info.Size)}
	if err := quant.Quantize(s.bytes, v, d); err != nil {
		b.t.Fatal(err)
	}
	return b.loaded(s, experts)
}

func (b *decodeBench) loaded(s stacked, experts int) device.Weight {
	b.t.Helper()
	w, err := b.d.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: []device.Source{s}, Form: device.Form{Blocks: true},
		Experts: experts,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

// router returns a router w, and turned, which is w with its rows moved on by one. Over normed rows the logits of w are about as
// far apart as a trained router's. With ties the router has only
// so many different rows: each stands twice in a row, and after the last one they begin again.
func (b *decodeBench) router(experts, cols, ties int) (w, turned device.Weight) {
	v := b.values(experts*cols, 2/math.Sqrt(float64(cols)))
	for e, rows := 0, slices.Clone(v); ties > 0 && e < experts; e++ {
		copy(v[e*cols:(e+1)*cols], rows[e/2%ties*cols:])
	}
	load := func(v []float32) device.Weight {
		info := tensor.Info{Name: "router", DType: tensor.BF16, Shape: []int{experts, cols}, Size: int64(2 * len(v))}
		s := stacked{info, make([]byte, info.Size)}
		tensor.Narrow(s.bytes, v, tensor.BF16)
		return b.loaded(s, 0)
	}
	return load(v), load(append(append([]float32{}, v[cols:]...), v[:cols]...))
}

// expertsCase is a model of experts, whose down has blocks of its own type.
type expertsCase struct {
	blocks, down           tensor.DType
	experts, active, width int
	renorm                 bool
	ties                   int // see router
}

// expertLayers returns the layers of decodeBench.layers, with experts instead of networks, and for each the router that
// a mistake takes.
func (b *decodeBench) expertLayers(c expertsCase) (d device.Decode, turned map[*device.DecodeExperts]device.Weight) {
	d, turned = b.layers(), map[*device.DecodeExperts]device.Weight{}
	for i := range d.Layers {
		l := &d.Layers[i]
		e := &device.DecodeExperts{
			Gate: b.stack(c.blocks, c.experts, c.width, variantHidden), Up: b.stack(c.blocks, c.experts, c.width, variantHidden),
			Down: b.stack(c.down, c.experts, variantHidden, c.width), Count: c.experts, Active: c.active, Renorm: c.renorm,
		}
		e.Router, turned[e] = b.router(c.experts, variantHidden, c.ties)
		l.GateUp, l.Down, l.Experts = nil, nil, e
	}
	return d, turned
}

// TestDecodeByExperts compares the one launch with the operations, and with what they give where something is computed
// otherwise: the launch must be nearer to the right ones by far. There are fewer multiprocessors than experts, and
// more in one case. Of experts with the same logit the first ones are chosen.
func TestDecodeByExperts(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, c := range []expertsCase{
		{tensor.Q4_K, tensor.Q6_K, 8, 2, 256, true, 0}, {tensor.Q8_0, tensor.Q8_0, 20, 3, 512, false, 5},
		{tensor.Q5_K, tensor.Q4_K, 4, 4, 256, false, 0}, {tensor.Q8_0, tensor.Q4_0, 132, 5, 256, true, 0},
	} {
		name := fmt.Sprintf("%v %v %d of %d", c.blocks, c.down, c.active, c.experts)
		t.Run(name, func(t *testing.T) { checkDecodeExperts(t, c) })
	}
}

func checkDecodeExperts(t *testing.T, c expertsCase) {
	b := &decodeBench{t: t, blocks: c.blocks, rng: rand.New(rand.NewPCG(7, 8)), d: open(t, cuda.Options{})}
	defer b.d.Close()
	b.s = b.d.NewStream()
	d, turned := b.expertLayers(c)
	input := b.values(variantHidden, 1)
	row := func(name string) device.Tensor { return b.d.Alloc(name, device.Batch, tensor.BF16, 1, variantHidden) }
	byOperation := func(change func(l *device.DecodeLayer, e *device.DecodeExperts)) []float32 {
		x, y := row("x"), row("y")
		b.s.Upload(x, input)
		for _, l := range d.Layers {
			e := *l.Experts
			e.Router, l.Experts = l.Experts.Router, &e
			change(&l, &e)
			cache := b.d.Alloc("cache", device.Batch, tensor.BF16, variantCapacity, l.Cache.Cols)
			b.s.Copy(cache, l.Cache)
			b.step(x, &l, d, cache)
		}
		b.s.RMSNorm(y, device.Tensor{}, device.Tensor{}, x, device.Tensor{}, d.Norm, d.Eps)
		return b.download(y)
	}
	right := byOperation(func(*device.DecodeLayer, *device.DecodeExperts) {})
	wrong := map[string][]float32{}
	mistakes := map[string]func(l *device.DecodeLayer, e *device.DecodeExperts){
		"the expert beside": func(l *device.DecodeLayer, e *device.DecodeExperts) {
			for of, w := range turned {
				if of.Gate == e.Gate {
					e.Router = w
				}
			}
		},
		"one expert less":           func(_ *device.DecodeLayer, e *device.DecodeExperts) { e.Active-- },
		"up instead of gate":        func(_ *device.DecodeLayer, e *device.DecodeExperts) { e.Gate = e.Up },
		"gate and up change places": func(_ *device.DecodeLayer, e *device.DecodeExperts) { e.Gate, e.Up = e.Up, e.Gate },
		"no factor":                 func(l *device.DecodeLayer, _ *device.DecodeExperts) { l.Residual = 1 },
		"no norm of q":              func(l *device.DecodeLayer, _ *device.DecodeExperts) { l.QNorm = device.Tensor{} },
		"the other norm":            func(l *device.DecodeLayer, _ *device.DecodeExperts) { l.FFNNorm = l.AttnNorm },
	}
	if c.active < c.experts {
		mistakes["weights of another kind"] = func(_ *device.DecodeLayer, e *device.DecodeExperts) { e.Renorm = !e.Renorm }
	}
	for name, change := range mistakes {
		wrong[name] = byOperation(change)
	}
	x, y := row("x"), row("y")
	b.s.Upload(x, input)
	before := b.d.Alloc("cache", device.Batch, tensor.BF16, variantCapacity, d.Layers[2].Cache.Cols)
	b.s.Copy(before, d.Layers[2].Cache)
	launch := func() []float32 {
		if err := b.s.(device.Decoder).Decode(y, x, d); err != nil {
			t.Fatal(err)
		}
		return b.download(y)
	}
	got := launch()
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
	b.checkCache(before, d.Layers[2])
	if again := byOperation(func(*device.DecodeLayer, *device.DecodeExperts) {}); distance(again, right) != 0 {
		t.Error("the operations give something else after the launch, which has put experts into tiles")
	}
	if again := launch(); distance(again, got) != 0 {
		t.Error("a second launch gives something else")
	}
}

// TestDecodeExpertsRefuses: what the launch does not compute is refused by a name, and nothing is put into tiles for
// it.
func TestDecodeExpertsRefuses(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	b := &decodeBench{t: t, blocks: tensor.Q4_K, rng: rand.New(rand.NewPCG(9, 10)), d: open(t, cuda.Options{})}
	defer b.d.Close()
	b.s = b.d.NewStream()
	d, _ := b.expertLayers(expertsCase{tensor.Q4_K, tensor.Q4_K, 8, 2, 256, true, 0})
	dense := b.layers().Layers[1]
	for want, change := range map[string]func(l *device.DecodeLayer, e *device.DecodeExperts){
		"experts in some layers": func(l *device.DecodeLayer, _ *device.DecodeExperts) { *l = dense },
		"experts that differ":    func(_ *device.DecodeLayer, e *device.DecodeExperts) { e.Renorm = false },
		"experts of such layers": func(l *device.DecodeLayer, _ *device.DecodeExperts) { l.Cap = 30 },
		"attention sinks": func(l *device.DecodeLayer, _ *device.DecodeExperts) {
			l.Sinks = b.tensor(tensor.F32, 1, l.Heads, 1, 0)
		},
		"the activation": func(l *device.DecodeLayer, _ *device.DecodeExperts) { l.Act = device.OSS },
		"the router of layer 1": func(_ *device.DecodeLayer, e *device.DecodeExperts) {
			e.Router = b.matrix(8, variantHidden)
		},
		"a matrix of layer 1 is not in bl": func(_ *device.DecodeLayer, e *device.DecodeExperts) {
			e.Up = b.dense(8*256, variantHidden)
		},
	} {
		all := d
		all.Layers = append([]device.DecodeLayer{}, d.Layers...)
		e := *all.Layers[1].Experts
		all.Layers[1].Experts = &e
		change(&all.Layers[1], &e)
		x := b.tensor(tensor.BF16, 1, variantHidden, 1, 0)
		if err := b.s.(device.Decoder).Decode(x, x, all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// dense returns a matrix of bfloat16.
func (b *decodeBench) dense(rows, cols int) device.Weight {
	info := tensor.Info{Name: "w", DType: tensor.BF16, Shape: []int{rows, cols}, Size: int64(2 * rows * cols)}
	s := stacked{info, make([]byte, info.Size)}
	return b.loaded(s, 0)
}
