package dry

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

func bf16() *Device {
	return New(Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Keep: As(tensor.BF16), Align: 256, Reserved: 1000})
}

// source is a matrix of which only the description may be asked.
type source struct {
	t    *testing.T
	info tensor.Info
}

func (s source) Info() tensor.Info { return s.info }
func (s source) ReadRows([]byte, int, int) error {
	s.t.Error("a source was read")
	return nil
}

func matrix(t *testing.T, d tensor.DType, rows, cols int) source {
	return source{t, tensor.Info{Name: "w", DType: d, Shape: []int{rows, cols}, Size: int64(rows) * d.RowBytes(cols)}}
}

func TestMemory(t *testing.T) {
	d := bf16()
	s := d.NewStream()
	p := d.Param(device.ParamSpec{Name: "m", Rows: 100, Cols: 100, Decay: true}) // 40,000 and 20,000 bytes
	d.Param(device.ParamSpec{Name: "v", Rows: 1, Cols: 100})                     // 400, no copy
	if _, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{matrix(t, tensor.F32, 10, 64)}}); err != nil {
		t.Fatal(err)
	}
	cache := d.Alloc("cache", device.KVCache, tensor.BF16, 10, 100) // 2,000 → 2,048
	d.Free(cache)
	a := s.Temp("a", device.Activations, tensor.BF16, 100, 100) // 20,000 → 20,224
	b := s.Temp("b", device.Activations, tensor.F32, 1, 1)      // 256
	s.Release(a)
	c := s.Temp("c", device.Logits, tensor.F32, 100, 64) // 25,600: does not fit where a was
	want := map[device.Component]int64{
		device.StudentWeights: 40192 + 20224 + 512, device.Gradients: 40192 + 512, device.Moments: 2 * (40192 + 512),
		device.TeacherWeights: 1280, device.KVCache: 2048,
	}
	r := d.Record()
	if !maps.Equal(r.Static, want) {
		t.Errorf("static %v, want %v", r.Static, want)
	}
	if want := int64(20224 + 256 + 25600); r.Temps != want || r.Most != 25856 {
		t.Errorf("temps %d of %d, want %d and 25856 at a time", r.Temps, r.Most, want)
	}
	if len(r.AtMost) != 2 || r.AtMost[0] != (Held{"c", device.Logits, 1, 25600}) || r.AtMost[1] != (Held{"b", device.Activations, 1, 256}) {
		t.Errorf("at most %v", r.AtMost)
	}
	sum := int64(0)
	for _, n := range r.ByComponent() {
		sum += n
	}
	if sum != r.Total() || r.Peak[device.Activations] != 20480 {
		t.Errorf("components add up to %d, total %d; peak of activations %d", sum, r.Total(), r.Peak[device.Activations])
	}
	s.Release(c, device.Tensor{}, b)
	if now, _ := d.Memory(); now[device.Activations] != 0 || now[device.Logits] != 0 || now[device.KVCache] != 0 {
		t.Errorf("held after all was given back: %v", now)
	}
	if p.Weight.Bytes() != 20224 || p.Weight.Rows() != 100 || p.Weight.Cols() != 100 {
		t.Errorf("weight of %d bytes", p.Weight.Bytes())
	}
}

func TestKeep(t *testing.T) {
	parts := []device.Source{matrix(t, tensor.Q4_K, 8, 512), matrix(t, tensor.Q6_K, 4, 512), matrix(t, tensor.F32, 2, 512)}
	for _, tt := range []struct {
		name  string
		keep  func(device.WeightSpec) (Kept, error)
		rows  []int
		bytes int64
		types string
	}{
		{"stored", Stored, nil, 8*288 + 4*420 + 2*2048, "q4_k+q6_k+f32"},
		{"as bf16", As(tensor.BF16), nil, 14 * 1024, "bf16"},
		{"blocks or bf16", BlocksOr(tensor.BF16), nil, 8*288 + 4*420 + 2*1024, "q4_k+q6_k+bf16"},
		{"some rows", Stored, []int{1, 2, 0}, 288 + 840, "q4_k+q6_k+f32"},
	} {
		d := New(Target{Keep: tt.keep})
		w, err := d.Weight(device.WeightSpec{Parts: parts, Rows: tt.rows})
		if err != nil || w.Bytes() != tt.bytes || w.(*weight).Types != tt.types {
			t.Errorf("%s: %d bytes of %q, %v; want %d of %q", tt.name, w.Bytes(), w.(*weight).Types, err, tt.bytes, tt.types)
		}
	}
	for name, spec := range map[string]device.WeightSpec{
		"too many rows":   {Parts: parts[:1], Rows: []int{9}},
		"columns":         {Parts: []device.Source{parts[0], matrix(t, tensor.F32, 2, 256)}},
		"a negative rows": {Parts: parts[:1], Rows: []int{-1}},
	} {
		if _, err := bf16().Weight(spec); fault.KindOf(err) != fault.Load {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOperations(t *testing.T) {
	d := bf16()
	s := d.NewStream()
	act := func(rows, cols int) device.Tensor { return s.Temp("x", device.Activations, tensor.BF16, rows, cols) }
	x, y := act(6, 8), act(6, 16)
	p := d.Param(device.ParamSpec{Name: "w", Rows: 16, Cols: 8})
	bias := d.Param(device.ParamSpec{Name: "b", Rows: 1, Cols: 16})
	s.SetScalars(device.Scalars{LR: 0.5})
	s.Phase(device.PhaseForward)
	s.MatMul(y, x, p.Weight, bias.Value, false)
	s.MatMul(y, x, p.Weight, bias.Value, false)
	s.Phase(device.PhaseBackward)
	s.MatMulInputGrad(x, y, p.Weight, true)
	s.MatMulWeightGrad(p.Grad, bias.Grad, y, x)
	a := device.Attn{Batch: 2, QLen: 3, KLen: 3, KStride: 3, Heads: 2, KVHeads: 1, HeadDim: 4}
	qkv := act(6, 16)
	s.Attention(x, device.Tensor{}, qkv.ColRange(0, 8), qkv.ColRange(8, 12), qkv.ColRange(12, 16), a)
	z := s.Temp("z", device.Logits, tensor.F32, 6, 20)
	targets := d.Alloc("ids", device.Batch, tensor.I32, 6, 1)
	s.Loss(device.Tensor{}, z, z, targets, device.LossSpec{Alpha: 1, Temperature: 1})
	s.Verdict([]*device.Param{p})

	r := d.Record()
	c := r.Costs()
	if got := c[device.PhaseForward]; got != (Cost{2, 2 * 2 * 6 * 16 * 8, 2 * (2*6*8 + 2*6*16 + 2*16*8 + 4*16), 0}) {
		// The copy of w is counted as 256 bytes of memory, which it moves.
		t.Errorf("forward %+v", got)
	}
	if got, want := c[device.PhaseBackward].FLOPs, 2*2*6*16*8.0+4*2*2*4*(1+2+3); got != want {
		t.Errorf("backward: %g operations, want %g", got, want)
	}
	products := r.Products()
	if len(products) != 3 || products[0].Times != 2 || products[0].Bias != true || products[0].M != 6 || products[0].N != 16 || products[0].K != 8 ||
		products[0].Weight != "bf16" || products[1].K != 16 || !products[1].Add || products[2].M != 16 || products[2].Out != tensor.F32 {
		t.Errorf("products %+v", products)
	}
	var names []string
	for _, o := range r.Ops {
		names = append(names, o.Kind.String())
	}
	if got := strings.Join(names, " "); got != "MatMul MatMulInputGrad MatMulWeightGrad Attention Loss Verdict" {
		t.Errorf("operations %s", got)
	}
	sc, err := s.Wait(context.Background())
	if err != nil || sc.Positions != 6 || !sc.Finite || sc.LR != 0.5 {
		t.Errorf("%+v, %v", sc, err)
	}
	if err := s.Download(make([]float32, 48), x); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("download: %v", err)
	}
	if _, err := s.Wait(context.Background()); err == nil {
		t.Error("the stream forgot its error")
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Errorf("the error came twice: %v", err)
	}
	if d.ResetOps(); d.Record().Cost() != (Cost{}) {
		t.Error("operations after a reset")
	}
}

// TestDecodeIsNoted: the latest description of layers is in the record, and nothing is counted for it.
func TestDecodeIsNoted(t *testing.T) {
	d := bf16()
	s := d.NewStream()
	x := s.Temp("x", device.Activations, tensor.BF16, 1, 8)
	w := s.Temp("w", device.Activations, tensor.F32, 1, 8)
	decode := device.Decode{Norm: w, Position: 3, Eps: 1e-6}
	if err := s.(device.Decoder).Decode(x, x, decode); err == nil {
		t.Error("a dry device says that it has computed the layers")
	}
	if r := d.Record(); r.Decode == nil || r.Decode.Position != 3 || len(r.Ops) != 0 {
		t.Errorf("recorded %+v", r.Decode)
	}
	if d.ResetOps(); d.Record().Decode != nil {
		t.Error("a description after a reset")
	}
}

// Windows cost what they keep, and an operation is what its kind and sizes are, wherever its operands lie.
func TestBlockOperations(t *testing.T) {
	d := bf16()
	s := d.NewStream()
	act := func(rows, cols int) device.Tensor { return s.Temp("x", device.Activations, tensor.BF16, rows, cols) }
	single := func(rows, cols int) device.Tensor { return s.Temp("w", device.Activations, tensor.F32, rows, cols) }
	x, k, lse := act(64, 8), act(64, 4), single(64, 2)
	a := device.Attn{Batch: 2, QLen: 32, KLen: 32, KStride: 32, Heads: 2, KVHeads: 1, HeadDim: 4}
	cost := func(f func()) Cost {
		d.ResetOps()
		f()
		return d.Record().Cost()
	}
	attend := func(a device.Attn) func() {
		return func() {
			s.Attention(x, lse, x, k, k, a)
			s.AttentionBackward(x, k, k, x, x, lse, x, k, k, a)
		}
	}
	full := cost(attend(a))
	for w, pairs := range map[int]float64{1: 32, 4: 1 + 2 + 3 + 4*29, 32: 528, 50: 528} {
		a.Window = w
		if got := cost(attend(a)); got.FLOPs != 14*2*2*4*pairs || got.Bytes != full.Bytes {
			t.Errorf("window %d: %+v, want %g operations", w, got, 14*2*2*4*pairs)
		}
	}
	if full.FLOPs != 14*2*2*4*528 {
		t.Errorf("without a window %g operations", full.FLOPs)
	}
	d.ResetOps()
	for range 2 {
		a.First = s.Temp("first", device.Batch, tensor.I32, 64, 1) // at another place each time
		attend(a)()
	}
	if ops := d.Record().Ops; len(ops) != 2 || ops[0].Times != 2 || !ops[0].Documents || !ops[0].Attn.First.IsZero() {
		t.Errorf("documents: %+v", ops)
	}
	r := device.Rotary{HeadDim: 4, Table: &device.Frequencies{Inv: []float64{1}}, SeqLen: 32}
	for name, c := range map[string]struct {
		f     func()
		bytes float64
	}{
		"HeadNorm": {func() { s.HeadNorm(x, lse, x, single(1, 4), 4, 1e-6) }, 2*2*64*8 + 4*64*2 + 16},
		"HeadNormBackward": {func() { s.HeadNormBackward(x, single(1, 4), x, x, lse, single(1, 4), 4) },
			3*2*64*8 + 4*64*2 + 3*16},
		"Add":     {func() { s.Add(x, x) }, 3 * 2 * 64 * 8},
		"Scale":   {func() { s.Scale(x, x, 2) }, 2 * 2 * 64 * 8},
		"Dropout": {func() { s.Dropout(x, x, device.Drop{Rate: .5}) }, 2 * 2 * 64 * 8},
		"SoftCap": {func() { s.SoftCap(lse, lse, 2) }, 2 * 4 * 64 * 2},
		"Mix":     {func() { s.Mix(lse, lse, .5, 2, true) }, 4 * 4 * 64 * 2},
		"Project": {func() {
			ids := func(n int) device.Tensor { return s.Temp("ids", device.Activations, tensor.I32, 1, n) }
			w := device.Projection{Teacher: 2, Starts: ids(3), IDs: ids(2), Weights: single(1, 2)}
			s.(device.Projector).Project(lse, lse, w, ids(64), 2)
		}, 3*4*64*2 + 4*(3+2+2+64)},
		"DrawMany": {func() {
			keys := s.Temp("keys", device.Activations, tensor.I32, 3*64, 1)
			s.(device.ManyDrawer).DrawMany(single(64, 9), lse, keys, 2)
		}, 4 * (64*9 + 2*64*2 + 3*64)},
		"SquaredError":      {func() { s.SquaredError(lse, lse, lse, 2) }, 3 * 4 * 64 * 2},
		"Rotate":            {func() { s.Rotate(x, r) }, 2 * 2 * 64 * 8},
		"GLU":               {func() { s.GLU(k, x, device.GELUTanh) }, 2 * 64 * 12},
		"GLUBackward":       {func() { s.GLUBackward(x, k, x, device.GELUTanh) }, 2 * 64 * 20},
		"Rotate, positions": {func() { at := r; at.Positions = a.First; s.Rotate(x, at) }, 2*2*64*8 + 4*64},
	} {
		if got := cost(c.f); got.Launches != 1 || got.Bytes != c.bytes {
			t.Errorf("%s: %+v, want %g bytes", name, got, c.bytes)
		}
	}
}

// Adapters are recorded as their products, with the rank.
func TestLowRank(t *testing.T) {
	d := bf16()
	s := d.NewStream()
	of := func(t tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("t", device.Activations, t, rows, cols)
	}
	weight := func(rows, cols int) device.Weight {
		return d.Frozen(d.Alloc("w", device.StudentWeights, tensor.F32, rows, cols))
	}
	x, y, m, u, du := of(tensor.BF16, 64, 32), of(tensor.BF16, 64, 48), of(tensor.BF16, 64, 24), of(tensor.BF16, 64, 8), of(tensor.BF16, 64, 8)
	l := device.LowRank{A: weight(8, 32), GradA: of(tensor.F32, 8, 32), Parts: []device.LowRankPart{
		{Lo: 24, Hi: 48, To: 8, Scale: 2, B: weight(24, 8), GradB: of(tensor.F32, 24, 8)},
	}}
	s.LowRank(y, m, u, x, l, device.SiLU)
	s.LowRankWeightGrad(du, y, x, u, l)
	s.LowRankInputGrad(x, du, l, true)
	var got [][4]int
	for _, o := range d.Record().Ops {
		if o.Kind == device.OpGLU {
			continue
		}
		if o.Thin != 8 || !o.IsProduct() {
			t.Errorf("%v has rank %d", o.Kind, o.Thin)
		}
		got = append(got, [4]int{int(o.Kind), o.M, o.N, o.K})
	}
	want := [][4]int{
		{int(device.OpMatMul), 64, 8, 32}, {int(device.OpMatMul), 64, 24, 8}, {int(device.OpMatMulWeightGrad), 24, 8, 64},
		{int(device.OpMatMulInputGrad), 64, 8, 24}, {int(device.OpMatMulWeightGrad), 8, 32, 64}, {int(device.OpMatMulInputGrad), 64, 32, 8},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Mistakes that would destroy memory on a real device are found here.
func TestMistakesPanic(t *testing.T) {
	d := bf16()
	s := d.NewStream()
	x := s.Temp("x", device.Activations, tensor.BF16, 4, 4)
	gone := s.Temp("gone", device.Activations, tensor.BF16, 4, 4)
	s.Release(gone)
	held := d.Alloc("held", device.Batch, tensor.BF16, 4, 4)
	wide := x
	wide.Cols = 5
	wide.Stride = 5
	for name, f := range map[string]func(){
		"operand given back":  func() { s.Copy(x, gone) },
		"outside its buffer":  func() { s.Zero(wide) },
		"released twice":      func() { s.Release(gone) },
		"release of no temp":  func() { s.Release(held) },
		"free of a temp":      func() { d.Free(x) },
		"freed twice":         func() { h := d.Alloc("h", device.Batch, tensor.I32, 1, 1); d.Free(h); d.Free(h) },
		"shapes":              func() { s.GLU(x, x, device.SiLU) },
		"another device":      func() { s.Zero(device.Tensor{Buf: other{}, Rows: 1, Cols: 1, Stride: 1, DType: tensor.F32}) },
		"too large for int64": func() { s.Temp("t", device.Scratch, tensor.F32, 1<<40, 1<<40) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

type other struct{}

func (other) Bytes() int64        { return 4 }
func (other) Name() string        { return "other" }
func (other) State() device.State { return device.Lasting }

// TestGroupedScratch: a grouped product and its gradient take memory to expand experts in from so many slots on.
func TestGroupedScratch(t *testing.T) {
	for _, c := range []struct {
		name          string
		slots         int
		back          bool
		memory        int64
		forward, grad bool // what expands
	}{
		{"few slots", 8, true, 0, false, false}, {"many", 10, false, 512, true, false}, {"many and back", 10, true, 512, true, true},
	} {
		keep := func(device.WeightSpec) (Kept, error) {
			return Kept{Bytes: 1, Types: "q4_k", Expands: true, Scratch: 500, Reads: 8}, nil
		}
		d := New(Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Keep: keep, Align: 256})
		w, err := d.Weight(device.WeightSpec{Name: "w", Parts: []device.Source{matrix(t, tensor.Q4_K, 2*16, 256)}, Experts: 2})
		if err != nil {
			t.Fatal(err)
		}
		s := d.NewStream()
		temp := func(dtype tensor.DType, rows, cols int) device.Tensor {
			return s.Temp("t", device.Activations, dtype, rows, cols)
		}
		r := device.Routing{
			Experts: 2, Active: 2, Chosen: temp(tensor.I32, c.slots, 1), Slots: temp(tensor.I32, c.slots, 1), Rows: temp(tensor.I32, c.slots, 1), Starts: temp(tensor.I32, 3, 1),
		}
		x, y := temp(tensor.BF16, c.slots, 256), temp(tensor.BF16, c.slots, 16)
		s.GroupedMatMul(y, x, w, device.Tensor{}, r)
		if c.back {
			s.GroupedInputGrad(x, y, w, r, false)
		}
		record := d.Record()
		if record.Expand != c.memory {
			t.Errorf("%s: %d bytes, want %d", c.name, record.Expand, c.memory)
		}
		for _, o := range record.Ops {
			if want := o.Kind == device.OpGroupedMatMul && c.forward || o.Kind == device.OpGroupedInputGrad && c.grad; o.Expands != want {
				t.Errorf("%s: %v expands %v", c.name, o.Kind, o.Expands)
			}
		}
	}
}
