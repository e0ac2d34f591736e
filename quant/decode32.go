package quant

import (
	"encoding/binary"
	"math"
)

// Block sizes in bytes, 32 elements each.
const (
	bytesQ4_0  = 2 + 16
	bytesQ5_0  = 2 + 4 + 16
	bytesQ8_0  = 2 + 32
	bytesAprQ4 = 2 + 16
)

// decodeQ8_0: f16 d, int8 q[32]; x[i] = d·q[i].
func decodeQ8_0(dst []float32, src []byte, g int) {
	for src = src[g*bytesQ8_0:]; len(dst) >= group; dst, src = dst[group:], src[bytesQ8_0:] {
		x, b := (*[group]float32)(dst), (*[bytesQ8_0]byte)(src)
		d := half(b[:])
		scale16((*[16]float32)(x[:]), (*[16]byte)(b[2:]), &signedByte, d)
		scale16((*[16]float32)(x[16:]), (*[16]byte)(b[18:]), &signedByte, d)
	}
}

// decodeQ4_0: f16 d, 16 bytes whose low nibbles are elements 0–15 and high nibbles 16–31; x[i] = d·(q[i]−8).
func decodeQ4_0(dst []float32, src []byte, g int) {
	for src = src[g*bytesQ4_0:]; len(dst) >= group; dst, src = dst[group:], src[bytesQ4_0:] {
		x, b := (*[group]float32)(dst), (*[bytesQ4_0]byte)(src)
		d, q := half(b[:]), (*[16]byte)(b[2:])
		scale16((*[16]float32)(x[:]), q, &lowNibble8, d)
		scale16((*[16]float32)(x[16:]), q, &highNibble8, d)
	}
}

// spread5[h] has bit i of h at weight 16 of byte i: the fifth bits of eight elements.
var spread5 = func() (t [256]uint64) {
	for h := range t {
		for i := range 8 {
			t[h] |= uint64(h>>i&1) << (8*i + 4)
		}
	}
	return t
}()

// decodeQ5_0: f16 d, u32 h, 16 bytes as in Q4_0; bit i of h is worth 16 in element i; x[i] = d·(q[i]−16).
func decodeQ5_0(dst []float32, src []byte, g int) {
	const low = 0x0f0f0f0f0f0f0f0f
	var codes [32]byte
	for src = src[g*bytesQ5_0:]; len(dst) >= group; dst, src = dst[group:], src[bytesQ5_0:] {
		x, b := (*[group]float32)(dst), (*[bytesQ5_0]byte)(src)
		d := half(b[:])
		q0, q1 := binary.LittleEndian.Uint64(b[6:]), binary.LittleEndian.Uint64(b[14:])
		binary.LittleEndian.PutUint64(codes[0:], q0&low|spread5[b[2]])
		binary.LittleEndian.PutUint64(codes[8:], q1&low|spread5[b[3]])
		binary.LittleEndian.PutUint64(codes[16:], q0>>4&low|spread5[b[4]])
		binary.LittleEndian.PutUint64(codes[24:], q1>>4&low|spread5[b[5]])
		scale16((*[16]float32)(x[:]), (*[16]byte)(codes[:]), &minus16, d)
		scale16((*[16]float32)(x[16:]), (*[16]byte)(codes[16:]), &minus16, d)
	}
}

// decodeAprQ4: f16 d, 16 bytes; element 2k is the low nibble of byte k, element 2k+1 the high one; x[i] = d·(q[i]−8).
// As in aprender, a d that is NaN, infinite or subnormal counts as 0.
func decodeAprQ4(dst []float32, src []byte, g int) {
	for src = src[g*bytesAprQ4:]; len(dst) >= group; dst, src = dst[group:], src[bytesAprQ4:] {
		x, b := (*[group]float32)(dst), (*[bytesAprQ4]byte)(src)
		d := half(b[:])
		if a := float32(math.Abs(float64(d))); !(a >= 0x1p-14 && a <= MaxAbs) {
			d = 0
		}
		q := (*[16]byte)(b[2:])
		for k := range q {
			x[2*k] = d * lowNibble8[q[k]]
			x[2*k+1] = d * highNibble8[q[k]]
		}
	}
}
