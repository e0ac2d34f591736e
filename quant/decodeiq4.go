package quant

import "encoding/binary"

// Block sizes in bytes, of 32 and of 256 elements.
const (
	bytesIQ4NL = 2 + 16
	bytesIQ4XS = 2 + 2 + 4 + 128
)

// iq4Values are the values that the 16 codes of IQ4_NL and IQ4_XS stand for: close together where weights are many.
var iq4Values = [16]int{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

var (
	lowIQ4  = table(func(b byte) int { return iq4Values[b&15] })
	highIQ4 = table(func(b byte) int { return iq4Values[b>>4] })
)

// decodeIQ4NL: f16 d, 16 bytes whose low nibbles are elements 0–15 and high nibbles 16–31; x[i] = d·v[q[i]].
func decodeIQ4NL(dst []float32, src []byte, g int) {
	for src = src[g*bytesIQ4NL:]; len(dst) >= group; dst, src = dst[group:], src[bytesIQ4NL:] {
		x, b := (*[group]float32)(dst), (*[bytesIQ4NL]byte)(src)
		d, q := half(b[:]), (*[16]byte)(b[2:])
		scale16((*[16]float32)(x[:]), q, &lowIQ4, d)
		scale16((*[16]float32)(x[16:]), q, &highIQ4, d)
	}
}

// scaleIQ4XS returns the integer scale of group j of a block of IQ4_XS, −32…31: four bits in nibble j of b[4:8], two above
// them in bits 2j and 2j+1 of b[2:4].
func scaleIQ4XS(b []byte, j int) int {
	low := b[4+j/2] >> (4 * (j & 1)) & 15
	high := binary.LittleEndian.Uint16(b[2:]) >> (2 * j) & 3
	return int(low) + 16*int(high) - 32
}

// decodeIQ4XS: f16 d, u16 h, u8 s[4] (see scaleIQ4XS), u8 q[128]; group j has the nibbles of q[16j:16j+16] as IQ4_NL has
// them; x[i] = (d·sc)·v[q[i]].
func decodeIQ4XS(dst []float32, src []byte, g int) {
	for len(dst) >= group {
		b := (*[bytesIQ4XS]byte)(src[g/8*bytesIQ4XS:])
		d := half(b[:])
		for j := g % 8; j < 8 && len(dst) >= group; j++ {
			x, q := (*[group]float32)(dst), (*[16]byte)(b[8+16*(j&7):])
			s := d * float32(scaleIQ4XS(b[:], j))
			scale16((*[16]float32)(x[:]), q, &lowIQ4, s)
			scale16((*[16]float32)(x[16:]), q, &highIQ4, s)
			dst, g = dst[group:], g+1
		}
	}
}
