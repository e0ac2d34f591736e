package q8

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"apr/device/cpu/par"
	"apr/quant"
	"apr/tensor"
)

var types = []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q5_0, tensor.Q4_0, tensor.MXFP4}

// randomBlocks returns rows of blocks with any codes and scales of moderate size.
func randomBlocks(rng *rand.Rand, d tensor.DType, rows, cols int) []byte {
	b := make([]byte, int64(rows)*d.RowBytes(cols))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	for at := 0; at < len(b); at += d.BlockBytes() {
		put := func(offset int) {
			h := tensor.F32ToF16(float32(rng.NormFloat64() * 0.01))
			b[at+offset], b[at+offset+1] = byte(h), byte(h>>8)
		}
		switch d {
		case tensor.MXFP4:
			b[at] = byte(115 + rng.IntN(10))
		case tensor.Q6_K:
			put(208)
		case tensor.Q4_K, tensor.Q5_K:
			put(0)
			put(2)
		default:
			put(0)
		}
	}
	return b
}

func pack(t testing.TB, d tensor.DType, rows, cols int, blocks []byte) *Matrix {
	t.Helper()
	size := int(d.RowBytes(cols))
	pool := par.New(2)
	defer pool.Close()
	m, err := Pack(new(Memory), pool, d, rows, cols, func(dst []byte, lo, hi int) error {
		copy(dst, blocks[lo*size:hi*size])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func randomRows(rng *rand.Rand, n, k int) []float32 {
	x := make([]float32, n*k)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp(rng.NormFloat64()))
	}
	return x
}

func engine(t testing.TB, workers int, isa string) *Engine {
	t.Helper()
	pool := par.New(workers)
	t.Cleanup(pool.Close)
	e := New(pool)
	if isa == "" {
		return e
	}
	if err := e.Select(isa); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestLayoutKnownToAssembly(t *testing.T) {
	var u unpacked
	var x rounded
	for name, c := range map[string][2]uintptr{
		"scale": {unsafe.Offsetof(u.scale), 4096}, "min": {unsafe.Offsetof(u.min), 5120}, "d": {unsafe.Offsetof(u.d), 5632},
		"dmin": {unsafe.Offsetof(u.dmin), 5696}, "rounded": {unsafe.Sizeof(x), 336}, "sums": {unsafe.Offsetof(x.sums), 256},
		"pairs": {unsafe.Offsetof(x.pairs), 288}, "row d": {unsafe.Offsetof(x.d), 304},
	} {
		if c[0] != c[1] {
			t.Errorf("%s at %d, want %d", name, c[0], c[1])
		}
	}
}

func TestDecodeRowIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, d := range types {
		t.Run(d.String(), func(t *testing.T) {
			const rows, cols = 35, 512
			blocks := randomBlocks(rng, d, rows, cols)
			m := pack(t, d, rows, cols, blocks)
			if m.Bytes() != PackedBytes(d, rows, cols) {
				t.Errorf("%d bytes, foretold %d", m.Bytes(), PackedBytes(d, rows, cols))
			}
			want, got := make([]float32, rows*cols), make([]float32, cols)
			quant.Dequantize(want, blocks, d)
			for r := range rows {
				m.DecodeRow(got, r, 0, cols)
				for k, v := range want[r*cols : (r+1)*cols] {
					if math.Float32bits(got[k]) != math.Float32bits(v) {
						t.Fatalf("row %d, column %d: %g, want %g", r, k, got[k], v)
					}
				}
			}
			m.DecodeRow(got[:5], 3, 250, 255)
			if !slices.Equal(got[:5], want[3*cols+250:][:5]) {
				t.Error("part of a row differs")
			}
		})
	}
}

// reference is the product in float64: with the activations as rounded, as they are, and the standard deviation of the
// difference, if rounding errors are independent and uniform over a fine step d, whose variance is d²/12.
func reference(x []float32, n, k int, d tensor.DType, w []float32, outs int) (rounded, exact, deviation []float64) {
	size := d.BlockLen()
	q, variance := make([]float64, len(x)), make([]float64, len(x))
	for at := 0; at < len(x); at += size {
		top := 0.0
		for _, v := range x[at : at+size] {
			top = max(top, math.Abs(float64(v)))
		}
		d, dFine := float32(top)/127, float32(top)/(127*254)
		for i, v := range x[at : at+size] {
			r := float32(math.RoundToEven(float64(v * (127 / float32(top)))))
			rest := v - float32(d*r)
			fine := math.RoundToEven(float64(rest * (127 * 254 / float32(top))))
			q[at+i] = float64(d)*float64(r) + float64(dFine)*fine
			variance[at+i] = float64(dFine) * float64(dFine) / 12
		}
	}
	rounded, exact, deviation = make([]float64, n*outs), make([]float64, n*outs), make([]float64, n*outs)
	for i := range n {
		for j := range outs {
			for p := range k {
				rounded[i*outs+j] += q[i*k+p] * float64(w[j*k+p])
				exact[i*outs+j] += float64(x[i*k+p]) * float64(w[j*k+p])
				deviation[i*outs+j] += variance[i*k+p] * float64(w[j*k+p]) * float64(w[j*k+p])
			}
			deviation[i*outs+j] = math.Sqrt(deviation[i*outs+j])
		}
	}
	return rounded, exact, deviation
}

func norm(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	return math.Sqrt(s)
}

// Every kernel agrees with float64 on the rounded activations up to float32's own rounding, and bit for bit with every
// other one; rounding the activations costs what independent errors would.
func TestMultiply(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for _, d := range types {
		for _, shape := range [][3]int{{1, 16, 256}, {1, 40, 1024}, {3, 33, 512}, {13, 70, 768}, {30, 100, 256}} {
			n, outs, k := shape[0], shape[1], shape[2]
			if d.BlockLen() == 32 {
				k -= 96
			}
			t.Run(fmt.Sprintf("%v/%dx%dx%d", d, n, outs, k), func(t *testing.T) {
				blocks, x := randomBlocks(rng, d, outs, k), randomRows(rng, n, k)
				ms := []*Matrix{pack(t, d, outs, k, blocks)}
				w := make([]float32, outs*k)
				quant.Dequantize(w, blocks, d)
				want, exact, deviation := reference(x, n, k, d, w, outs)
				var first []float32
				for _, isa := range Names() {
					y := make([]float32, n*outs)
					engine(t, 2, isa).Multiply(ms, n, outs, x, k, nil, y, outs, false)
					far, worst := make([]float64, len(y)), 0.0
					for i, v := range y {
						far[i] = float64(v) - want[i]
						worst = max(worst, math.Abs(float64(v)-exact[i])/deviation[i])
					}
					if e := norm(far) / norm(want); !(e <= 2e-6) {
						t.Errorf("%s: relative error %g against the rounded reference", isa, e)
					}
					if !(worst <= 6) {
						t.Errorf("%s: an output is %g standard deviations from the exact product", isa, worst)
					}
					if first == nil {
						first = y
					}
					for i := range y {
						if math.Float32bits(y[i]) != math.Float32bits(first[i]) {
							t.Fatalf("%s: element %d is %g, %s has %g", isa, i, y[i], Names()[0], first[i])
						}
					}
				}
			})
		}
	}
}

// The largest codes, with the largest scales that a type can have beside them, and activations all of which round
// to 127 or to −127: sums in 16 bits come as near to their limits as they can, and no kernel differs from plain
// Go.
func TestLargestSums(t *testing.T) {
	const k, outs = 512, 16
	for _, d := range types {
		for _, code := range []byte{0xff, 0x80, 0x7f, 0x00} {
			blocks := randomBlocks(rand.New(rand.NewPCG(8, 1)), d, outs, k)
			for i := range blocks {
				if at := i % d.BlockBytes(); at >= 4 && !(d == tensor.Q6_K && at >= 208) {
					blocks[i] = code
				}
			}
			ms := []*Matrix{pack(t, d, outs, k, blocks)}
			for _, value := range []float32{127, -127, 126.5} { // 126.5 is 126 and 127 fine steps
				for _, n := range []int{1, 3} {
					x := slices.Repeat([]float32{value}, n*k)
					for i := 0; i < len(x) && value == 126.5; i += 32 {
						x[i] = 127
					}
					var want []float32
					for _, isa := range slices.Backward(Names()) { // plain Go first
						y := make([]float32, n*outs)
						engine(t, 1, isa).Multiply(ms, n, outs, x, k, nil, y, outs, false)
						if want == nil {
							want = y
						}
						bitsEqual(t, fmt.Sprintf("%v of 0x%02x, %d rows of %g, %s", d, code, n, value, isa), y, want)
					}
				}
			}
		}
	}
}
