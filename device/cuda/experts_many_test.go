//go:build emulate || gpu

package cuda_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/near"
	"apr/quant"
	"apr/tensor"
)

// stacked is a matrix in memory.
type stacked struct {
	info  tensor.Info
	bytes []byte
}

func (s stacked) Info() tensor.Info { return s.info }
func (s stacked) ReadRows(dst []byte, lo, hi int) error {
	n := int(s.info.DType.RowBytes(s.info.Cols()))
	copy(dst, s.bytes[lo*n:hi*n])
	return nil
}

// many is a layer of experts with many slots: a routing in which shares are unequal and the last expert has none.
type many struct {
	tokens, experts, active, out, in int
	values                           []float32 // of the experts' matrices, as they are stored
	source, plain                    stacked   // in blocks; the same values in bfloat16
}

func newMany(t *testing.T, d tensor.DType) many {
	t.Helper()
	m := many{tokens: 300, experts: 4, active: 2, out: 72, in: 256}
	rng := rand.New(rand.NewPCG(7, 7))
	m.values = make([]float32, m.experts*m.out*m.in)
	for i := range m.values {
		m.values[i] = float32(rng.NormFloat64() / 8)
	}
	pack := func(d tensor.DType) stacked {
		s := stacked{tensor.Info{Name: "w", DType: d, Shape: []int{m.experts, m.out, m.in}}, make([]byte, int(d.RowBytes(len(m.values))))}
		s.info.Size = int64(len(s.bytes))
		return s
	}
	m.source, m.plain = pack(d), pack(tensor.BF16)
	if err := quant.Quantize(m.source.bytes, m.values, d); err != nil {
		t.Fatal(err)
	}
	quant.DequantizeRange(m.values, m.source.bytes, 0, d)
	tensor.Narrow(m.plain.bytes, m.values, tensor.BF16)
	tensor.Widen(m.values, m.plain.bytes, tensor.BF16)
	return m
}

func (m many) weight(t *testing.T, d device.Device, src device.Source, form device.Form) device.Weight {
	t.Helper()
	w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}, Experts: m.experts, Form: form})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// products are all products of a layer, and what they are computed of.
type products struct{ y, dx, dw, x, dy, bias device.Tensor }

// routing chooses experts for the tokens.
func (m many) routing(s device.Stream) device.Routing {
	slots := m.tokens * m.active
	ints := func(n int) device.Tensor { return s.Temp("slots", device.Batch, tensor.I32, n, 1) }
	r := device.Routing{Experts: m.experts, Active: m.active, Chosen: ints(slots), Slots: ints(slots), Rows: ints(slots), Starts: ints(m.experts + 1)}
	z, weights := s.Temp("z", device.Activations, tensor.F32, m.tokens, m.experts), s.Temp("weights", device.Activations, tensor.F32, m.tokens, m.active)
	rng := rand.New(rand.NewPCG(4, 4))
	logits := make([]float32, m.tokens*m.experts)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64()) - float32(i%m.experts)/2
		if i%m.experts == m.experts-1 {
			logits[i] = -100
		}
	}
	s.Upload(z, logits)
	s.Route(weights, z, device.Tensor{}, r)
	s.Release(z, weights)
	return r
}

// fill uploads normal values.
func fill(s device.Stream, to device.Tensor, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, seed))
	v := make([]float32, to.Rows*to.Cols)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	s.Upload(to, v)
}

// run computes all products with a weight.
func (m many) run(s device.Stream, w device.Weight) products {
	slots := m.tokens * m.active
	r := m.routing(s)
	temp := func(d tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("t", device.Activations, d, rows, cols)
	}
	p := products{
		temp(tensor.BF16, slots, m.out), temp(tensor.BF16, slots, m.in), temp(tensor.F32, m.experts*m.out, m.in),
		temp(tensor.BF16, slots, m.in), temp(tensor.BF16, slots, m.out), temp(tensor.F32, m.experts, m.out),
	}
	fill(s, p.x, 1)
	fill(s, p.dy, 2)
	fill(s, p.bias, 3)
	s.Zero(p.dw)
	s.GroupedMatMul(p.y, p.x, w, p.bias, r)
	s.GroupedInputGrad(p.dx, p.dy, w, r, false)
	s.GroupedWeightGrad(p.dw, device.Tensor{}, p.dy, p.x, r)
	s.Release(r.Chosen, r.Slots, r.Rows, r.Starts)
	return p
}

func (p products) release(s device.Stream) { s.Release(p.y, p.dx, p.dw, p.x, p.dy, p.bias) }

// download returns y, dx and dw.
func (p products) download(t *testing.T, s device.Stream) (all [3][]float32) {
	t.Helper()
	for i, m := range []device.Tensor{p.y, p.dx, p.dw} {
		all[i] = make([]float32, m.Rows*m.Cols)
		if err := s.Download(all[i], m); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func hopper(t *testing.T, o cuda.Options) *cuda.Device {
	t.Helper()
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	d := open(t, o)
	if info := d.Info(); d.Capability() != "sm_90a" {
		d.Close()
		t.Fatalf("%s is no device of compute capability 9.0", info.Name)
	}
	return d
}

// TestManySlots: products of many slots on compute capability 9.0 are those of the same matrices in bfloat16, bit for bit, whether experts are expanded
// at once, one by one or in pairs, and agree with the kernels of other devices.
func TestManySlots(t *testing.T) {
	for _, kind := range []tensor.DType{tensor.Q4_K, tensor.Q8_0, tensor.MXFP4} {
		t.Run(kind.String(), func(t *testing.T) {
			d := hopper(t, cuda.Options{})
			defer d.Close()
			m, s := newMany(t, kind), d.NewStream()
			p := m.run(s, m.weight(t, d, m.plain, device.Form{}))
			want := p.download(t, s)
			p.release(s)
			each := int64(2 * m.out * m.in)
			for _, n := range []int64{1, 2, 4} {
				w := m.weight(t, d, m.source, device.Form{Blocks: true})
				before := d.Stats().Products
				if err := d.LimitExpansion(w, n*each); err != nil {
					t.Fatal(err)
				}
				p := m.run(s, w)
				got := p.download(t, s)
				p.release(s)
				if slabs, wanted := d.Stats().Products-before, 2*4/n+1; slabs != wanted {
					t.Errorf("%d products for slabs of %d of %d experts", slabs, n, m.experts)
				}
				for i, name := range []string{"y", "dx", "dw"} {
					for j := range got[i] {
						if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
							t.Fatalf("%d experts at a time: %s[%d] is %g, of matrices in bfloat16 %g", n, name, j, got[i][j], want[i][j])
						}
					}
				}
			}
			undo := d.Pretend(8)
			defer undo()
			p = m.run(s, m.weight(t, d, m.source, device.Form{Blocks: true}))
			other := p.download(t, s)
			p.release(s)
			for i, name := range []string{"y", "dx", "dw"} {
				// One step of bfloat16, where two sums round to either side; and what tensor cores cut off sums in float32.
				near.CheckRel(t, name, want[i], other[i], []float64{1. / 128, 1. / 128, 2e-5}[i])
			}
		})
	}
}

// TestManySlotsPlanned: what a dry run asks for is what is loaded and taken, and nothing is later.
func TestManySlotsPlanned(t *testing.T) {
	d := hopper(t, cuda.Options{StrictSeal: true})
	defer d.Close()
	m := newMany(t, tensor.Q4_K)
	planned := dry.New(d.Target())
	m.run(planned.NewStream(), m.weight(t, planned, m.source, device.Form{Blocks: true}))
	r := planned.Record()
	if want := int64(2 * m.experts * m.out * m.in); r.Expand != want {
		t.Errorf("%d bytes to expand in are planned, want %d", r.Expand, want)
	}
	for _, o := range r.Ops {
		if (o.Kind == device.OpGroupedInputGrad || o.Kind == device.OpGroupedMatMul) && !o.Expands {
			t.Errorf("%+v: does not expand", o)
		}
	}
	if err := d.Prepare(r); err != nil {
		t.Fatal(err)
	}
	names := d.LoadedModules()
	for _, name := range []string{"experts_sm90", "experts", "dequant"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not among %v", name, names)
		}
	}
	for _, name := range []string{"experts_blocks", "experts_gemm", "experts_rows"} {
		if slices.Contains(names, name) {
			t.Errorf("%s is among %v", name, names)
		}
	}
	d.Seal()
	before := d.Stats()
	s := d.NewStream()
	p := m.run(s, m.weight(t, d, m.source, device.Form{Blocks: true}))
	p.download(t, s)
	after := d.Stats()
	if after.LateLoads != 0 || after.Allocated != before.Allocated {
		t.Errorf("%d loads and %d bytes of device memory that were not planned", after.LateLoads, after.Allocated-before.Allocated)
	}
	if d.Expansion() != r.Expand {
		t.Errorf("%d bytes to expand in, %d are planned", d.Expansion(), r.Expand)
	}
}

// TestFewSlotsPlanned: with few slots the same layer takes no memory to expand in, nor the kernels for many.
func TestFewSlotsPlanned(t *testing.T) {
	d := hopper(t, cuda.Options{StrictSeal: true})
	defer d.Close()
	m := newMany(t, tensor.Q4_K)
	m.tokens = 100 // 200 slots of 4 experts
	planned := dry.New(d.Target())
	m.run(planned.NewStream(), m.weight(t, planned, m.source, device.Form{Blocks: true}))
	r := planned.Record()
	if err := d.Prepare(r); err != nil {
		t.Fatal(err)
	}
	if names := d.LoadedModules(); r.Expand != 0 || slices.Contains(names, "experts_sm90") || !slices.Contains(names, "experts_blocks") {
		t.Errorf("%d bytes, %v", r.Expand, names)
	}
	d.Seal()
	s := d.NewStream()
	p := m.run(s, m.weight(t, d, m.source, device.Form{Blocks: true}))
	p.download(t, s)
	if late := d.Stats().LateLoads; late != 0 {
		t.Errorf("%d loads that were not planned", late)
	}
}

// TestRunExperts: experts of rows of tokens that are taken on the way have the bits of copies for each slot; with few
// slots, and without the kernels for many, nothing is done.
func TestRunExperts(t *testing.T) {
	d := hopper(t, cuda.Options{})
	defer d.Close()
	m, s := newMany(t, tensor.Q4_K), d.NewStream()
	r := m.routing(s)
	slots := m.tokens * m.active
	temp := func(d tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("t", device.Activations, d, rows, cols)
	}
	y, xs := temp(tensor.BF16, m.tokens, m.in), temp(tensor.BF16, slots, m.in)
	fill(s, y, 5)
	bias, downBias := temp(tensor.F32, m.experts, m.out), temp(tensor.F32, m.experts, m.in)
	fill(s, bias, 6)
	fill(s, downBias, 7)
	back := m.plain // as matrices [in, out]
	back.info.Shape = []int{m.experts, m.in, m.out}
	down := m.weight(t, d, back, device.Form{})
	for _, form := range []device.Form{{}, {Blocks: true}} {
		source := m.plain
		if form.Blocks {
			source = m.source
		}
		gate, up := m.weight(t, d, source, form), m.weight(t, d, m.source, form)
		e := device.ExpertNets{Gate: gate, Up: up, Down: down, GateBias: bias, DownBias: downBias, Act: device.SiLU}
		gateUp, glu, ys := temp(tensor.BF16, slots, 2*m.out), temp(tensor.BF16, slots, m.out), temp(tensor.BF16, slots, m.in)
		if !s.(device.ExpertRunner).RunExperts(ys, glu, gateUp, y, e, r) {
			t.Fatal("RunExperts has done nothing")
		}
		got := download(t, s, glu, gateUp, ys)
		s.Gather(xs, y, r.Rows)
		s.GroupedMatMul(gateUp.ColRange(0, m.out), xs, e.Gate, bias, r)
		s.GroupedMatMul(gateUp.ColRange(m.out, 2*m.out), xs, e.Up, device.Tensor{}, r)
		s.GLU(glu, gateUp, device.SiLU)
		s.GroupedMatMul(ys, glu, e.Down, downBias, r)
		if want := download(t, s, glu, gateUp, ys); !slices.Equal(got, want) {
			t.Errorf("%+v: other values than of Gather, GroupedMatMul and GLU", form)
		}
		undo := d.Pretend(8)
		if s.(device.ExpertRunner).RunExperts(ys, glu, gateUp, y, e, r) {
			t.Error("RunExperts claims to have worked without its kernels")
		}
		undo()
	}
}

func download(t *testing.T, s device.Stream, all ...device.Tensor) (values []float32) {
	t.Helper()
	for _, m := range all {
		v := make([]float32, m.Rows*m.Cols)
		if err := s.Download(v, m); err != nil {
			t.Fatal(err)
		}
		values = append(values, v...)
	}
	return values
}
