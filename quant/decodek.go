package quant

import "encoding/binary"

// Block sizes in bytes, 256 elements each.
const (
	superblock = 256
	bytesQ4K   = 2 + 2 + 12 + 128
	bytesQ5K   = 2 + 2 + 12 + 32 + 128
	bytesQ6K   = 128 + 64 + 16 + 2
)

// scalesMins unpacks the eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K, byte j of each result for group j.
// Groups 0–3 have theirs in the low 6 bits of s[0:4] and s[4:8]; groups 4–7 have the low 4 bits in the nibbles of
// s[8:12] and the high 2 bits on top of the bytes of groups 0–3.
func scalesMins(s *[12]byte) (sc, m uint64) {
	a, b, c := binary.LittleEndian.Uint32(s[0:]), binary.LittleEndian.Uint32(s[4:]), binary.LittleEndian.Uint32(s[8:])
	scHigh := c&0x0f0f0f0f | a>>2&0x30303030
	mHigh := c>>4&0x0f0f0f0f | b>>2&0x30303030
	return uint64(a&0x3f3f3f3f) | uint64(scHigh)<<32, uint64(b&0x3f3f3f3f) | uint64(mHigh)<<32
}

// packScalesMins is the inverse of scalesMins for bytes below 64.
func packScalesMins(s *[12]byte, sc, m uint64) {
	scLow, scHigh, mLow, mHigh := uint32(sc), uint32(sc>>32), uint32(m), uint32(m>>32)
	binary.LittleEndian.PutUint32(s[0:], scLow|scHigh<<2&0xc0c0c0c0)
	binary.LittleEndian.PutUint32(s[4:], mLow|mHigh<<2&0xc0c0c0c0)
	binary.LittleEndian.PutUint32(s[8:], scHigh&0x0f0f0f0f|mHigh<<4&0xf0f0f0f0)
}

// decodeQ4K: f16 d, f16 dmin, u8 s[12], u8 q[128]; groups 2k and 2k+1 are the low and high nibbles of q[32k:32k+32];
// x = (d·sc)·q − dmin·m.
func decodeQ4K(dst []float32, src []byte, g int) {
	for len(dst) >= group {
		b := (*[bytesQ4K]byte)(src[g/8*bytesQ4K:])
		d, dmin := half(b[0:]), half(b[2:])
		sc, m := scalesMins((*[12]byte)(b[4:]))
		for j := g % 8; j < 8 && len(dst) >= group; j++ {
			q, t := (*[32]byte)(b[16+32*(j/2&3):]), &lowNibble
			if j%2 == 1 {
				t = &highNibble
			}
			affine32((*[32]float32)(dst), q, t, d*plainByte[byte(sc>>(8*j))], dmin*plainByte[byte(m>>(8*j))])
			dst, g = dst[group:], g+1
		}
	}
}

// decodeQ5K: as Q4_K, with u8 h[32] between s and q; bit j of h[l] is worth 16 in element l of group j.
func decodeQ5K(dst []float32, src []byte, g int) {
	var codes [32]byte
	for len(dst) >= group {
		b := (*[bytesQ5K]byte)(src[g/8*bytesQ5K:])
		d, dmin := half(b[0:]), half(b[2:])
		sc, m := scalesMins((*[12]byte)(b[4:]))
		for j := g % 8; j < 8 && len(dst) >= group; j++ {
			codesQ5K(&codes, b, j)
			affine32((*[32]float32)(dst), &codes, &plainByte, d*plainByte[byte(sc>>(8*j))], dmin*plainByte[byte(m>>(8*j))])
			dst, g = dst[group:], g+1
		}
	}
}

// codesQ5K joins the nibbles and the fifth bits of group j, eight elements at a time.
func codesQ5K(codes *[32]byte, b *[bytesQ5K]byte, j int) {
	h, q := (*[32]byte)(b[16:]), (*[32]byte)(b[48+32*(j/2&3):])
	for l := 0; l < 32; l += 8 {
		nibbles := binary.LittleEndian.Uint64(q[l:]) >> (4 * (j & 1)) & 0x0f0f0f0f0f0f0f0f
		fifth := binary.LittleEndian.Uint64(h[l:]) >> (j & 7) & 0x0101010101010101
		binary.LittleEndian.PutUint64(codes[l:], nibbles|fifth<<4)
	}
}

// decodeQ6K: u8 ql[128], u8 qh[64], i8 s[16], f16 d. Group j = 4h+k has the nibbles (k < 2 low, else high) of
// ql[64h+32(k%2):], the two bits 2k of qh[32h:], and the scales s[2j] and s[2j+1] of 16 elements each;
// x = (d·s)·(q−32).
func decodeQ6K(dst []float32, src []byte, g int) {
	var codes [32]byte
	for len(dst) >= group {
		b := (*[bytesQ6K]byte)(src[g/8*bytesQ6K:])
		d := half(b[208:])
		for j := g % 8; j < 8 && len(dst) >= group; j++ {
			codesQ6K(&codes, b, j)
			x, s := (*[32]float32)(dst), (*[2]byte)(b[192+2*(j&7):])
			scale16((*[16]float32)(x[:]), (*[16]byte)(codes[:]), &minus32, d*signedByte[s[0]])
			scale16((*[16]float32)(x[16:]), (*[16]byte)(codes[16:]), &minus32, d*signedByte[s[1]])
			dst, g = dst[group:], g+1
		}
	}
}

// codesQ6K joins the nibbles and the upper two bits of group j, eight elements at a time.
func codesQ6K(codes *[32]byte, b *[bytesQ6K]byte, j int) {
	h, k := j/4&1, j%4&3
	ql, qh := (*[32]byte)(b[64*h+32*(k&1):]), (*[32]byte)(b[128+32*h:])
	for l := 0; l < 32; l += 8 {
		nibbles := binary.LittleEndian.Uint64(ql[l:]) >> (4 * (k >> 1)) & 0x0f0f0f0f0f0f0f0f
		upper := binary.LittleEndian.Uint64(qh[l:]) >> (2 * k) & 0x0303030303030303
		binary.LittleEndian.PutUint64(codes[l:], nibbles|upper<<4)
	}
}
