package quant

import "encoding/binary"

// Block sizes in bytes, 256 elements each.
const (
	bytesQ3K = 32 + 64 + 12 + 2
	bytesQ2K = 16 + 64 + 2 + 2
)

// crumbs[k] gives the two bits of a byte from bit 2k on; crumbs4 the same less 4.
var crumbs, crumbs4 = func() (t, low [4][256]float32) {
	for k := range t {
		t[k] = table(func(b byte) int { return int(b >> (2 * k) & 3) })
		low[k] = table(func(b byte) int { return int(b>>(2*k)&3) - 4 })
	}
	return t, low
}()

// scaleQ3K returns the integer scale of subgroup j of 16 elements of a Q3_K block, −32…31: four bits in a nibble of s[0:8], two
// above them in s[8:12].
func scaleQ3K(s *[12]byte, j int) int {
	low := s[j%8] >> (4 * (j / 8)) & 15
	return int(low|s[8+j%4]>>(2*(j/4))&3<<4) - 32
}

// packScaleQ3K adds the scale of subgroup j to a zeroed s.
func packScaleQ3K(s *[12]byte, j, scale int) {
	v := byte(scale + 32)
	s[j%8] |= v & 15 << (4 * (j / 8))
	s[8+j%4] |= v >> 4 << (2 * (j / 4))
}

// decodeQ3K: u8 h[32], u8 q[64], u8 s[12], f16 d; group j has bits 2·(j mod 4) of q[32·(j/4):][:32], and one more above them
// in bit j of h; x = (d·sc)·(q − 4), sc for each 16 elements.
func decodeQ3K(dst []float32, src []byte, g int) {
	for len(dst) >= group {
		b := (*[bytesQ3K]byte)(src[g/8*bytesQ3K:])
		d, s, h := half(b[108:]), (*[12]byte)(b[96:]), (*[32]byte)(b[:])
		for j := g % 8; j < 8 && len(dst) >= group; j++ {
			q, low, high := (*[32]byte)(b[32+32*(j/4&1):]), &crumbs4[j%4], &crumbs[j%4]
			for part := range 2 {
				scale := d * float32(scaleQ3K(s, 2*j+part))
				x := (*[16]float32)(dst[16*part:])
				for l := range x {
					t := low
					if h[16*part+l]>>(j&7)&1 == 1 {
						t = high
					}
					x[l] = scale * t[q[16*part+l]]
				}
			}
			dst, g = dst[group:], g+1
		}
	}
}

// decodeQ2K: u8 s[16], u8 q[64], f16 d, f16 dmin; group j has bits 2·(j mod 4) of q[32·(j/4):][:32]; the low nibble of s is the
// scale of 16 elements, the high one their minimum; x = (d·sc)·q − dmin·m.
func decodeQ2K(dst []float32, src []byte, g int) {
	for len(dst) >= group {
		b := (*[bytesQ2K]byte)(src[g/8*bytesQ2K:])
		d, dmin := half(b[80:]), half(b[82:])
		for j := g % 8; j < 8 && len(dst) >= group; j++ {
			q, t := (*[32]byte)(b[16+32*(j/4&1):]), &crumbs[j%4]
			for part := range 2 {
				sc := b[2*j+part]
				scale, off := d*lowNibble[sc], dmin*highNibble[sc]
				x, codes := (*[16]float32)(dst[16*part:]), (*[16]byte)(q[16*part:])
				for l := range x {
					x[l] = float32(scale*t[codes[l]]) - off
				}
			}
			dst, g = dst[group:], g+1
		}
	}
}

// codesQ3K writes the 256 integers −4…3 of q to a block.
func codesQ3K(b *[bytesQ3K]byte, q *[superblock]int8) {
	clear(b[:96])
	for i, v := range q {
		code := byte(v + 4)
		b[32+32*(i/128)+i%32] |= code & 3 << (2 * (i / 32 % 4))
		b[i%32] |= code >> 2 << (i / 32)
	}
}

// codesQ2K writes the 256 integers 0…3 of q to a block.
func codesQ2K[code int8 | byte](b *[bytesQ2K]byte, q *[superblock]code) {
	clear(b[16:80])
	for i, v := range q {
		b[16+32*(i/128)+i%32] |= byte(v) << (2 * (i / 32 % 4))
	}
}

// packQ3K writes a symmetric block.
func packQ3K(b *[bytesQ3K]byte, f *scaledBlock) {
	codesQ3K(b, &f.q)
	s := (*[12]byte)(b[96:])
	*s = [12]byte{}
	for j := range 16 {
		packScaleQ3K(s, j, f.sc[j])
	}
	binary.LittleEndian.PutUint16(b[108:], f.d)
}

// packQ2K writes an affine block.
func packQ2K(b *[bytesQ2K]byte, f *scaledBlock) {
	codesQ2K(b, &f.q)
	for j := range 16 {
		b[j] = byte(f.sc[j] | f.m[j]<<4)
	}
	binary.LittleEndian.PutUint16(b[80:], f.d)
	binary.LittleEndian.PutUint16(b[82:], f.dmin)
}
