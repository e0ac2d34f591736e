package quant

import "math"

// bytesMXFP4 is the size of a block of MXFP4: a scale, then 32 codes of 4 bits.
const bytesMXFP4 = 1 + 16

// mxfp4Values are twice the floats that codes of 4 bits stand for: a sign, two bits of exponent, one of mantissa. Code 8, minus
// zero, is 0, as in GGML.
var mxfp4Values = [16]int{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// mxfp4Sorted are the different ones, ascending.
var mxfp4Sorted = [15]int{-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12}

var (
	lowMXFP4  = table(func(b byte) int { return mxfp4Values[b&15] })
	highMXFP4 = table(func(b byte) int { return mxfp4Values[b>>4] })
)

// nanScale is the scale that the standard of MXFP4 reserves for NaN.
const nanScale = 255

// mxfp4Scale[e] is half the power of two 2^(e−127) that a scale stands for; NaN for nanScale.
var mxfp4Scale = func() (t [256]float32) {
	for e := range t {
		t[e] = float32(math.Ldexp(1, e-128))
	}
	t[nanScale] = float32(math.NaN())
	return t
}()

// MXFP4Value returns the doubled float that a code of MXFP4 stands for, 0 ≤ code < 16.
func MXFP4Value(code int) int { return mxfp4Values[code] }

// MXFP4Scale returns what the doubled floats of a block with scale e are multiplied by: 2^(e−128), NaN for e = 255.
func MXFP4Scale(e byte) float32 { return mxfp4Scale[e] }

// decodeMXFP4: u8 e, 16 bytes whose low nibbles are elements 0–15 and high nibbles 16–31; x[i] = 2^(e−128)·v[q[i]].
func decodeMXFP4(dst []float32, src []byte, g int) {
	for src = src[g*bytesMXFP4:]; len(dst) >= group; dst, src = dst[group:], src[bytesMXFP4:] {
		x, b := (*[group]float32)(dst), (*[bytesMXFP4]byte)(src)
		d, q := mxfp4Scale[b[0]], (*[16]byte)(b[1:])
		scale16((*[16]float32)(x[:]), q, &lowMXFP4, d)
		scale16((*[16]float32)(x[16:]), q, &highMXFP4, d)
	}
}

// encodeMXFP4 chooses e = ⌊log₂ max|x|⌋ − 2 + 127, so that the largest magnitude is from 4 to 8 steps of 2^(e−127), of which 6 is
// the most; each element becomes the nearest value, of two equally near ones that of the lower code. The logarithm is rounded
// to float32 before ⌊⌋, as GGML computes it.
func encodeMXFP4(b *[bytesMXFP4]byte, src *[group]float32) {
	var most float32
	for _, v := range src {
		most = max(most, float32(math.Abs(float64(v))))
	}
	b[0] = 0
	if most > 0 {
		b[0] = byte(max(0, math.Floor(float64(float32(math.Log2(float64(most)))))-2+127))
	}
	d := mxfp4Scale[b[0]]
	for j := range 16 {
		b[1+j] = nearestMXFP4(src[j], d) | nearestMXFP4(src[16+j], d)<<4
	}
}

// nearestMXFP4 returns the lowest code whose value times d is nearest to x.
func nearestMXFP4(x, d float32) (code byte) {
	least := float32(math.Inf(1))
	for c, v := range mxfp4Values {
		if off := float32(math.Abs(float64(float32(float32(v)*d) - x))); off < least {
			code, least = byte(c), off
		}
	}
	return code
}

// firstBadMXFP4 is FirstNonFinite of MXFP4: scale 255 is NaN, and floats of the two below it may be beyond float32.
func firstBadMXFP4(src []byte) int {
	for i := 0; i+bytesMXFP4 <= len(src); i += bytesMXFP4 {
		if src[i] < nanScale-2 {
			continue
		}
		var x [group]float32
		decodeMXFP4(x[:], src[i:], 0)
		for _, v := range x {
			if !isFinite(v) {
				return i / bytesMXFP4 * group
			}
		}
	}
	return -1
}

// MXFP4FromHF writes to dst the blocks of MXFP4 of which Hugging Face's files hold codes and scales apart: byte j of the 16 of a block
// is elements 2j (low) and 2j+1. It panics if len(dst) is not 17 for each scale, or len(codes) not 16.
func MXFP4FromHF(dst, codes, scales []byte) {
	checkHF(dst, codes, scales)
	for i, e := range scales {
		b, q := (*[bytesMXFP4]byte)(dst[i*bytesMXFP4:]), (*[16]byte)(codes[i*16:])
		b[0] = e
		for j := range 8 { // elements 2j and 2j+1, and the same of the second half
			lo, hi := q[j], q[8+j]
			b[1+2*j], b[2+2*j] = lo&15|hi<<4, lo>>4|hi&0xf0
		}
	}
}

// MXFP4ToHF is the inverse of MXFP4FromHF: it writes codes and scales of the blocks in src. Of the two, nil is left out.
func MXFP4ToHF(codes, scales, src []byte) {
	for i := 0; i*bytesMXFP4 < len(src); i++ {
		b := (*[bytesMXFP4]byte)(src[i*bytesMXFP4:])
		if scales != nil {
			scales[i] = b[0]
		}
		if codes == nil {
			continue
		}
		q := (*[16]byte)(codes[i*16:])
		for j := range 8 {
			even, odd := b[1+2*j], b[2+2*j]
			q[j], q[8+j] = even&15|odd<<4, even>>4|odd&0xf0
		}
	}
}

func checkHF(dst, codes, scales []byte) {
	if len(dst) != bytesMXFP4*len(scales) || len(codes) != 16*len(scales) {
		panic("quant: blocks, codes and scales of MXFP4 differ in number")
	}
}
