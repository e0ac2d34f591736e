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

func BenchmarkFirstNonFinite(b *testing.B) {
	src := make([]byte, 1<<20)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		FirstNonFinite(src, BF16)
	}
}
