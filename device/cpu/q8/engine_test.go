package q8

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device/cpu/par"
	"apr/tensor"
)

// bitsEqual reports the first element that differs.
func bitsEqual(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %g, want %g", what, i, got[i], want[i])
		}
	}
}

// stacked returns matrices of two kinds of types, one below the other, of 20, 48 and 5 rows.
func stacked(t *testing.T, rng *rand.Rand, k int) []*Matrix {
	var ms []*Matrix
	for _, p := range []struct {
		d    tensor.DType
		rows int
	}{{tensor.Q4_K, 20}, {tensor.Q6_K, 48}, {tensor.Q8_0, 5}} {
		ms = append(ms, pack(t, p.d, p.rows, k, randomBlocks(rng, p.d, p.rows, k)))
	}
	return ms
}

// A row has the same bits alone, in any batch, beside any outputs and with any number of workers.
func TestBitsOfARow(t *testing.T) {
	const n, k, outs = 600, 512, 73 // more rows than a slab
	rng := rand.New(rand.NewPCG(3, 1))
	ms, x := stacked(t, rng, k), randomRows(rng, n, k)
	for _, isa := range []string{Names()[0], "generic"} {
		want := make([]float32, n*outs)
		all := n
		if isa == "generic" {
			all = 14
		}
		engine(t, 2, isa).Multiply(ms, all, outs, x, k, nil, want, outs, false)
		for _, workers := range []int{1, 3} {
			e := engine(t, workers, isa)
			for _, c := range []struct{ lo, n, outs int }{{0, 1, outs}, {all - 1, 1, outs}, {5, 4, outs}, {2, 5, 21}, {1, 12, 68}, {0, all, outs}} {
				y := make([]float32, c.n*c.outs)
				e.Multiply(ms, c.n, c.outs, x[c.lo*k:], k, nil, y, c.outs, false)
				for r := range c.n {
					bitsEqual(t, isa, y[r*c.outs:(r+1)*c.outs], want[(c.lo+r)*outs:][:c.outs])
				}
			}
		}
	}
}

func TestBiasAndAdd(t *testing.T) {
	const n, k, outs, ldy, ldx = 7, 256, 70, 80, 300
	rng := rand.New(rand.NewPCG(4, 1))
	ms, x, bias := stacked(t, rng, k), randomRows(rng, n, ldx), randomRows(rng, 1, 73)
	e := engine(t, 2, "")
	plain, biased, added := make([]float32, n*ldy), make([]float32, n*ldy), slices.Repeat([]float32{3}, n*ldy)
	e.Multiply(ms, n, outs, x, ldx, nil, plain, ldy, false)
	e.Multiply(ms, n, outs, x, ldx, bias, biased, ldy, false)
	e.Multiply(ms, n, outs, x, ldx, bias, added, ldy, true)
	for i := range plain {
		r, j := i/ldy, i%ldy
		if j >= outs {
			if plain[i] != 0 || biased[i] != 0 || added[i] != 3 {
				t.Fatalf("row %d: column %d beyond the outputs was written", r, j)
			}
			continue
		}
		if d := math.Abs(float64(biased[i]) - float64(plain[i]) - float64(bias[j])); !(d <= 1e-5*(1+math.Abs(float64(plain[i])))) {
			t.Errorf("bias of output %d: %g became %g", j, plain[i], biased[i])
		}
		if added[i] != 3+biased[i] {
			t.Errorf("output %d: 3 and %g are %g", j, biased[i], added[i])
		}
	}
}

// Blocks of activations that are zero, tiny, huge or not finite.
func TestUnusualActivations(t *testing.T) {
	const k, outs = 512, 73
	rng := rand.New(rand.NewPCG(5, 1))
	ms := stacked(t, rng, k)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		set  func(x []float32)
		zero bool // all outputs are 0
		nan  bool
	}{
		"zero":     {func(x []float32) { clear(x) }, true, false},
		"tiny":     {func(x []float32) { clear(x); x[300] = 1e-37; x[1] = -1e-45 }, true, false},
		"huge":     {func(x []float32) { x[7] = 3e33 }, false, false},
		"NaN":      {func(x []float32) { x[511] = nan }, false, true},
		"infinite": {func(x []float32) { x[0] = -inf }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := randomRows(rng, 3, k)
			var first []float32
			for _, isa := range Names() {
				e, y, alone := engine(t, 2, isa), make([]float32, 3*outs), make([]float32, 3*outs)
				e.Multiply(ms, 3, outs, x, k, nil, alone, outs, false)
				other := slices.Clone(x)
				c.set(other[k : 2*k])
				e.Multiply(ms, 3, outs, other, k, nil, y, outs, false)
				bitsEqual(t, "row before", y[:outs], alone[:outs])
				bitsEqual(t, "row after", y[2*outs:], alone[2*outs:])
				for j, v := range y[outs : 2*outs] {
					if c.zero && v != 0 || c.nan != (v != v) || math.IsInf(float64(v), 0) {
						t.Fatalf("%s: output %d is %g", isa, j, v)
					}
				}
				if first == nil {
					first = y
				}
				if !c.nan {
					bitsEqual(t, isa, y, first)
				}
			}
		})
	}
}

// Rounding is to the nearest, halves to even, in every kernel, and what is left is in the fine half.
func TestRounding(t *testing.T) {
	x := make([]float32, 64)
	copy(x, []float32{127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 126.5, 125.75, -126.25, 1. / 254, 1.5 / 254})
	want := []int8{127, -127, 0, 2, 2, 0, -2, -2, 0, 126, 126, -126, 0, 0, 0, 0}
	fine := []int8{0, 0, 127, -127, 127, -127, 127, -127, 127, 127, -64, -64, 1, 2, 0, 0}
	for _, kn := range available() {
		q, r := make([]int8, 64), make([]int8, 64)
		d, dFine := kn.block(q, r, x, new([chunk]float32))
		if d != 1 || dFine != 1./254 || !slices.Equal(q[:16], want) || !slices.Equal(r[:16], fine) {
			t.Errorf("%s: scales %g and %g, codes %v and %v, want 1, 1/254, %v and %v", kn.name, d, dFine, q[:16], r[:16], want, fine)
		}
	}
}

func TestPackFails(t *testing.T) {
	pool := par.New(1)
	defer pool.Close()
	broken := errors.New("broken")
	if _, err := Pack(new(Memory), pool, tensor.Q4_K, 3, 256, func([]byte, int, int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	for _, c := range []struct {
		d    tensor.DType
		cols int
		want bool
	}{{tensor.Q4_K, 256, true}, {tensor.Q4_K, 128, false}, {tensor.Q8_0, 96, true}, {tensor.Q8_0, 16, false}, {tensor.BF16, 256, false}, {tensor.Q4_K, 0, false}} {
		if CanPack(c.d, c.cols) != c.want {
			t.Errorf("%v of %d columns: %v", c.d, c.cols, !c.want)
		}
	}
	if err := New(pool).Select("sse"); err == nil {
		t.Error("kernels for sse")
	}
}

func TestMultiplyAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	ms, x, y := stacked(t, rng, 512), randomRows(rng, 9, 512), make([]float32, 9*73)
	e := engine(t, 2, "")
	e.Multiply(ms, 9, 73, x, 512, nil, y, 73, false)
	if n := testing.AllocsPerRun(10, func() { e.Multiply(ms, 9, 73, x, 512, nil, y, 73, false) }); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

// BenchmarkMultiply is the down projection of a 1.5B model: for one row, generating, the figure of merit is bytes of
// weights a second, for many it is operations.
func BenchmarkMultiply(b *testing.B) {
	const k, outs = 8960, 1536
	rng := rand.New(rand.NewPCG(7, 1))
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0} {
		ms := []*Matrix{pack(b, d, outs, k, randomBlocks(rng, d, outs, k))}
		for _, n := range []int{1, 128} {
			for _, isa := range Names()[:len(Names())-1] {
				b.Run(d.String()+"/"+isa+"/"+map[int]string{1: "row", 128: "rows"}[n], func(b *testing.B) {
					e, x, y := engine(b, 0, isa), randomRows(rng, n, k), make([]float32, n*outs)
					b.SetBytes(ms[0].Bytes())
					for b.Loop() {
						e.Multiply(ms, n, outs, x, k, nil, y, outs, false)
					}
					b.ReportMetric(2*float64(n)*k*outs*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
				})
			}
		}
	}
}
