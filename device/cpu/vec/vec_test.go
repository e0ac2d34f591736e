package vec

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/internal/fault"
	"apr/internal/near"
	"apr/tensor"
)

func Example() {
	isa := Best()
	x := []float32{1, 2, 3}
	isa.Add(x, []float32{10, 20, 30})
	fmt.Println(x, isa.Max(x), isa.Index(x, 22))
	// Output: [11 22 33] 33 1
}

// lengths cover every tail of both vector lengths, unrolled loops and the blocks of the loss.
func lengths() []int {
	var n []int
	for i := range 70 {
		n = append(n, i)
	}
	return append(n, 127, 256, 1000, 1024, 1025, 4096, 4099)
}

// forEach runs body for every instruction set and length, with a source of arrays.
func forEach(t *testing.T, body func(t *testing.T, isa ISA, n int, r *arrays)) {
	for _, isa := range Available() {
		t.Run(isa.String(), func(t *testing.T) {
			for _, n := range lengths() {
				r := &arrays{rng: rand.New(rand.NewPCG(uint64(n), 1))}
				body(t, isa, n, r)
				r.check(t, n)
				if t.Failed() {
					t.Fatalf("at length %d", n)
				}
			}
		})
	}
}

// arrays makes slices inside larger ones, whose other elements must not change.
type arrays struct {
	rng  *rand.Rand
	made [][]float32
}

const guard = 32

func (r *arrays) make(n int, value func() float32) []float32 {
	all := make([]float32, n+2*guard)
	for i := range all {
		all[i] = 12345
	}
	r.made = append(r.made, all)
	x := all[guard+1 : guard+1+n] // not aligned
	for i := range x {
		x[i] = value()
	}
	return x
}

func (r *arrays) normal(n int) []float32 {
	return r.make(n, func() float32 { return float32(r.rng.NormFloat64()) })
}

func (r *arrays) logits(n int) []float32 {
	return r.make(n, func() float32 { return float32(3*r.rng.NormFloat64() + 5) })
}

func (r *arrays) copy(x []float32) []float32 {
	i := 0
	return r.make(len(x), func() float32 { i++; return x[i-1] })
}

func (r *arrays) check(t *testing.T, n int) {
	t.Helper()
	for _, all := range r.made {
		for i, v := range all {
			if (i <= guard || i > guard+n) && v != 12345 && len(all) == n+2*guard {
				t.Fatalf("element %d beside %d elements was overwritten with %g", i-guard-1, n, v)
			}
		}
	}
}

// sumTol bounds the error of a float64 sum against the sum of the magnitudes.
func sumTol(n int) float64 { return 1e-13 * float64(n+1) * 30 }

func TestSums(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		a, b, c := r.normal(n), r.normal(n), r.normal(n)
		near.Check(t, "Dot", []float64{isa.Dot(a, b)}, []float64{dot(a, b)}, sumTol(n))
		near.Check(t, "Dot3", []float64{isa.Dot3(a, b, c)}, []float64{dot3(a, b, c)}, sumTol(n))
		near.Check(t, "SumSquares", []float64{isa.SumSquares(a)}, []float64{sumSquares(a)}, sumTol(n))
		dst, want := r.normal(n), r.normal(n)
		near.Check(t, "AddSumSquares", []float64{isa.AddSumSquares(dst, a, b)}, []float64{addSumSquares(want, a, b)}, sumTol(n))
		near.Check(t, "x+delta", dst, want, 0)
		if got, want := isa.Max(a), maximum(a); got != want {
			t.Errorf("Max = %g, want %g", got, want)
		}
	})
}

func TestSumSquaresOfExtremes(t *testing.T) {
	for _, isa := range Available() {
		x := []float32{1e30, 1e-30, -1e30}
		near.CheckRel(t, isa.String(), []float64{isa.SumSquares(x)}, []float64{sumSquares(x)}, 1e-15)
	}
}

func TestIndex(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		x := r.make(n, func() float32 { return 1 })
		if got := isa.Index(x, 2); got != -1 {
			t.Errorf("Index of nothing = %d", got)
		}
		if got := isa.Index(x, 0); got != -1 { // tails must not look like zeros
			t.Errorf("Index(0) = %d", got)
		}
		for _, at := range []int{n - 1, n / 2, 0} {
			if n == 0 {
				break
			}
			x[at] = 2
			if got := isa.Index(x, 2); got != at {
				t.Errorf("Index = %d, want %d", got, at)
			}
		}
	})
}

func TestPointwise(t *testing.T) {
	const tol = 4e-7 // a few roundings
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		a, b := r.normal(n), r.normal(n)
		got, want := r.copy(a), r.copy(a)
		isa.Add(got, b)
		add(want, b)
		near.Check(t, "Add", got, want, 0)
		isa.Scale(got, 1.7)
		scale(want, 1.7)
		near.Check(t, "Scale", got, want, 0)
		isa.NormScale(got, a, b, 0.3)
		normScale(want, a, b, 0.3)
		near.Check(t, "NormScale", got, want, 0)

		dx, dw := r.copy(a), r.copy(b)
		wx, ww := r.copy(a), r.copy(b)
		dy, x, w := r.normal(n), r.normal(n), r.normal(n)
		isa.NormGrad(dx, dw, dy, x, w, 0.7, 0.2)
		normGrad(wx, ww, dy, x, w, 0.7, 0.2)
		near.CheckRel(t, "NormGrad dx", dx, wx, tol)
		near.CheckRel(t, "NormGrad dw", dw, ww, tol)

		isa.SiluMul(got, a, b)
		siluMul(want, a, b)
		near.CheckRel(t, "SiluMul", got, want, tol)
		wg, wu := r.normal(n), r.normal(n)
		siluMulGrad(wg, wu, dy, a, b)
		isa.SiluMulGrad(a, b, dy, a, b)
		near.CheckRel(t, "SiluMulGrad dg", a, wg, tol)
		near.CheckRel(t, "SiluMulGrad du", b, wu, tol)
	})
}

func TestGelu(t *testing.T) {
	const tol = 2e-6 // a rounding of the cubic in the exponential counts as often as its size
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		g := r.make(n, func() float32 { return float32(3 * r.rng.NormFloat64()) })
		u, dm := r.normal(n), r.normal(n)
		got, want := r.normal(n), r.normal(n)
		isa.GeluMul(got, g, u)
		geluMul(want, g, u)
		near.CheckRel(t, "GeluMul", got, want, tol)
		wg, wu := r.normal(n), r.normal(n)
		geluMulGrad(wg, wu, dm, g, u)
		isa.GeluMulGrad(g, u, dm, g, u)
		near.CheckRel(t, "GeluMulGrad dg", g, wg, tol)
		near.CheckRel(t, "GeluMulGrad du", u, wu, tol)
	})
}

// Far out the gate is open or shut, and nothing of g³ is left that could overflow.
func TestGeluFarOut(t *testing.T) {
	g := []float32{-1e30, -1e13, -100, -12, 12, 100, 1e13, 1e30}
	one := []float32{1, 1, 1, 1, 1, 1, 1, 1}
	for _, isa := range Available() {
		m, dg, du := make([]float32, 8), make([]float32, 8), make([]float32, 8)
		isa.GeluMul(m, g, one)
		isa.GeluMulGrad(dg, du, one, g, one)
		for i, v := range g {
			open, slope := v, float32(1)
			if v < 0 {
				open, slope = 0, 0
			}
			if m[i] != open || dg[i] != slope || du[i] != open {
				t.Errorf("%v: gelu(%g) = %g with slope %g, and %g", isa, v, m[i], dg[i], du[i])
			}
		}
	}
}

func TestSoftCap(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		for _, size := range []float64{1e-3, 1, 30, 1e4} {
			x := r.make(n, func() float32 { return float32(size * r.rng.NormFloat64()) })
			y, grad, want := r.normal(n), r.normal(n), r.normal(n)
			wantGrad := r.copy(grad)
			isa.SoftCap(y, x, 30)
			softCap(want, x, 30)
			near.CheckRel(t, "SoftCap", y, want, 4e-7)
			isa.CapGrad(grad, want, 30)
			capGrad(wantGrad, want, 30)
			near.CheckRel(t, "CapGrad", grad, wantGrad, 4e-7)
			isa.SoftCap(x, x, 30)
			near.Check(t, "SoftCap in place", x, y, 0)
		}
	})
}

// TestTanh sweeps tanh, which is the soft-cap at 1, and compares with float64 in units in the last place.
func TestTanh(t *testing.T) {
	var x []float32
	for v := 1e-6; v < 12; v *= 1.0007 {
		x = append(x, float32(v), -float32(v))
	}
	x = append(x, 0, 0.624999, 0.625, 0.625001, 50, -1e30, float32(math.Inf(1)))
	for _, isa := range Available() {
		y, worst := make([]float32, len(x)), 0.0
		isa.SoftCap(y, x, 1)
		for i, v := range x {
			want := math.Tanh(float64(v))
			err := 0.0
			if want != 0 || y[i] != 0 {
				err = math.Abs(float64(y[i])-want) / math.Exp2(math.Floor(math.Log2(math.Abs(want)))-23)
			}
			if !(err <= 3) {
				t.Errorf("%v: tanh(%g) = %g, want %g: %.2f units", isa, v, y[i], want, err)
			}
			worst = max(worst, err)
		}
		t.Logf("%v: tanh within %.3f units in the last place", isa, worst)
		nan := []float32{float32(math.NaN())}
		if isa.SoftCap(nan, nan, 1); nan[0] == nan[0] {
			t.Errorf("%v: NaN got lost", isa)
		}
	}
}

func TestRotate(t *testing.T) {
	for _, isa := range Available() {
		for half := 1; half <= 70; half++ {
			r := &arrays{rng: rand.New(rand.NewPCG(uint64(half), 1))}
			x, cos, sin := r.normal(2*half*3), r.normal(half), r.normal(half)
			want := append([]float32(nil), x...)
			isa.Rotate(x, cos, sin, 3)
			rotate(want, cos, sin, 3)
			near.CheckRel(t, fmt.Sprint(isa, " half ", half), x, want, 4e-7)
			r.check(t, 6*half)
		}
	}
}

// TestExp sweeps the whole range and compares with float64 in units in the last place.
func TestExp(t *testing.T) {
	var x []float32
	for v := -110.0; v < 92; v += 0.00137 {
		x = append(x, float32(v))
	}
	x = append(x, 0, float32(math.Inf(-1)), -87.33655, -103.97, -104.1, 88.72283, 1e-30, -1e-30, -1e30, -3e38)
	for _, isa := range Available() {
		got := make([]float32, len(x))
		isa.ExpSum(got, x, 0)
		worst := 0.0
		for i, v := range x {
			want := math.Exp(float64(v))
			if want > math.MaxFloat32 {
				if !math.IsInf(float64(got[i]), 1) {
					t.Errorf("%v: exp(%g) = %g, want infinity", isa, v, got[i])
				}
				continue
			}
			unit := math.Max(0x1p-149, math.Exp2(math.Floor(math.Log2(want))-23)) // distance of neighbours
			err := math.Abs(float64(got[i])-want) / unit
			if !(err <= 2) {
				t.Errorf("%v: exp(%g) = %g, want %g: %.2f units", isa, v, got[i], want, err)
			}
			worst = max(worst, err)
		}
		t.Logf("%v: exp within %.3f units in the last place", isa, worst)
	}
}

func TestExpSpecial(t *testing.T) {
	for _, isa := range Available() {
		x := make([]float32, 20)
		x[3] = float32(math.NaN())
		x[18] = float32(math.NaN())
		sum := isa.ExpSum(x, x, 0)
		if !math.IsNaN(sum) || x[3] == x[3] || x[18] == x[18] || x[0] != 1 {
			t.Errorf("%v: NaN got lost: %v, sum %g", isa, x, sum)
		}
	}
}

func TestSoftmaxRows(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		x := r.logits(n)
		got, want := r.normal(n), r.normal(n)
		g, w := isa.ExpSum(got, x, 11), expSum(want, x, 11)
		near.CheckRel(t, "ExpSum", got, want, 4e-7)
		near.CheckRel(t, "sum", []float64{g}, []float64{w}, 1e-6)
		s, dp := r.copy(x), r.normal(n)
		ws, wd := r.copy(x), r.copy(dp)
		isa.SoftmaxGrad(s, dp, 0.125, 11, 0.3)
		softmaxGrad(ws, wd, 0.125, 11, 0.3)
		near.CheckRel(t, "p", s, ws, 4e-7)
		near.CheckRel(t, "ds", dp, wd, 8e-7)
	})
}

// centre normalises logits in float64.
func centre(z, t []float32, temp float64) Centre {
	mz, mt := maximum(z), maximum(t)
	s := lossSums(z, t, mz, mt, float32(1/temp))
	return Centre{mz, mt, float32(1 / temp), float32(1 / s.ZT), float32(1 / s.T), float32(math.Log(s.ZT) - math.Log(s.T))}
}

func TestLoss(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		if n == 0 {
			return
		}
		z, te := r.logits(n), r.logits(n)
		for _, invT := range []float32{1, 0.5, 2.5} {
			mz, mt := maximum(z), maximum(te)
			g, w := isa.LossSums(z, te, mz, mt, invT), lossSums(z, te, mz, mt, invT)
			near.CheckRel(t, "LossSums", []float64{g.T}, []float64{w.T}, 1e-6)
			near.CheckRel(t, "LossSums", []float64{g.ZT}, []float64{w.ZT}, 1e-6)
			near.CheckRel(t, "LossSums", []float64{g.Z1}, []float64{w.Z1}, 1e-6)
			near.Check(t, "LossSums", []float64{g.A, g.E}, []float64{w.A, w.E}, 1e-6*(10+math.Abs(w.A)+math.Abs(w.E)))
			got, want := r.normal(n), r.normal(n)
			isa.LossGrad(got, z, te, mz, mt, invT, 0.1, 0.2, 0.3)
			lossGrad(want, z, te, mz, mt, invT, 0.1, 0.2, 0.3)
			near.Check(t, "LossGrad", got, want, 5e-7) // factors up to 0.6
			isa.LossGrad(got, z, z, mz, mz, invT, 0, 0.3, 0.3)
			near.Check(t, "gradient of equal logits", got, make([]float32, n), 0)
		}
	})
}

func TestLossHidesVanishedLogits(t *testing.T) {
	inf := float32(math.Inf(-1))
	for _, isa := range Available() {
		z, te := make([]float32, 20), make([]float32, 20)
		for i := range z {
			z[i], te[i] = float32(i)/10, float32(i*i)/100
		}
		z[3], te[3], te[5], te[19] = inf, inf, inf, -1000
		got, want := isa.LossSums(z, te, 1.9, 3.24, 1), lossSums(z, te, 1.9, 3.24, 1)
		near.CheckRel(t, isa.String(), []float64{got.T, got.ZT, got.Z1, got.A, got.E}, []float64{want.T, want.ZT, want.Z1, want.A, want.E}, 1e-6)
	}
}

func TestDivergences(t *testing.T) {
	mixes := map[string]Mix{
		"jsd":          {Beta: 0.3, DP: 0.3, DQ: 0.7, HLog: 0.7},
		"skew forward": {Beta: 0.1, DP: 1, HP: -0.9},
		"skew reverse": {Beta: 0.9, DQ: 1, HLog: 1, HQ: -0.1},
	}
	inf := float32(math.Inf(-1))
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		if n == 0 {
			return
		}
		z, te := r.logits(n), r.logits(n)
		if n > 8 {
			z[2], te[3], z[4], te[4], z[5], te[6] = inf, inf, inf, inf, -500, -500
		}
		for _, temp := range []float64{1, 2} {
			c := centre(z, te, temp)
			run := func(name string, got, want func(h []float32) (float64, float64)) {
				g, w := r.normal(n), r.normal(n)
				gd, gh := got(g)
				wd, wh := want(w)
				near.CheckRel(t, name+" h", g, w, 4e-6)
				near.Check(t, name+" D, Σh", []float64{gd, gh}, []float64{wd, wh}, 3e-6*(1+math.Abs(wd)))
				ga, wa := r.normal(n), r.normal(n)
				isa.DivGrad(ga, z, w, &c, 0.1, 0.4, float32(wh))
				divGrad(wa, z, w, &c, 0.1, 0.4, float32(wh))
				near.CheckRel(t, name+" gradient", ga, wa, 4e-6)
			}
			if n > 8 { // a vanished student makes reverse KL infinite nowhere: Q = 0 there; a vanished teacher does
				te[3], te[6] = 0, 0
			}
			run("reverse", func(h []float32) (float64, float64) { return isa.ReverseTerms(h, z, te, &c) },
				func(h []float32) (float64, float64) { return reverseTerms(h, z, te, &c) })
			if n > 8 {
				te[3], te[6] = inf, -500
			}
			run("tvd", func(h []float32) (float64, float64) { return isa.TVDTerms(h, z, te, &c) },
				func(h []float32) (float64, float64) { return tvdTerms(h, z, te, &c) })
			for name, m := range mixes {
				run(name, func(h []float32) (float64, float64) { return isa.MixTerms(h, z, te, &c, &m) },
					func(h []float32) (float64, float64) { return mixTerms(h, z, te, &c, &m) })
			}
		}
	})
}

func TestAdamW(t *testing.T) {
	c := AdamW{Decay: 0.999, Beta1: 0.9, Rest1: 0.1, Beta2: 0.95, Rest2: 0.05, Scale: 0.5, Step: 0.01, InvBias: 1.2, Eps: 1e-8}
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		w, g, m, v := r.normal(n), r.normal(n), r.normal(n), r.make(n, r.rng.Float32)
		ww, wm, wv := r.copy(w), r.copy(m), r.copy(v)
		isa.AdamW(w, g, m, v, &c)
		adamW(ww, g, wm, wv, &c)
		near.CheckRel(t, "w", w, ww, 4e-7)
		near.CheckRel(t, "m", m, wm, 4e-7)
		near.CheckRel(t, "v", v, wv, 4e-7)
	})
}

func TestWiden(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		src := make([]byte, 2*n)
		for i := range n {
			binary.LittleEndian.PutUint16(src[2*i:], tensor.F32ToF16(float32(r.rng.NormFloat64()*100)))
		}
		got, want := r.normal(n), r.normal(n)
		isa.WidenF16(got, src)
		widenF16(want, src)
		near.Check(t, "WidenF16", got, want, 0)
		for i := range n {
			binary.LittleEndian.PutUint16(src[2*i:], tensor.F32ToBF16(float32(r.rng.NormFloat64()*100)))
		}
		isa.WidenBF16(got, src)
		widenBF16(want, src)
		near.Check(t, "WidenBF16", got, want, 0)
	})
}

func TestParse(t *testing.T) {
	if isa, err := Parse(""); err != nil || isa != Best() {
		t.Errorf(`Parse("") = %v, %v`, isa, err)
	}
	if isa, err := Parse("generic"); err != nil || isa != Generic {
		t.Errorf(`Parse("generic") = %v, %v`, isa, err)
	}
	if _, err := Parse("sse9"); fault.KindOf(err) != fault.Usage {
		t.Errorf("unknown set: %v", err)
	}
}
