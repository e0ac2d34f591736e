package tensor

import (
	"encoding/binary"
	"math"
	"testing"

	"apr/internal/contracttest"
)

// A NaN or an infinity is found at every place, of every type, among the largest finite values, which are passed.
func TestFirstNonFinite(t *testing.T) {
	const n = 83                // steps of 64 bytes and a rest, for each type
	bits := map[DType][]uint64{ // +Inf, −Inf, the NaNs with the fewest and the most bits, the largest finite values
		F32:  {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0xff7fffff},
		F16:  {0x7c00, 0xfc00, 0x7c01, 0xffff, 0x7bff, 0xfbff},
		BF16: {0x7f80, 0xff80, 0x7f81, 0xffff, 0x7f7f, 0xff7f},
		F64:  {0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, math.Float64bits(1e300), math.Float64bits(math.MaxFloat32), math.Float64bits(-math.MaxFloat32)},
	}
	for d, b := range bits {
		put := func(dst []byte, v uint64) {
			var raw [8]byte
			binary.LittleEndian.PutUint64(raw[:], v)
			copy(dst[:d.BlockBytes()], raw[:])
		}
		src := make([]byte, n*d.BlockBytes())
		for i := range n {
			put(src[i*d.BlockBytes():], b[4+i%2])
		}
		if i := FirstNonFinite(src, d); i != -1 {
			t.Errorf("%v: the largest finite value, element %d, is refused", d, i)
		}
		for i := range n {
			for _, v := range b[:4] {
				put(src[i*d.BlockBytes():], v)
				if got := FirstNonFinite(src, d); got != i {
					t.Errorf("%v: %x at %d found at %d", d, v, i, got)
				}
				contracttest.Cases(t, 1)
			}
			put(src[i*d.BlockBytes():], b[4])
		}
	}
}

// Largest finds one large value, or one that is not finite, at every place among small ones.
func TestLargest(t *testing.T) {
	const n = 83
	for d, all := range map[DType]map[float32]float64{
		F32:  {32768: 32768, -65504: 65504, 3e38: 3e38, 32767.9: 0, inf: math.Inf(1), -inf: math.Inf(1), nan: math.NaN()},
		BF16: {32768: 32768, -65536: 65536, 32512: 0, inf: math.Inf(1), nan: math.NaN()},
		F64:  {40000: 40000, 100: 0, inf: math.Inf(1), nan: math.NaN()},
		F16:  {65504: 0, inf: math.Inf(1), nan: math.NaN()},
	} {
		for v, want := range all {
			if want == 3e38 {
				want = float64(float32(3e38))
			}
			for i := range n {
				values := make([]float32, n)
				for k := range values {
					values[k] = float32(k) - 40
				}
				values[i] = v
				src := make([]byte, n*d.BlockBytes())
				if d == F64 {
					for k, x := range values {
						binary.LittleEndian.PutUint64(src[8*k:], math.Float64bits(float64(x)))
					}
				} else {
					Narrow(src, values, d)
				}
				if got := Largest(src, d); got != want && !(math.IsNaN(got) && math.IsNaN(want)) && !(d == F16 && got == 65504) {
					t.Fatalf("%v: %g at %d: %g, want %g", d, v, i, got, want)
				}
				contracttest.Cases(t, 1)
			}
		}
	}
}

var inf, nan = float32(math.Inf(1)), float32(math.NaN())

func TestCountF16(t *testing.T) {
	var src []byte
	want := 0
	for i := range 1 << 16 {
		src = binary.LittleEndian.AppendUint16(src, uint16(i))
		var x [1]float32
		Widen(x[:], src[2*i:], F16)
		if !(math.Abs(float64(x[0])) < 0.25) {
			want++
		}
	}
	if got := CountF16(src); got != want {
		t.Errorf("%d, want %d", got, want)
	}
	if got := CountF16([]byte{0, 0x34, 0xff, 0xb3, 0, 0xb4}); got != 2 {
		t.Errorf("of 0.25, less and −0.25: %d", got)
	}
}

func BenchmarkFirstNonFinite(b *testing.B) {
	src := make([]byte, 1<<20)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		FirstNonFinite(src, BF16)
	}
}

func BenchmarkLargest(b *testing.B) {
	src := make([]byte, 1<<20)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		Largest(src, BF16)
	}
}

func BenchmarkCountF16(b *testing.B) {
	src := make([]byte, 1<<20)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		CountF16(src)
	}
}
