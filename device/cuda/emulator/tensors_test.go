//go:build emulate

package emulator

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"apr/internal/near"
	"apr/tensor"
)

type tensorArgs struct{ d, a, b uint64 }

func TestTensorCores(t *testing.T) {
	m := open(t)
	tests := []struct {
		kernel string
		k      int
		brain  bool // 16-bit elements
		adds   bool
	}{{"test_mma_bf16", 16, true, true}, {"test_mma_loaded", 16, true, false}, {"test_mma_tf32", 8, false, true}}
	for _, tt := range tests {
		t.Run(tt.kernel, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			operand := func(rows, cols int) (uint64, []float64) {
				values := make([]float64, rows*cols)
				if tt.brain {
					p, raw := words[uint16](t, m, rows*cols)
					for i := range raw {
						raw[i] = tensor.F32ToBF16(float32(rng.NormFloat64()))
						values[i] = float64(tensor.BF16ToF32(raw[i]))
					}
					return p, values
				}
				p, raw := words[uint32](t, m, rows*cols)
				for i := range raw {
					raw[i] = math.Float32bits(float32(rng.NormFloat64()))
					values[i] = float64(math.Float32frombits(raw[i] &^ 0x1fff))
				}
				return p, values
			}
			a, av := operand(16, tt.k)
			b, bv := operand(tt.k, 8)
			d, got := words[float32](t, m, 16*8)
			want := make([]float64, 16*8)
			for i := range got {
				got[i] = float32(rng.NormFloat64())
				if tt.adds {
					want[i] = float64(got[i])
				}
				for k := range tt.k {
					want[i] += av[i/8*tt.k+k] * bv[k*8+i%8]
				}
			}
			run(t, m, "tensors", tt.kernel, 1, 32, 0, unsafe.Pointer(&tensorArgs{d, a, b}))
			near.Check(t, tt.kernel, got, want, 4e-6)
		})
	}
}

// TestByteProducts: products of bytes, whose first operand is signed or not, are exact.
func TestByteProducts(t *testing.T) {
	m := open(t)
	for _, kernel := range []string{"test_mma_us", "test_mma_ss"} {
		rng := rand.New(rand.NewPCG(5, 6))
		pa, a := words[uint8](t, m, 16*32)
		pb, b := words[uint8](t, m, 32*8)
		d, got := words[int32](t, m, 16*8)
		for i := range a {
			a[i] = uint8(rng.Uint32())
		}
		for i := range b {
			b[i] = uint8(rng.Uint32())
		}
		want := make([]int32, len(got))
		for i := range got {
			got[i] = rng.Int32N(1000) - 500
			want[i] = got[i]
			for k := range 32 {
				x := int32(a[i/8*32+k])
				if kernel == "test_mma_ss" {
					x = int32(int8(a[i/8*32+k]))
				}
				want[i] += x * int32(int8(b[k*8+i%8]))
			}
		}
		run(t, m, "tensors", kernel, 1, 32, 0, unsafe.Pointer(&tensorArgs{d, pa, pb}))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", kernel, got, want)
		}
	}
}

// TestLoadMatrices: element (r,c) of matrix m is the number 64m+8r+c.
func TestLoadMatrices(t *testing.T) {
	m := open(t)
	out, got := words[uint32](t, m, 12*32)
	in, v := words[uint16](t, m, 256)
	for i := range v {
		v[i] = uint16(i)
	}
	run(t, m, "tensors", "test_ldmatrix", 1, 32, 512, unsafe.Pointer(&wordsArgs{out: out, in: in}))
	pair := func(m, r0, c0, r1, c1 int) uint32 { return uint32(64*m+8*r0+c0) | uint32(64*m+8*r1+c1)<<16 }
	for l := range 32 {
		i, j := l/4, l%4
		for k := range 4 {
			plain, trans := pair(k, i, 2*j, i, 2*j+1), pair(k, 2*j, i, 2*j+1, i)
			if got[12*l+k] != plain || got[12*l+4+k] != trans {
				t.Errorf("lane %d, matrix %d: %x and transposed %x, want %x and %x", l, k, got[12*l+k], got[12*l+4+k], plain, trans)
			}
			if k < 2 && (got[12*l+8+k] != plain || got[12*l+10+k] != trans) {
				t.Errorf("lane %d, matrix %d of two: %x and transposed %x, want %x and %x", l, k, got[12*l+8+k], got[12*l+10+k], plain, trans)
			}
		}
	}
}

// TestCopies: a copy is there after the wait and not before.
func TestCopies(t *testing.T) {
	m := open(t)
	out, got := words[uint32](t, m, 64*16)
	in, v := words[uint32](t, m, 3*64*4)
	for i := range v {
		v[i] = uint32(i)
	}
	run(t, m, "tensors", "test_copies", 1, 64, 0, unsafe.Pointer(&wordsArgs{out: out, in: in}))
	const undefined = 0x7fff7fff
	for i := range 64 {
		for j := range 4 {
			want := []uint32{uint32(4*i + j), undefined, uint32(4*(128+i) + j), 0}
			for k, w := range want {
				if g := got[16*i+4*k+j]; g != w {
					t.Fatalf("thread %d, vector %d, word %d: %x, want %x", i, k, j, g, w)
				}
			}
		}
	}
}

// TestBulkCopies: a bulk copy is there after the wait and not before, again and again.
func TestBulkCopies(t *testing.T) {
	m := open(t)
	out, got := words[uint32](t, m, 32*4)
	in, v := words[uint32](t, m, 2*64)
	for i := range v {
		v[i] = uint32(i)
	}
	run(t, m, "tensors", "test_bulk_copies", 1, 32, 0, unsafe.Pointer(&wordsArgs{out: out, in: in}))
	for i := range 32 {
		want := []uint32{0x7fff7fff, uint32(i), uint32(32 + i), uint32(64 + i)}
		for k, w := range want {
			if g := got[4*i+k]; g != w {
				t.Fatalf("lane %d, value %d: %x, want %x", i, k, g, w)
			}
		}
	}
}
