package tensor

import (
	"math"
	"testing"

	"apr/internal/contracttest"
)

// TestEveryHalf: all 65,536 halves have the value that IEEE 754 gives them, and come back.
func TestEveryHalf(t *testing.T) {
	cases := 0
	for h := range 1 << 16 {
		cases++
		sign, exp, man := 1.0, h>>10&31, float64(h&0x3ff)
		if h>>15 == 1 {
			sign = -1
		}
		var want float64
		switch exp {
		case 0:
			want = math.Copysign(math.Ldexp(man, -24), sign)
		case 31:
			want = math.Inf(int(sign))
			if man != 0 {
				want = math.NaN()
			}
		default:
			want = sign * math.Ldexp(1024+man, exp-25)
		}
		f := F16ToF32(uint16(h))
		if math.IsNaN(want) {
			if !math.IsNaN(float64(f)) || math.Signbit(float64(f)) != (sign < 0) || F32ToF16(f) != uint16(h)|0x200 {
				t.Fatalf("%04x became %g, and %04x again", h, f, F32ToF16(f))
			}
			continue
		}
		if math.Float64bits(float64(f)) != math.Float64bits(want) || F32ToF16(f) != uint16(h) {
			t.Fatalf("%04x became %g and %04x, want %g", h, f, F32ToF16(f), want)
		}
	}
	contracttest.Cases(t, cases)
}

// nearestBF16 rounds by distance: of the two neighbours the nearer, of two equally near ones that with an even last bit.
// Beyond the largest lies 2¹²⁸, which is written as infinity.
func nearestBF16(u uint32) uint16 {
	below := uint16(u >> 16)
	value := func(b uint16) float64 {
		if b&0x7fff == 0x7f80 {
			return math.Copysign(0x1p128, float64(BF16ToF32(b)))
		}
		return float64(BF16ToF32(b))
	}
	x := float64(math.Float32frombits(u))
	if math.IsInf(x, 0) {
		return below
	}
	down, up := math.Abs(x-value(below)), math.Abs(value(below+1)-x)
	if down < up || down == up && below&1 == 0 {
		return below
	}
	return below + 1
}

// TestRoundBF16: every upper half of a float32 with the lower halves where rounding turns. All 2³² are behind the build
// tag proofs.
func TestRoundBF16(t *testing.T) {
	cases := 0
	for upper := range uint32(1 << 16) {
		for _, lower := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			cases++
			u := upper<<16 | lower
			f := math.Float32frombits(u)
			got := F32ToBF16(f)
			if f != f {
				if g := BF16ToF32(got); g == g || got>>15 != uint16(u>>31) || got&0x40 == 0 {
					t.Fatalf("NaN %08x became %04x", u, got)
				}
				continue
			}
			if want := nearestBF16(u); got != want {
				t.Fatalf("%08x became %04x, want %04x", u, got, want)
			}
		}
	}
	contracttest.Cases(t, cases)
}
