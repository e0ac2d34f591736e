package cuda

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"apr/device"
	"apr/device/arena"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/tensor"
)

// TestPieces: the pieces of a tensor are its elements, in order, none twice, and none larger than the limit.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		rows, cols, stride, limit, want int
	}{
		{0, 5, 5, 64, 0}, {5, 0, 7, 64, 0}, {1, 1, 9, 4, 1}, {3, 5, 5, 1000, 1}, {3, 5, 5, 16, 4}, {3, 5, 8, 1000, 1},
		{3, 5, 8, 40, 2}, {3, 5, 8, 20, 3}, {3, 5, 8, 16, 6}, {1, 10, 64, 16, 3}, {7, 4, 6, 33, 4},
	} {
		t.Run(fmt.Sprintf("%dx%d of %d in %d bytes", c.rows, c.cols, c.stride, c.limit), func(t *testing.T) {
			m := device.Tensor{Off: 3, Rows: c.rows, Cols: c.cols, Stride: c.stride, DType: tensor.F32}
			var got, want []int
			n := 0
			eachPiece(m, c.limit, func(p device.Tensor) {
				n++
				if 4*p.Rows*p.Cols > c.limit || p.Rows*p.Cols == 0 {
					t.Errorf("a piece of %d×%d", p.Rows, p.Cols)
				}
				for r := range p.Rows {
					for i := range p.Cols {
						got = append(got, p.Off+r*p.Stride+i)
					}
				}
			})
			for r := range c.rows {
				for i := range c.cols {
					want = append(want, 3+r*c.stride+i)
				}
			}
			if !slices.Equal(got, want) || n != c.want {
				t.Errorf("%d pieces with elements %v, want %d with %v", n, got, c.want, want)
			}
		})
	}
}

// TestEachNarrow: operands of another type than products take are rounded in pieces that fit the scratch memory, twice.
func TestEachNarrow(t *testing.T) {
	s := &Stream{dev: &Device{act: tensor.BF16}}
	const half = kernel.MaxScratch / 2
	for _, c := range []struct {
		d                tensor.DType
		rows, cols, want int
	}{
		{tensor.BF16, 1 << 30, 1 << 20, 1}, {tensor.F32, 0, 9, 0}, {tensor.F32, 7, 0, 1}, {tensor.F32, half / 2, 1, 1},
		{tensor.F32, half/2 + 1, 1, 2}, {tensor.F32, 1000, 151936, 10}, {tensor.F32, 3, half / 2, 3},
	} {
		n, end := 0, 0
		s.eachNarrow(device.Tensor{Rows: c.rows, Cols: c.cols, Stride: c.cols, DType: c.d}, func(lo, hi int) {
			if lo != end || hi <= lo || c.d != tensor.BF16 && 2*(hi-lo)*c.cols > half {
				t.Errorf("%d×%d: rows [%d,%d) after %d", c.rows, c.cols, lo, hi, end)
			}
			n, end = n+1, hi
		})
		if end != c.rows || n != c.want {
			t.Errorf("%d×%d: %d pieces up to row %d, want %d", c.rows, c.cols, n, end, c.want)
		}
	}
}

// TestPool: the oldest slab that has room is taken, and what was given back is found again.
func TestPool(t *testing.T) {
	p := &pool{first: 4096}
	if n := p.next(100); n != 4096 {
		t.Errorf("the first slab has %d bytes, want what was planned", n)
	}
	if n := p.next(5000); n != 5120 {
		t.Errorf("the first slab for a larger tensor has %d bytes, want 5120", n)
	}
	for i := range 2 {
		p.slabs = append(p.slabs, &slab{base: uint64(1+i) << 20, size: 1024, places: arena.New(alignment)})
	}
	if n := p.next(100); n != leastSlab {
		t.Errorf("a later slab has %d bytes", n)
	}
	var places []place
	for _, c := range []struct {
		bytes int64
		want  uint64 // 0: no room
	}{{300, 1 << 20}, {512, 1<<20 + 512}, {1, 2 << 20}, {1025, 0}, {1024, 0}, {768, 2<<20 + 256}, {1, 0}} {
		at, ok := p.find(c.bytes)
		if ok != (c.want != 0) || ok && at.address() != c.want {
			t.Errorf("%d bytes: %v, %v; want %#x", c.bytes, at, ok, c.want)
		}
		if ok {
			places = append(places, at)
		}
	}
	places[1].slab.places.Release(places[1].offset)
	if at, ok := p.find(500); !ok || at.address() != 1<<20+512 {
		t.Errorf("got %v, %v; want the place that was given back", at, ok)
	}
}

// TestKnownIDs: ids that the host uploaded are checked before an operation, those of the device are not known.
func TestKnownIDs(t *testing.T) {
	b := &buffer{name: "ids", size: 256}
	ids := func(off, n int) device.Tensor {
		return device.Tensor{Buf: b, Off: off, Rows: n, Cols: 1, Stride: 1, DType: tensor.I32}
	}
	all := ids(0, 6)
	s := &Stream{dev: &Device{}}
	if !s.known("Embed", all, 1) {
		t.Error("unknown ids were refused")
	}
	b.remember(all, []int32{0, 3, 1, 2, 7, -1})
	for _, c := range []struct {
		off, n, limit int
		at            string // of the first id outside; empty: none
	}{{0, 4, 4, ""}, {0, 4, 3, "position 1"}, {2, 2, 3, ""}, {2, 4, 4, "position 2"}, {2, 4, 8, "position 3"}, {4, 1, 8, ""}, {5, 0, 1, ""}} {
		s := &Stream{dev: &Device{}}
		ok := s.known("Embed", ids(c.off, c.n), c.limit)
		err := s.err.get()
		if ok != (c.at == "") || (err == nil) != ok {
			t.Errorf("ids [%d:+%d] below %d: %v, %v", c.off, c.n, c.limit, ok, err)
		}
		if f, is := err.(*fault.Error); is && (f.Place != c.at || f.Kind != fault.Invalid) {
			t.Errorf("ids [%d:+%d] below %d: %v, want %s", c.off, c.n, c.limit, err, c.at)
		}
	}
	b.remember(ids(1, 1), []int32{0})
	if !s.known("Embed", ids(0, 4), 3) {
		t.Error("an id that was replaced is still known")
	}
}

// TestShapes: the products of a step, as its dry record has them, are those that the stream asks for.
func TestShapes(t *testing.T) {
	d := &Device{act: tensor.BF16}
	planned := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16})
	s := planned.NewStream()
	temp := func(d tensor.DType, rows, cols int) device.Tensor {
		return s.Temp("t", device.Activations, d, rows, cols)
	}
	const n, in, out = 48, 64, 96
	p := planned.Param(device.ParamSpec{Name: "w", Rows: out, Cols: in})
	x, y, bias := temp(tensor.BF16, n, in), temp(tensor.BF16, n, out+16).ColRange(0, out), temp(tensor.F32, 1, out)
	s.SetScalars(device.Scalars{})
	s.MatMul(y, x, p.Weight, bias, false)
	s.MatMul(temp(tensor.F32, n, out), x, p.Weight, device.Tensor{}, true)
	s.MatMulInputGrad(x, y, p.Weight, true)
	s.MatMulWeightGrad(p.Grad, bias, y, x)
	s.MatMulWeightGrad(p.Grad, bias, temp(tensor.F32, n, out), x) // rounded first: its operands are in scratch
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := []blas.Shape{
		{Op: blas.NT, M: n, N: out, K: in, LDA: in, LDB: in, LDC: out + 16, In: tensor.BF16, Out: tensor.BF16, Bias: true, Aligned: true},
		{Op: blas.NT, M: n, N: out, K: in, LDA: in, LDB: in, LDC: out, In: tensor.BF16, Out: tensor.F32, Add: true, Aligned: true},
		{Op: blas.NN, M: n, N: in, K: out, LDA: out + 16, LDB: in, LDC: in, In: tensor.BF16, Out: tensor.BF16, Add: true, Aligned: true},
		{Op: blas.TN, M: out, N: in, K: n, LDA: out + 16, LDB: in, LDC: in, In: tensor.BF16, Out: tensor.F32, Aligned: true}, // the first of a step
		{Op: blas.TN, M: out, N: in, K: n, LDA: out + 16, LDB: in, LDC: in, In: tensor.BF16, Out: tensor.F32, Add: true, Aligned: true},
	}
	if got := d.shapes(planned.Record()); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestFusedIsNotPlanned: a product with SwiGLU is cublasLt's business only where no kernel does both.
func TestFusedIsNotPlanned(t *testing.T) {
	hopper, ampere := driver.DeviceInfo{Major: 9}, driver.DeviceInfo{Major: 8}
	for _, c := range []struct {
		name      string
		d         *Device
		n, in, f  int
		byLibrary bool
	}{
		{"fused", &Device{maps: true, desc: hopper}, 256, 64, 96, false},
		{"ampere", &Device{maps: true, desc: ampere}, 256, 64, 96, true},
		{"no tensor maps", &Device{desc: hopper}, 256, 64, 96, true},
		{"few rows", &Device{maps: true, desc: hopper}, fusedRows - 1, 64, 96, true},
		{"just enough rows", &Device{maps: true, desc: hopper}, fusedRows, 64, 96, false},
		{"x at odd places", &Device{maps: true, desc: hopper}, 256, 63, 96, true},
		{"u at an odd place", &Device{maps: true, desc: hopper}, 256, 64, 100, true},
	} {
		c.d.act = tensor.BF16
		planned := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16})
		s := planned.NewStream()
		temp := func(rows, cols int) device.Tensor { return s.Temp("t", device.Activations, tensor.BF16, rows, cols) }
		p := planned.Param(device.ParamSpec{Name: "w", Rows: 2 * c.f, Cols: c.in})
		s.MatMulGLU(temp(c.n, c.f), temp(c.n, 2*c.f), temp(c.n, c.in), p.Weight, device.SiLU, true)
		var want []blas.Shape
		if c.byLibrary {
			want = append(want, blas.Shape{
				Op: blas.NT, M: c.n, N: 2 * c.f, K: c.in, LDA: c.in, LDB: c.in, LDC: 2 * c.f, In: tensor.BF16, Out: tensor.BF16, Aligned: true,
			})
		}
		if got := c.d.shapes(planned.Record()); !slices.Equal(got, want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, want)
		}
	}
}

// TestThinIsNotPlanned: products of adapters that have kernels are not cublasLt's business, unless one of the step has none.
func TestThinIsNotPlanned(t *testing.T) {
	for _, c := range []struct {
		act      tensor.DType
		rank, in int
		planned  int
	}{
		{tensor.BF16, 8, 64, 0}, {tensor.BF16, 128, 64, 0}, {tensor.BF16, 136, 64, 8}, {tensor.BF16, 12, 64, 8}, {tensor.BF16, 8, 60, 8},
		{tensor.F32, 8, 64, 8},
	} {
		planned := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: c.act}, Matrices: c.act})
		s := planned.NewStream()
		temp := func(cols int) device.Tensor { return s.Temp("t", device.Activations, c.act, 256, cols) }
		a, b := planned.Param(device.ParamSpec{Name: "a", Rows: c.rank, Cols: c.in}), planned.Param(device.ParamSpec{Name: "b", Rows: 96, Cols: c.rank})
		l := device.LowRank{A: a.Weight, GradA: a.Grad, Parts: []device.LowRankPart{{Hi: 96, To: c.rank, Scale: 2, B: b.Weight, GradB: b.Grad}}}
		x, y, u := temp(c.in), temp(96), temp(c.rank)
		s.LowRank(y, device.Tensor{}, u, x, l, 0)
		s.LowRankWeightGrad(u, y, x, u, l)
		s.LowRankInputGrad(x, u, l, true)
		d := &Device{act: c.act, desc: driver.DeviceInfo{Major: 9}}
		if got := d.shapes(planned.Record()); len(got) != c.planned { // gradients of weights twice: the first overwrites
			t.Errorf("%+v: %d products are planned", c, len(got))
		}
	}
}

// TestFusesPlanned: a recorded product with its activation is one kernel if what is known of its operands allows it.
func TestFusesPlanned(t *testing.T) {
	d := &Device{maps: true, desc: driver.DeviceInfo{Major: 9}}
	for name, c := range map[string]struct {
		change func(*dry.Op)
		want   bool
	}{
		"as it is": {func(*dry.Op) {}, true}, "gu with gaps": {func(o *dry.Op) { o.OutStride += 8 }, true},
		"gu at odd places": {func(o *dry.Op) { o.OutStride++ }, false}, "x at odd places": {func(o *dry.Op) { o.InStride++ }, false},
		"float32 x": {func(o *dry.Op) { o.In = tensor.F32 }, false}, "float32 gu": {func(o *dry.Op) { o.Out = tensor.F32 }, false},
		"float32": {func(o *dry.Op) { o.In, o.Out = tensor.F32, tensor.F32 }, false},
		"GELU":    {func(o *dry.Op) { o.Act = device.GELUTanh }, true}, "clamped units": {func(o *dry.Op) { o.Act = device.OSS }, false},
	} {
		o := dry.Op{M: 256, N: 192, K: 64, InStride: 64, OutStride: 192, In: tensor.BF16, Out: tensor.BF16}
		c.change(&o)
		if got := d.fusesPlanned(o); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestOptionalModules: a record loads what its operations need beyond what all steps do, and nothing of it without them.
func TestOptionalModules(t *testing.T) {
	d := &Device{act: tensor.BF16, maps: true, desc: driver.DeviceInfo{Major: 9}}
	attention := func(a device.Attn) dry.Op {
		a.Batch, a.QLen, a.KLen, a.KStride, a.Heads, a.KVHeads = 1, 100, 100, 100, 2, 1
		return dry.Op{Kind: device.OpAttention, Attn: a}
	}
	gelu := dry.Op{Kind: device.OpMatMulGLU, Act: device.GELUTanh, M: 1, N: 2, K: 32, Expands: true} // a few rows: generation
	documents := attention(device.Attn{HeadDim: 128})
	documents.Documents = true
	sinks := attention(device.Attn{HeadDim: 64})
	sinks.Sinks = true
	many := func(kind device.Op, weight string, slots int) dry.Op {
		return dry.Op{Kind: kind, Weight: weight, In: tensor.BF16, Out: tensor.BF16, M: slots, N: 512, K: 256, InStride: 256, OutStride: 512, Experts: 4, Active: 2}
	}
	expanding := many(device.OpGroupedMatMul, "q4_k", 256)
	expanding.Expands = true
	cases := []struct {
		op   dry.Op
		want []string
	}{
		{dry.Op{Kind: device.OpHeadNorm}, []string{kernel.HeadNormModule}},
		{dry.Op{Kind: device.OpHeadNormBackward}, []string{kernel.HeadNormModule}},
		{dry.Op{Kind: device.OpAdd}, []string{kernel.PointwiseModule}},
		{dry.Op{Kind: device.OpScale}, []string{kernel.PointwiseModule}},
		{dry.Op{Kind: device.OpSoftCap}, []string{kernel.PointwiseModule}},
		{dry.Op{Kind: device.OpAttendPages}, []string{kernel.PagesModule}},
		{dry.Op{Kind: device.OpDropout}, []string{kernel.DropoutModule}},
		{dry.Op{Kind: device.OpMatMul, M: 64, N: 8, K: 64, Thin: 8},
			[]string{kernel.LowRankModule, kernel.PointwiseModule, kernel.SwiGLULowModule}},
		{gelu, []string{"geglu"}},
		{dry.Op{Kind: device.OpGLU, Act: device.OSS}, []string{"clampglu"}},
		{dry.Op{Kind: device.OpGLUBackward, Act: device.Sigmoid}, []string{"sigmoidglu"}},
		{dry.Op{Kind: device.OpDeinterleave}, []string{kernel.TurnsModule}},
		{dry.Op{Kind: device.OpInterleave}, []string{kernel.TurnsModule}},
		{dry.Op{Kind: device.OpRotate, Partial: true}, []string{kernel.RotaryPartModule}},
		{dry.Op{Kind: device.OpLoss, Capped: true}, []string{kernel.LossCappedModule}},
		{dry.Op{Kind: device.OpMatMulGLU, Act: device.GELUTanh, M: 64, N: 256, K: 64, In: tensor.BF16, Out: tensor.BF16, InStride: 64, OutStride: 256}, []string{"geglu", "gemm_geglu_sm90"}},
		{attention(device.Attn{HeadDim: 128, Window: 9}), []string{"attention_d128", "attention_limited_d128", "attention_limited_sm90"}},
		{attention(device.Attn{HeadDim: 128, Cap: 9}), []string{"attention_limited_d128", "attention_decode_capped"}},
		{attention(device.Attn{HeadDim: 256}), []string{"attention_limited_d256", "attention_limited_sm90"}},
		{attention(device.Attn{HeadDim: 512}), []string{"attention_limited"}},
		{documents, []string{"attention_limited_d128"}},
		{sinks, []string{kernel.SinksModule}},
		{dry.Op{Kind: device.OpRoute}, []string{kernel.ExpertsModule}},
		{dry.Op{Kind: device.OpBalanceBackward}, []string{kernel.ExpertsModule}},
		{dry.Op{Kind: device.OpGroupedMatMul, Weight: "q6_k", M: 80, Active: 8}, []string{"experts_blocks"}},
		{dry.Op{Kind: device.OpGroupedMatMul, Weight: "bf16", M: 16, Active: 8}, []string{"experts_rows", "experts_gemm"}},
		{dry.Op{Kind: device.OpGroupedInputGrad, Weight: "bf16", M: 80, Active: 8}, []string{"experts_gemm"}},
		{dry.Op{Kind: device.OpGroupedWeightGrad}, []string{kernel.ExpertsModule, "experts_gemm"}},
		{expanding, []string{kernel.ExpertsSM90Module}},
		{many(device.OpGroupedMatMul, "q4_k", 255), []string{"experts_blocks"}},
		{many(device.OpGroupedInputGrad, "bf16", 256), []string{kernel.ExpertsSM90Module}},
	}
	loaded := func(ops ...dry.Op) map[string]bool {
		r, all := &dry.Record{}, map[string]bool{}
		for _, o := range ops {
			r.Ops = append(r.Ops, dry.Count{Op: o, Times: 1})
		}
		u := d.usesOf(r)
		for _, m := range d.modules(&u) {
			all[m.Name] = true
		}
		return all
	}
	plain := loaded(attention(device.Attn{HeadDim: 64}), dry.Op{Kind: device.OpRotate}, dry.Op{Kind: device.OpLoss}, dry.Op{Kind: device.OpGLU})
	for _, c := range cases {
		all := loaded(c.op)
		for _, name := range c.want {
			if !all[name] || plain[name] {
				t.Errorf("%+v: %s is loaded %v, without %v", c.op, name, all[name], plain[name])
			}
		}
	}
	tf32 := &Device{act: tensor.F32, opts: Options{Compute: TF32}, maps: true, desc: d.desc}
	head := tf32.usesOf(&dry.Record{Ops: []dry.Count{{Op: attention(device.Attn{HeadDim: 64}), Times: 1}}}).modules
	if !head["attention_tf32_d64"] || head["attention_plain"] || plain["attention_tf32_d64"] {
		t.Errorf("attention in tf32 takes the modules %v", head)
	}
	one := dry.Op{Kind: device.OpMatMul, M: 1, N: 2, K: 32, Expands: true, Direct: true}
	if loaded(one)[kernel.VariantsModule] || !loaded(one, cases[0].op)[kernel.VariantsModule] || loaded(cases[0].op)[kernel.VariantsModule] {
		t.Error("the one launch of a token with norms of heads is loaded where it is not needed, or not where it is")
	}
	r := &dry.Record{Ops: []dry.Count{{Op: one, Times: 1}, {Op: cases[0].op, Times: 1}}}
	for act, want := range map[device.Activation]bool{device.SiLU: false, device.GELUTanh: true} {
		decode := qwen2Decoding()
		decode.Layers[1].Act, r.Decode = act, &decode
		u := d.usesOf(r)
		if u.modules[kernel.GeneralModule] != want || u.modules[kernel.VariantsModule] == want {
			t.Errorf("the one launch of a token with %v takes the modules %v", act, u.modules)
		}
	}
	decode := qwen2Decoding()
	for i := range decode.Layers {
		l := &decode.Layers[i]
		l.Experts, l.GateUp, l.Down = &device.DecodeExperts{Down: l.Down}, nil, nil
	}
	r.Decode = &decode
	if u := d.usesOf(r); !u.modules[kernel.DecodeExpertsModule] || u.modules[kernel.VariantsModule] {
		t.Errorf("the one launch of a token of a model of experts takes the modules %v", u.modules)
	}
	for types, want := range map[string][2]bool{"q4_k+q6_k": {true, false}, "q8_0": {false, true}, "q4_k+q5_0": {true, true}} { // K, one group
		few := dry.Op{Kind: device.OpMatMul, M: 9, N: 16, K: 256, Weight: types, Expands: true, Direct: true, Arranged: true}
		all := loaded(few)
		few.Direct, few.Arranged = false, false
		none := loaded(few)
		got := [2]bool{all["gemm_tiles_k_sm90"] && all["gemm_tiles_c_sm90"], all["gemm_tiles_g_sm90"]}
		if got != want || none["gemm_tiles_k_sm90"] || none["gemm_tiles_c_sm90"] || none["gemm_tiles_g_sm90"] {
			t.Errorf("products with tiles of %s: modules %v, want %v, and none where the matrix is expanded", types, got, want)
		}
	}
}

// ofHeads64 are the modules of attention with heads of 64 values.
func ofHeads64(act tensor.DType) map[string]bool {
	all := map[string]bool{}
	for _, m := range kernel.AttentionModules(device.Attn{Batch: 1, QLen: 64, KLen: 64, KStride: 64, Heads: 1, KVHeads: 1, HeadDim: 64}, false, act, false) {
		all[m] = true
	}
	return all
}

// TestModules: a step loads the attention of its head dimension and the products of its type, and nothing for other cards.
func TestModules(t *testing.T) {
	d := &Device{act: tensor.BF16, desc: driver.DeviceInfo{Major: 8, Minor: 6}}
	names := func(u *uses) (all []string) {
		for _, m := range d.modules(u) {
			all = append(all, m.Name)
			if m.Target != "sm_80" {
				t.Errorf("%s is for %s", m.Name, m.Target)
			}
		}
		return all
	}
	all, some := names(nil), names(&uses{modules: ofHeads64(d.act), trains: true})
	for _, name := range []string{"move", "norm", "rotary", "swiglu", "loss", "optim", "embedding", "columns", "gemm", "attention_d64"} {
		if !slices.Contains(all, name) || !slices.Contains(some, name) {
			t.Errorf("%s is not loaded: %v, %v", name, all, some)
		}
	}
	for _, name := range []string{"dequant", "gemv"} {
		if !slices.Contains(all, name) || slices.Contains(some, name) {
			t.Errorf("%s: of all %v, without blocks %v", name, all, some)
		}
	}
	blocks := names(&uses{blocks: true})
	if !slices.Contains(blocks, "dequant") || slices.Contains(blocks, "gemv") || !slices.Contains(names(&uses{decode: true}), "gemv") {
		t.Errorf("with blocks %v", blocks)
	}
	generation := names(&uses{modules: ofHeads64(d.act), generates: true})
	for name, want := range map[string]bool{"gemv": true, "gemv_blocks": false, "attention_d64": true, "loss": false, "optim": false, "embedding": false, "columns": false} {
		if slices.Contains(generation, name) != want {
			t.Errorf("generation: %s is loaded: %v", name, !want)
		}
	}
	d = &Device{act: tensor.BF16, maps: true, desc: driver.DeviceInfo{Major: 9}}
	f32 := &Device{act: tensor.F32, maps: true, desc: driver.DeviceInfo{Major: 9}}
	has := func(d *Device) bool {
		return slices.ContainsFunc(d.modules(nil), func(m kernel.Module) bool { return m.Name == "gemm_swiglu_sm90" })
	}
	if !has(d) || has(f32) {
		t.Errorf("the product with SwiGLU is loaded: %v in bfloat16, %v in float32", has(d), has(f32))
	}
	if slices.Contains(all, "gemm_f32") || !slices.Contains(all, "attention_d128") || slices.Contains(some, "attention_d128") {
		t.Errorf("loaded %v, and %v for heads of 64", all, some)
	}
}

// TestRunsOf: parts are joined where type and place allow it, and no row is lost.
func TestRunsOf(t *testing.T) {
	const cols, bytes = 512, 2 * 144
	at := func(first, rows int, ptr uint64, d tensor.DType) kept {
		return kept{first: first, rows: rows, blocks: kernel.NewBlocks(ptr, rows, cols, d)}
	}
	dense := kept{first: 24, rows: 8, dense: kernel.Mat{Ptr: 4096, Rows: 8, Cols: cols, Stride: cols, Type: tensor.BF16}}
	q, k := at(0, 16, 1024, tensor.Q4_K), at(16, 8, 1024+16*bytes, tensor.Q4_K)
	for _, c := range []struct {
		name  string
		parts []kept
		want  []int // rows
	}{
		{"one", []kept{q}, []int{16}},
		{"two", []kept{q, k}, []int{24}},
		{"three", []kept{q, k, at(24, 8, 1024+24*bytes, tensor.Q4_K)}, []int{32}},
		{"a gap", []kept{q, at(16, 8, 1280+16*bytes, tensor.Q4_K)}, []int{16, 8}},
		{"another type", []kept{q, at(16, 8, 1024+16*bytes, tensor.Q5_K)}, []int{16, 8}},
		{"two, then dense", []kept{q, k, dense}, []int{24, 8}},
		{"dense first", []kept{dense, q, k}, []int{8, 24}},
	} {
		before := slices.Clone(c.parts)
		got := runsOf(c.parts)
		var rows []int
		for _, r := range got {
			rows = append(rows, r.rows)
			if r.dense.IsZero() && r.blocks.Rows != r.rows {
				t.Errorf("%s: %d rows of blocks for %d", c.name, r.blocks.Rows, r.rows)
			}
		}
		if !slices.Equal(rows, c.want) || !slices.Equal(c.parts, before) {
			t.Errorf("%s: rows %v, want %v", c.name, rows, c.want)
		}
	}
}

// TestSlabExperts: all experts come in slabs that fit, of nearly the same size.
func TestSlabExperts(t *testing.T) {
	for _, c := range []struct {
		experts    int
		each, size int64
		want       int
	}{{128, 3 << 20, 288 << 20, 64}, {32, 2880 * 2880 * 2, 288 << 20, 16}, {4, 100, 400, 4}, {4, 100, 399, 2}, {5, 100, 200, 2}, {3, 100, 1, 1}} {
		if got := slabExperts(c.experts, c.each, c.size); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
