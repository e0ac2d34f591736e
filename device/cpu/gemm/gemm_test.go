package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device/cpu/par"
)

// form is one of the three products.
type form struct {
	name           string
	transA, transB bool
}

var forms = []form{{"NT", false, true}, {"NN", false, false}, {"TN", true, false}}

// problem is one product with its operands and the C it starts from.
type problem struct {
	form
	m, n, k       int
	lda, ldb, ldc int
	a, b, bias, c []float32
	alpha         float32
	add           bool
}

// newProblem draws operands in [-1, 1) with strides larger than the rows by pad.
func newProblem(rng *rand.Rand, f form, m, n, k, pad int) *problem {
	p := &problem{form: f, m: m, n: n, k: k, alpha: 1, lda: k + pad, ldb: n + pad, ldc: n + pad}
	ra, rb := m, k
	if f.transA {
		ra, p.lda = k, m+pad
	}
	if f.transB {
		rb, p.ldb = n, k+pad
	}
	p.a, p.b, p.c = draw(rng, ra*p.lda), draw(rng, rb*p.ldb), draw(rng, m*p.ldc)
	if f.transB {
		p.bias = draw(rng, n)
	}
	return p
}

func draw(rng *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = 2*rng.Float32() - 1
	}
	return s
}

func (p *problem) at(i, j, t int) (a, b float64) {
	ia, ib := i*p.lda+t, t*p.ldb+j
	if p.transA {
		ia = t*p.lda + i
	}
	if p.transB {
		ib = j*p.ldb + t
	}
	return float64(p.a[ia]), float64(p.b[ib])
}

// run computes the problem in a copy of C, on an engine.
func (p *problem) run(e *Engine) []float32 {
	c := append([]float32(nil), p.c...)
	p.into(e, c)
	return c
}

func (p *problem) into(e *Engine, c []float32) {
	switch p.name {
	case "NT":
		e.NT(p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.bias, c, p.ldc, p.add)
	case "NN":
		e.NN(p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, c, p.ldc, p.add)
	case "TN":
		e.TN(p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, c, p.ldc, p.add)
	}
}

// check compares C with the float64 sum; the error of a sum of k float32 products is at most about k·2⁻²⁴·Σ|a·b|, and
// what lies outside [m×n] must be untouched.
func (p *problem) check(t *testing.T, c []float32) {
	t.Helper()
	large := p.m*p.n*p.k > 1<<22 // then every fifth element will do: several of each tile
	for i := range p.m {
		for j := range p.ldc {
			got := float64(c[i*p.ldc+j])
			old := float64(p.c[i*p.ldc+j])
			if j >= p.n {
				if got != old {
					t.Fatalf("C[%d,%d] beyond the %d columns changed", i, j, p.n)
				}
				continue
			}
			if large && (i*p.ldc+j)%5 != 0 {
				continue
			}
			var sum, size float64
			for k := range p.k {
				a, b := p.at(i, j, k)
				sum += a * b
				size += math.Abs(a * b)
			}
			sum *= float64(p.alpha)
			size = size*math.Abs(float64(p.alpha)) + 2
			if p.bias != nil {
				sum += float64(p.bias[j])
			}
			if p.add {
				sum += old
			}
			if tol := (math.Sqrt(float64(p.k)) + 4) * 0x1p-24 * size; !(math.Abs(got-sum) <= tol) {
				t.Fatalf("C[%d,%d] = %v, want %v ± %v", i, j, got, sum, tol)
			}
		}
	}
}

// eachISA runs a test with every kind of kernels of this machine.
func eachISA(t *testing.T, f func(t *testing.T)) {
	before := ISA()
	defer func() {
		if err := Select(before); err != nil {
			t.Fatal(err)
		}
	}()
	for _, name := range Names() {
		if err := Select(name); err != nil {
			t.Fatal(err)
		}
		t.Run(name, f)
	}
}

func newEngine(t testing.TB, workers int) *Engine {
	pool := par.New(workers)
	t.Cleanup(pool.Close)
	return New(pool)
}

// TestAgainstFloat64 goes through awkward shapes: every size meets small, tile-sized and multi-block partners.
func TestAgainstFloat64(t *testing.T) {
	sizes := []int{0, 1, 2, 3, 5, 6, 7, 13, 14, 15, 16, 17, 31, 32, 33, 42, 43, 63, 64, 65, 127, 257}
	depths := []int{0, 1, 2, 3, 4, 5, 7, 8, 31, 64, 257, 511, 512, 513, 1025}
	eachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		e := newEngine(t, 3)
		for _, f := range forms {
			for round := range 4 * len(sizes) {
				m, n := sizes[round%len(sizes)], sizes[rng.IntN(len(sizes))]
				if round%2 == 1 {
					m, n = n, m
				}
				p := newProblem(rng, f, m, n, depths[rng.IntN(len(depths))], rng.IntN(2)*rng.IntN(9))
				p.add = rng.IntN(2) == 0
				if rng.IntN(2) == 0 {
					p.bias = nil
				}
				t.Run(fmt.Sprintf("%s/%dx%dx%d/ld=%d/bias=%t/add=%t", f.name, p.m, p.n, p.k, p.ldc, p.bias != nil, p.add),
					func(t *testing.T) { p.check(t, p.run(e)) })
			}
		}
	})
}

// TestLarge covers what only large shapes reach: several blocks of B, colliding strides, B wider than a packed block.
func TestLarge(t *testing.T) {
	shapes := []struct{ m, n, k, pad int }{
		{150, 2100, 600, 0}, {70, 129, 1024, 0}, {4100, 40, 9, 1}, {61, 8200, 130, 0},
	}
	eachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		e := newEngine(t, 2)
		for _, s := range shapes {
			for _, f := range forms {
				p := newProblem(rng, f, s.m, s.n, s.k, s.pad)
				p.add = true
				t.Run(fmt.Sprintf("%s/%dx%dx%d", f.name, s.m, s.n, s.k), func(t *testing.T) { p.check(t, p.run(e)) })
			}
		}
	})
}

// TestWorkspace checks the serial product in all four forms, with alpha, and that it does not allocate.
func TestWorkspace(t *testing.T) {
	all := append(forms[:3:3], form{"TT", true, true})
	eachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		var w Workspace
		for _, f := range all {
			for _, s := range [][3]int{{1, 1, 1}, {64, 64, 64}, {64, 100, 64}, {37, 64, 129}, {256, 65, 64}, {65, 33, 520}} {
				p := newProblem(rng, f, s[0], s[1], s[2], rng.IntN(5))
				p.alpha, p.add, p.bias = 0.125, rng.IntN(2) == 0, nil
				c := append([]float32(nil), p.c...)
				multiply := func() {
					w.Multiply(p.transA, p.transB, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, c, p.ldc, p.add)
				}
				multiply()
				t.Run(fmt.Sprintf("%s/%v", f.name, s), func(t *testing.T) { p.check(t, c) })
				if n := testing.AllocsPerRun(2, multiply); n != 0 {
					t.Errorf("%s %v: %v allocations", f.name, s, n)
				}
			}
		}
	})
}

// stored is a Rows source over a plain matrix; it checks the promise about the columns asked for.
type stored struct {
	t     *testing.T
	b     []float32
	ld, k int
}

func (s stored) DecodeRow(dst []float32, row, lo, hi int) {
	if lo%256 != 0 || (hi%256 != 0 && hi != s.k) || hi <= lo {
		s.t.Errorf("DecodeRow of [%d,%d) of %d", lo, hi, s.k)
	}
	copy(dst[:hi-lo], s.b[row*s.ld+lo:])
}

// TestRowBits demands that a row of C has the same bits in every batch, from every source, with any number of workers.
func TestRowBits(t *testing.T) {
	const n, maxM = 71, 300
	eachISA(t, func(t *testing.T) {
		for _, k := range []int{65, 513, 1024} {
			rng := rand.New(rand.NewPCG(7, 8))
			p := newProblem(rng, forms[0], maxM, n, k, 0)
			one, three := newEngine(t, 1), newEngine(t, 3)
			want := p.run(three)
			same := func(what string, m int, got []float32) {
				t.Helper()
				for i := range m * p.ldc {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("k=%d m=%d %s: element %d is %x, want %x", k, m, what, i, got[i], want[i])
					}
				}
			}
			for m := 1; m <= maxM; m += 1 + m/16 {
				p.m = m
				same("3 workers", m, p.run(three))
				if m%5 == 1 {
					same("1 worker", m, p.run(one))
				}
				c := append([]float32(nil), p.c...)
				three.NTRows(m, n, k, p.a, p.lda, stored{t, p.b, p.ldb, k}, p.bias, c, p.ldc, false)
				same("decoded", m, c)
			}
			p.m = 1 // each row alone
			for i := range maxM {
				row := make([]float32, n)
				one.NT(1, n, k, p.a[i*p.lda:], p.lda, p.b, p.ldb, p.bias, row, n, false)
				copy(want[:n], want[i*p.ldc:])
				same("alone", 1, row)
			}
		}
	})
}

// TestTileBits demands the same of every form when rows and columns are taken away: an element's bits depend on k alone.
func TestTileBits(t *testing.T) {
	const m, n = 190, 171
	eachISA(t, func(t *testing.T) {
		e := newEngine(t, 2)
		var w Workspace
		for _, f := range forms {
			for _, k := range []int{48, 700} {
				rng := rand.New(rand.NewPCG(13, 14))
				p := newProblem(rng, f, m, n, k, 5)
				p.bias, p.add = nil, true
				want := p.run(e)
				for _, part := range [][2]int{{1, n}, {2, 33}, {13, 64}, {42, n}, {43, 1}, {141, 100}, {m, 31}, {m, 32}} {
					p.m, p.n = part[0], part[1]
					got := p.run(e)
					serial := append([]float32(nil), p.c...)
					w.Multiply(p.transA, p.transB, p.m, p.n, k, 1, p.a, p.lda, p.b, p.ldb, serial, p.ldc, true)
					for i := range p.m {
						for j := range p.n {
							x := i*p.ldc + j
							if b := math.Float32bits(want[x]); math.Float32bits(got[x]) != b || math.Float32bits(serial[x]) != b {
								t.Fatalf("%s k=%d %v: C[%d,%d] = %x, serial %x, want %x", f.name, k, part, i, j, got[x], serial[x], want[x])
							}
						}
					}
				}
			}
		}
	})
}

// TestVectorKernelsAgree: both instruction sets sum in the same order with the same fused operations.
func TestVectorKernelsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	p := newProblem(rng, forms[2], 100, 77, 600, 3)
	e := newEngine(t, 2)
	results := map[string][]float32{}
	eachISA(t, func(_ *testing.T) { results[ISA()] = p.run(e) })
	if results["avx2"] == nil || results["avx512"] == nil {
		t.Logf("only %v here", Names())
		return
	}
	for i, v := range results["avx2"] {
		if math.Float32bits(v) != math.Float32bits(results["avx512"][i]) {
			t.Fatalf("element %d: avx2 %x, avx512 %x", i, v, results["avx512"][i])
		}
	}
}

// TestNonFinite: an infinity or NaN in a row of A reaches that row of C, all of it and nothing else.
func TestNonFinite(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(11, 12))
		e := newEngine(t, 2)
		for _, m := range []int{1, 20, 100} {
			for _, f := range forms {
				p := newProblem(rng, f, m, 45, 70, 0)
				bad := m / 2
				for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
					ia := bad*p.lda + 69
					if f.transA {
						ia = 69*p.lda + bad
					}
					p.a[ia] = v
					c := p.run(e)
					for i := range m {
						for j := range p.n {
							x := float64(c[i*p.ldc+j])
							if finite := !math.IsNaN(x) && !math.IsInf(x, 0); finite == (i == bad) {
								t.Fatalf("%s m=%d: C[%d,%d] = %v with %v in row %d", f.name, m, i, j, x, v, bad)
							}
						}
					}
				}
			}
		}
	})
}

func TestShortSlicesPanic(t *testing.T) {
	e := newEngine(t, 1)
	full := make([]float32, 12)
	cases := map[string]func(){
		"A":        func() { e.NT(3, 4, 4, full[:11], 4, make([]float32, 16), 4, nil, full, 4, false) },
		"B":        func() { e.NT(3, 4, 4, full, 4, full, 4, nil, make([]float32, 12), 4, false) },
		"C":        func() { e.NT(3, 3, 4, full, 4, make([]float32, 12), 4, nil, full[:8], 3, false) },
		"bias":     func() { e.NT(3, 3, 4, full, 4, make([]float32, 12), 4, full[:2], make([]float32, 9), 3, false) },
		"stride":   func() { e.NN(3, 3, 4, full, 3, make([]float32, 12), 3, make([]float32, 9), 3, false) },
		"negative": func() { e.NN(-1, 3, 4, full, 4, make([]float32, 12), 3, make([]float32, 9), 3, false) },
	}
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

func TestSelect(t *testing.T) {
	if err := Select("abacus"); err == nil {
		t.Error("an unknown name was accepted")
	}
	eachISA(t, func(t *testing.T) {
		if t.Name() != "TestSelect/"+ISA() {
			t.Errorf("ISA() = %q in %s", ISA(), t.Name())
		}
	})
}
