//go:build gpu

package cuda_test

import (
	"errors"
	"fmt"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/fault"
	"apr/tensor"
)

// expertsModel is the shape of a model's experts, and the share of a dense product's rate that a layer shall reach as it is published.
type expertsModel struct {
	name                          string
	experts, active, wide, hidden int
	types                         []tensor.DType // the first is that of the goal
	goal                          float64
}

var expertsModels = []expertsModel{
	{"Qwen3-30B-A3B", 128, 8, 768, 2048, []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.BF16}, 0.45},
	{"gpt-oss 20b", 32, 4, 2880, 2880, []tensor.DType{tensor.MXFP4, tensor.BF16}, 0.40},
}

// made is a weight that the device has.
type made struct {
	d                   tensor.DType
	rows, cols, experts int
	fp8                 bool
}

// expertsBench is what products of a model's experts are timed with.
type expertsBench struct {
	t     *testing.T
	d     *cuda.Device
	s     *cuda.Stream
	m     expertsModel
	dense float64 // operations a second of a dense product
	made  map[made]device.Weight
}

// TestExpertsSpeed prints how fast slots are chosen, sorted and multiplied with experts in blocks and in bfloat16, tokens spread evenly and all on the
// same experts, by the kernels that the device chooses and by those of all devices, beside the rate of a dense product of bfloat16. Operands are
// random: products of zeros draw less power and are faster.
func TestExpertsSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	if err := d.Prewarm(); err != nil {
		t.Fatal(err)
	}
	b := expertsBench{t: t, d: d, s: d.NewStream().(*cuda.Stream), made: map[made]device.Weight{}}
	b.dense = b.denseRate(8192, 8192, 8192)
	t.Logf("a dense product of bfloat16, 8192×8192×8192: %.0f TFLOP/s", b.dense/1e12)
	for _, b.m = range expertsModels {
		for _, tokens := range []int{1, 8, 64, 512, 1024, 2048, 4096, 8192} {
			t.Run(fmt.Sprintf("%s/%d", b.m.name, tokens), func(t *testing.T) {
				b.t = t
				for _, skewed := range []bool{false, true} {
					b.layer(tokens, skewed)
				}
			})
		}
	}
}

// random makes a temp whose rows are those of a random matrix.
func (b *expertsBench) random(rows, cols int) device.Tensor {
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i % 4093)
	}
	at := b.s.Temp("ids", device.Batch, tensor.I32, rows, 1)
	b.s.UploadInts(at, ids)
	x := b.s.Temp("x", device.Activations, tensor.BF16, rows, cols)
	b.s.Embed(x, b.weight(tensor.BF16, 4093, cols, 0), at)
	b.s.Release(at)
	return x
}

func (b *expertsBench) weight(d tensor.DType, rows, cols, experts int) device.Weight {
	return b.make(made{d, rows, cols, experts, false})
}

// fp8 is weight in blocks of type d whose products are in 8-bit floats.
func (b *expertsBench) fp8(d tensor.DType, rows, cols, experts int) device.Weight {
	return b.make(made{d, rows, cols, experts, true})
}

func (b *expertsBench) make(key made) device.Weight {
	if w := b.made[key]; w != nil {
		return w
	}
	w, err := b.d.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: []device.Source{inBlocks(b.t, key.d, key.rows, key.cols)},
		Experts: key.experts, Form: device.Form{Blocks: key.d.IsQuantized(), FP8: key.fp8},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.made[key] = w
	return w
}

// denseRate times a product of random operands.
func (b *expertsBench) denseRate(m, n, k int) float64 {
	x, w, y := b.random(m, k), b.weight(tensor.BF16, n, k, 0), b.s.Temp("y", device.Activations, tensor.BF16, m, n)
	took := profiled(b.t, b.d, b.s, func() { b.s.MatMul(y, x, w, device.Tensor{}, false) })
	b.s.Release(x, y)
	return 2 * float64(m) * float64(n) * float64(k) / took
}

// routing chooses experts for tokens: random ones, or for all tokens the same.
func (b *expertsBench) routing(tokens int, skewed bool) (r device.Routing, took float64) {
	s, slots := b.s, tokens*b.m.active
	ints := func(n int) device.Tensor { return s.Temp("slots", device.Batch, tensor.I32, n, 1) }
	r = device.Routing{
		Experts: b.m.experts, Active: b.m.active, Renorm: true, Chosen: ints(slots), Slots: ints(slots), Rows: ints(slots), Starts: ints(b.m.experts + 1),
	}
	z, w := s.Temp("z", device.Activations, tensor.F32, tokens, b.m.experts), s.Temp("w", device.Activations, tensor.F32, tokens, b.m.active)
	host, seed := make([]float32, tokens*b.m.experts), uint32(tokens)
	for i := range host {
		seed = seed*1664525 + 1013904223
		if host[i] = float32(seed >> 8); skewed {
			host[i] = -float32(i % b.m.experts)
		}
	}
	s.Upload(z, host)
	took = profiled(b.t, b.d, s, func() { s.Route(w, z, device.Tensor{}, r) })
	s.Release(z, w)
	return r, took
}

// layer times the products of so many tokens: gate and up, and down, forward and for bfloat16 backward.
func (b *expertsBench) layer(tokens int, skewed bool) {
	m, slots := b.m, tokens*b.m.active
	r, route := b.routing(tokens, skewed)
	b.t.Logf("%s, %4d tokens, skewed %v: choice and order %7.4f ms", m.name, tokens, skewed, 1e3*route)
	for i, kind := range m.types {
		sum, old, low := route, route, route
		for j, shape := range [][2]int{{m.wide, m.hidden}, {m.hidden, m.wide}} {
			w := b.weight(kind, m.experts*shape[0], shape[1], m.experts)
			x, y := b.random(slots, shape[1]), b.s.Temp("y", device.Activations, tensor.BF16, slots, shape[0])
			times := float64(2 - j) // gate and up
			now, before := b.compare(w, kind.String()+" forward", shape, slots, skewed, func() { b.s.GroupedMatMul(y, x, w, device.Tensor{}, r) })
			if kind.IsQuantized() && tokens >= 512 {
				low += times * profiled(b.t, b.d, b.s, func() {
					b.s.GroupedMatMul(y, x, b.fp8(kind, m.experts*shape[0], shape[1], m.experts), device.Tensor{}, r)
				})
			}
			if kind == tensor.BF16 && tokens >= 512 {
				b.backward(w, x, shape, slots, skewed, r)
			}
			sum, old = sum+times*now, old+times*before
			b.s.Release(x, y)
		}
		work := 6 * float64(slots) * float64(m.wide) * float64(m.hidden)
		line := "    %v layer, choice and products: %7.4f ms, %3.0f TFLOP/s, %4.1f %% of dense; with the kernels of all devices %7.4f ms, %4.1f %%"
		b.t.Logf(line, kind, 1e3*sum, work/sum/1e12, 100*work/sum/b.dense, 1e3*old, 100*work/old/b.dense)
		if low > route {
			b.t.Logf("    %v layer in 8-bit floats: %7.4f ms, %3.0f TFLOP/s", kind, 1e3*low, work/low/1e12)
		}
		if i == 0 && tokens == 8192 && !skewed {
			b.t.Logf("    GOAL %.0f %% of dense: %.1f %%, met %v", 100*m.goal, 100*work/sum/b.dense, work/sum/b.dense >= m.goal)
		}
	}
	b.s.Release(r.Chosen, r.Slots, r.Rows, r.Starts)
}

// backward times both gradients of experts in bfloat16.
func (b *expertsBench) backward(w device.Weight, x device.Tensor, shape [2]int, slots int, skewed bool, r device.Routing) {
	dx, dy := b.s.Temp("dx", device.Activations, tensor.BF16, slots, shape[1]), b.random(slots, shape[0])
	dw := b.s.Temp("dw", device.Activations, tensor.F32, b.m.experts*shape[0], shape[1])
	b.s.Zero(dw)
	b.compare(w, "bf16 dx", shape, slots, skewed, func() { b.s.GroupedInputGrad(dx, dy, w, r, false) })
	b.compare(w, "bf16 dw", shape, slots, skewed, func() { b.s.GroupedWeightGrad(dw, device.Tensor{}, dy, x, r) })
	b.s.Release(dx, dy, dw)
}

// compare times a product by the kernels that the device chooses, and by those of all devices.
func (b *expertsBench) compare(w device.Weight, what string, shape [2]int, slots int, skewed bool, f func()) (now, before float64) {
	now = profiled(b.t, b.d, b.s, f)
	undo := b.d.Pretend(8)
	before = profiled(b.t, b.d, b.s, f)
	undo()
	experts := min(slots, b.m.experts)
	if skewed {
		experts = b.m.active
	}
	read, work := float64(w.Bytes())*float64(experts)/float64(b.m.experts), 2*float64(slots)*float64(shape[0])*float64(shape[1])
	b.t.Logf("    %4d×%-4d %-13s: %7.4f ms, %4.0f TFLOP/s, %4.1f %% of dense, %5.2f TB/s of the experts read; kernels of all devices %7.4f ms, %4.0f TFLOP/s",
		shape[0], shape[1], what, 1e3*now, work/now/1e12, 100*work/now/b.dense, read/now/1e12, 1e3*before, work/before/1e12)
	return now, before
}

// TestExpertsFP8 multiplies the same blocks in 8-bit floats and in bfloat16 and compares the results: once with a row of x for each
// slot, once with rows of tokens that slots name.
func TestExpertsFP8(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	b := expertsBench{t: t, d: d, s: d.NewStream().(*cuda.Stream), made: map[made]device.Weight{}}
	for _, b.m = range []expertsModel{
		{"small", 8, 2, 768, 2048, []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.MXFP4}, 0},
		{"wide", 32, 4, 2880, 2880, []tensor.DType{tensor.MXFP4}, 0},
	} {
		for _, kind := range b.m.types {
			b.compareFP8(kind)
		}
	}
	_, err := d.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: []device.Source{inBlocks(t, tensor.BF16, 4*64, 256)},
		Experts: 4, Form: device.Form{FP8: true},
	})
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.ID != "E-CUDA-063" {
		t.Errorf("experts in bfloat16, products in 8-bit floats: %v, want E-CUDA-063", err)
	}
}

// compareFP8 compares gate and up of experts in blocks, by both arithmetics.
func (b *expertsBench) compareFP8(kind tensor.DType) {
	const tokens = 1500
	s, m := b.s, b.m
	slots, rows := tokens*m.active, m.experts*m.wide
	r, _ := b.routing(tokens, false)
	y, xs := random(s, tokens, m.hidden, 1), s.Temp("xs", device.Activations, tensor.BF16, slots, m.hidden)
	bias := s.Temp("bias", device.Activations, tensor.F32, m.experts, m.wide)
	s.Zero(bias)
	out := func() device.Tensor { return s.Temp("out", device.Activations, tensor.BF16, slots, 2*m.wide) }
	want, got, glu := out(), out(), s.Temp("glu", device.Activations, tensor.BF16, slots, m.wide)
	s.Gather(xs, y, r.Rows)
	exact, low := b.weight(kind, rows, m.hidden, m.experts), b.fp8(kind, rows, m.hidden, m.experts)
	for i := range 2 {
		s.GroupedMatMul(want.ColRange(i*m.wide, (i+1)*m.wide), xs, exact, bias, r)
		s.GroupedMatMul(got.ColRange(i*m.wide, (i+1)*m.wide), xs, low, bias, r)
	}
	b.near(kind, "slots", want, got)
	down := b.fp8(kind, m.experts*m.hidden, m.wide, m.experts)
	rowsOut := func() device.Tensor { return s.Temp("ys", device.Activations, tensor.BF16, slots, m.hidden) }
	ys, same := rowsOut(), rowsOut()
	for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS} {
		e := device.ExpertNets{Gate: low, Up: low, Down: down, GateBias: bias, Act: act}
		if !s.RunExperts(ys, glu, got, y, e, r) {
			b.t.Fatal("RunExperts has done nothing")
		}
		b.near(kind, "rows of tokens", want, got)
		s.GLU(glu, got, act)
		s.GroupedMatMul(same, glu, down, device.Tensor{}, r)
		if cos, off := compare(b.t, s, same, ys); off != 0 {
			b.t.Errorf("%s, %v, activation %v: other values than of GLU's rows, cosine %g, error %g", m.name, kind, act, cos, off)
		}
	}
	s.Release(y, xs, bias, want, got, glu, ys, same, r.Chosen, r.Slots, r.Rows, r.Starts)
}

func (b *expertsBench) near(kind tensor.DType, what string, want, got device.Tensor) {
	b.t.Helper()
	cos, off := compare(b.t, b.s, want, got)
	b.t.Logf("%s, %v, %s: cosine %.6f, relative error %.4f", b.m.name, kind, what, cos, off)
	if !(cos > 0.998) || !(off < 0.06) {
		b.t.Errorf("%s, %v, %s: cosine %g, relative error %g", b.m.name, kind, what, cos, off)
	}
}
