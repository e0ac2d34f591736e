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

// matrix makes a frozen matrix [Σ rows, cols] whose parts are of these types.
func (b *few) matrix(t *testing.T, cols int, rows []int, types []tensor.DType) device.Weight {
	t.Helper()
	var parts []device.Source
	for i, d := range types {
		v := make([]float32, rows[i]*cols)
		for j := range v {
			v[j] = float32(b.rng.NormFloat64() / 8)
		}
		s := stacked{tensor.Info{Name: "w", DType: d, Shape: []int{rows[i], cols}}, make([]byte, int(d.RowBytes(len(v))))}
		s.info.Size = int64(len(s.bytes))
		if !d.IsQuantized() {
			tensor.Narrow(s.bytes, v, d)
		} else if err := quant.Quantize(s.bytes, v, d); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, s)
	}
	w, err := b.d.Weight(device.WeightSpec{
		Name: "w", Component: device.TeacherWeights, Parts: parts, Form: device.Form{Blocks: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// same reports whether two tensors have the same values, of which not all are zero.
func (b *few) same(t *testing.T, got, want device.Tensor) bool {
	t.Helper()
	x, z := make([]float32, got.Rows*got.Cols), make([]float32, want.Rows*want.Cols)
	for v, from := range map[*[]float32]device.Tensor{&x: got, &z: want} {
		if err := b.s.Download(*v, from); err != nil {
			t.Fatal(err)
		}
	}
	return slices.Equal(x, z) && slices.ContainsFunc(x, func(v float32) bool { return v != 0 })
}

// launches returns how many f makes.
func (b *few) launches(t *testing.T, f func()) int64 {
	t.Helper()
	if _, err := b.s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := b.d.Stats().Launches
	f()
	if _, err := b.s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b.d.Stats().Launches - before
}

// TestNormRead: a product that makes the norm it reads has the bits of the norm and the product, and leaves the norm
// to others; of a matrix that is not in blocks there is none.
func TestNormRead(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	q4, q6, q8, bf16 := tensor.Q4_K, tensor.Q6_K, tensor.Q8_0, tensor.BF16
	for i, c := range []struct {
		cols     int
		rows     []int
		types    []tensor.DType
		out      tensor.DType
		bias     bool
		launches int64
	}{
		{1024, []int{9}, []tensor.DType{bf16}, bf16, true, 0},
		{512, []int{40, 8, 8}, []tensor.DType{q4, q4, q6}, bf16, true, 1},
		{2304, []int{19}, []tensor.DType{q6}, bf16, false, 1},
		{2048, []int{48, 16, 16}, []tensor.DType{q4, q4, q6}, bf16, true, 1},
		{4096, []int{32}, []tensor.DType{q8}, tensor.F32, false, 1},
		{4608, []int{7, 5}, []tensor.DType{q8, q4}, bf16, true, 2},
		{8192, []int{3}, []tensor.DType{tensor.MXFP4}, bf16, false, 1},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(7, uint64(i)))}
			w, rows := b.matrix(t, c.cols, c.rows, c.types), 0
			for _, n := range c.rows {
				rows += n
			}
			x, weight := b.typed(bf16, 1, c.cols, 3), b.values(1, c.cols, 1)
			var none, bias device.Tensor
			if c.bias {
				bias = b.values(1, rows, 1)
			}
			for _, tiles := range []bool{false, true} {
				if tiles {
					b.s.Arrange(2, w)
				}
				y, z := b.typed(bf16, 1, c.cols, 1), b.typed(c.out, 1, rows, 1)
				wantY, want := b.typed(bf16, 1, c.cols, 1), b.typed(c.out, 1, rows, 1)
				b.s.RMSNorm(wantY, none, none, x, none, weight, 1e-5)
				b.s.MatMul(want, wantY, w, bias, false)
				n := device.Normed{Y: y, X: x, W: weight, Eps: 1e-5}
				ok := false
				if got := b.launches(t, func() { ok = b.s.NormMatMul(z, n, bias, w) }); got != c.launches {
					t.Errorf("%d launches, want %d", got, c.launches)
				}
				if ok != (c.launches > 0) {
					t.Errorf("served: %v", ok)
				}
				if !ok {
					continue
				}
				if !b.same(t, y, wantY) {
					t.Errorf("the norm differs, in tiles %v", tiles)
				}
				if !b.same(t, z, want) {
					t.Errorf("the product differs, in tiles %v", tiles)
				}
			}
		})
	}
}

// TestNormReadMany: a norm is read by several matrices in one launch, in the bits of a product with each; by none if
// one is not in blocks, or in tiles alone.
func TestNormReadMany(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(7, 7))}
	const cols = 512
	small := b.matrix(t, cols, []int{16, 16}, []tensor.DType{tensor.Q4_K, tensor.Q4_K})
	large := b.matrix(t, cols, []int{64, 48}, []tensor.DType{tensor.Q4_K, tensor.Q6_K})
	dense := b.matrix(t, cols, []int{8}, []tensor.DType{tensor.BF16})
	x, weight := b.typed(tensor.BF16, 1, cols, 3), b.values(1, cols, 1)
	var none device.Tensor
	check := func(launches int64, ws ...device.Weight) {
		t.Helper()
		rows := 0
		for _, w := range ws {
			rows += w.Rows()
		}
		wantY, want := b.typed(tensor.BF16, 1, cols, 1), b.typed(tensor.BF16, 1, rows, 1)
		b.s.RMSNorm(wantY, none, none, x, none, weight, 1e-5)
		first := 0
		for _, w := range ws {
			b.s.MatMul(want.ColRange(first, first+w.Rows()), wantY, w, none, false)
			first += w.Rows()
		}
		y, z := b.typed(tensor.BF16, 1, cols, 1), b.typed(tensor.BF16, 1, rows, 1)
		n, ok := device.Normed{Y: y, X: x, W: weight, Eps: 1e-5}, false
		if got := b.launches(t, func() { ok = b.s.NormMatMul(z, n, none, ws...) }); got != launches || ok != (launches > 0) {
			t.Errorf("%d launches, want %d; served: %v", got, launches, ok)
		}
		if ok && (!b.same(t, y, wantY) || !b.same(t, z, want)) {
			t.Error("bits differ")
		}
	}
	check(1, small, large)
	check(0, small, dense)
	b.s.Arrange(2, large)
	check(0, small, large)
	b.s.Arrange(2, small)
	check(1, small, large)
}

// TestNormReadGLU: the same of a product with its gated unit, of matrices in blocks and in tiles; others are declined.
func TestNormReadGLU(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for i, c := range []struct {
		cols, half int
		kind       tensor.DType
		act        device.Activation
		keep, ok   bool
	}{
		{512, 48, tensor.Q4_K, device.SiLU, true, true}, {4096, 16, tensor.Q6_K, device.SiLU, true, true},
		{96, 32, tensor.Q8_0, device.SiLU, false, true},
		{512, 48, tensor.Q4_K, device.GELUTanh, true, false}, {512, 48, tensor.BF16, device.SiLU, true, false},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(8, uint64(i)))}
			w := b.matrix(t, c.cols, []int{c.half, c.half}, []tensor.DType{c.kind, c.kind})
			x, weight := b.typed(tensor.BF16, 1, c.cols, 3), b.values(1, c.cols, 1)
			acts := func(cols int) device.Tensor { return b.typed(tensor.BF16, 1, cols, 1) }
			for _, tiles := range []bool{false, true} {
				if tiles {
					b.s.Arrange(2, w)
				}
				var none device.Tensor
				y, gu, m := acts(c.cols), acts(2*c.half), acts(c.half)
				wantY, wantGU, want := acts(c.cols), acts(2*c.half), acts(c.half)
				b.s.RMSNorm(wantY, none, none, x, none, weight, 1e-6)
				b.s.MatMulGLU(want, wantGU, wantY, w, c.act, c.keep)
				ok := false
				n := b.launches(t, func() {
					ok = b.s.NormMatMulGLU(m, gu, device.Normed{Y: y, X: x, W: weight, Eps: 1e-6}, w, c.act, c.keep)
				})
				if ok != c.ok || ok && n != 1 || !ok && n != 0 {
					t.Fatalf("served %v by %d launches", ok, n)
				}
				if ok && !(b.same(t, y, wantY) && b.same(t, m, want) && (!c.keep || b.same(t, gu, wantGU))) {
					t.Errorf("bits differ, in tiles %v", tiles)
				}
			}
		})
	}
}

// TestNormRoute: a norm, the router's product and the choice by one kernel have the bits of three operations, again
// and again.
func TestNormRoute(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for i, c := range []struct {
		cols, experts, active int
		renorm, bias, scale   bool
	}{
		{2048, 128, 8, true, false, false}, {2880, 32, 4, true, true, false}, {72, 5, 5, false, false, true},
		{8192, 3, 1, false, true, true}, {256, 256, 32, true, false, false},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(9, uint64(i)))}
			w := b.matrix(t, c.cols, []int{c.experts}, []tensor.DType{tensor.BF16})
			var none, bias, scale device.Tensor
			if c.bias {
				bias = b.values(1, c.experts, 1)
			}
			if c.scale {
				scale = b.values(1, c.experts, 1)
			}
			ints := func(n int) device.Tensor { return b.d.Alloc("slots", device.Batch, tensor.I32, n, 1) }
			route := func() device.Routing {
				return device.Routing{
					Experts: c.experts, Active: c.active, Renorm: c.renorm,
					Chosen: ints(c.active), Slots: ints(c.active), Rows: ints(c.active), Starts: ints(c.experts + 1),
				}
			}
			weight, r, wantR := b.values(1, c.cols, 1), route(), route()
			for range 2 {
				x := b.typed(tensor.BF16, 1, c.cols, 3)
				y, z, p := b.typed(tensor.BF16, 1, c.cols, 1), b.values(1, c.experts, 1), b.values(1, c.active, 1)
				wantY, wantZ, wantP := b.typed(tensor.BF16, 1, c.cols, 1), b.values(1, c.experts, 1), b.values(1, c.active, 1)
				b.s.RMSNorm(wantY, none, none, x, none, weight, 1e-6)
				b.s.MatMul(wantZ, wantY, w, bias, false)
				b.s.Route(wantP, wantZ, scale, wantR)
				n := device.Normed{Y: y, X: x, W: weight, Eps: 1e-6}
				if got := b.launches(t, func() {
					if !b.s.NormRoute(p, z, n, w, bias, scale, r) {
						t.Error("the device has no such operation")
					}
				}); got != 1 {
					t.Errorf("%d launches", got)
				}
				pairs := map[string][2]device.Tensor{"norm": {y, wantY}, "logits": {z, wantZ}, "weights": {p, wantP}}
				for name, pair := range pairs {
					if !b.same(t, pair[0], pair[1]) {
						t.Errorf("%s differ", name)
					}
				}
				// Numbers come to the host by the experts that they choose.
				one := func(r device.Routing) (all []float32) {
					ids := b.values(c.experts+1, 1, 1)
					v := make([]float32, c.experts+1)
					for i := range v {
						v[i] = float32(i)
					}
					b.s.Upload(ids, v)
					for _, rows := range []device.Tensor{r.Chosen, r.Slots, r.Rows, r.Starts} {
						to := b.values(rows.Rows, 1, 1)
						b.s.Gather(to, ids, rows)
						got := make([]float32, rows.Rows)
						if err := b.s.Download(got, to); err != nil {
							t.Fatal(err)
						}
						all = append(all, got...)
					}
					return all
				}
				if got, want := one(r), one(wantR); !slices.Equal(got, want) {
					t.Errorf("routed %v, want %v", got, want)
				}
			}
		})
	}
}
