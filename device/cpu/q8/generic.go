package q8

import (
	"math"
	"unsafe"
)

// unpacked is a chunk of a panel ready for products; assembly knows this layout.
type unpacked struct {
	codes [chunk * lanes]byte // bytes of 8-bit codes, as in Matrix
	scale [16][lanes]int32    // of K types by group; of 32-blocks float32 bits
	min   [8][lanes][2]int16  // of K types: of groups 2p and 2p+1
	d     [lanes]float32
	dmin  [lanes]float32
}

// unpackGo4 writes n pairs of vectors of 4-bit codes.
func unpackGo4(dst, src *byte, n int) {
	d, s := bytesAt(dst, 2*n*vecBytes), bytesAt(src, n*vecBytes)
	for p := range n {
		for i, b := range s[p*vecBytes:][:vecBytes] {
			d[2*p*vecBytes+i], d[(2*p+1)*vecBytes+i] = b&15, b>>4
		}
	}
}

// unpackTableGo is unpackGo4 with each code looked up in a table of 16 bytes.
func unpackTableGo(dst, src *byte, n int, table *byte) {
	d, s, t := bytesAt(dst, 2*n*vecBytes), bytesAt(src, n*vecBytes), bytesAt(table, 16)
	for p := range n {
		for i, b := range s[p*vecBytes:][:vecBytes] {
			d[2*p*vecBytes+i], d[(2*p+1)*vecBytes+i] = t[b&15], t[b>>4]
		}
	}
}

// unpackGo6 writes n fours of vectors of 6-bit codes.
func unpackGo6(dst, src *byte, n int) {
	d, s := bytesAt(dst, 4*n*vecBytes), bytesAt(src, 3*n*vecBytes)
	for p := range n {
		for i := range vecBytes {
			a, b, up := s[3*p*vecBytes+i], s[(3*p+1)*vecBytes+i], s[(3*p+2)*vecBytes+i]
			for u, low := range [4]byte{a & 15, a >> 4, b & 15, b >> 4} {
				d[(4*p+u)*vecBytes+i] = low | up>>(2*u)&3<<4
			}
		}
	}
}

// meta32Go reads the scales, minima, d and dmin of a chunk of Q4_K or Q5_K.
func meta32Go(to, src *byte) {
	u := (*unpacked)(unsafe.Pointer(to))
	s := bytesAt(src, 16*lanes+4*lanes)
	for j := range 8 {
		for l := range lanes {
			at := j/2*2*lanes + 2*l + j%2
			u.scale[j][l] = int32(int8(s[at]))
			m := int16(int8(s[8*lanes+at]))
			u.min[j/2][l][j%2] = m
		}
	}
	for l := range lanes {
		u.d[l], u.dmin[l] = half(s[16*lanes+2*l:]), half(s[18*lanes+2*l:])
	}
}

// meta16Go reads the scales and d of a chunk of Q6_K, whose minima are 32 times the scales.
func meta16Go(to, src *byte) {
	u := (*unpacked)(unsafe.Pointer(to))
	s := bytesAt(src, 16*lanes+2*lanes)
	for j := range 16 {
		for l := range lanes {
			v := int8(s[j/2*2*lanes+2*l+j%2])
			u.scale[j][l], u.min[j/2][l][j%2] = int32(v), 32*int16(v)
		}
	}
	for l := range lanes {
		u.d[l] = half(s[16*lanes+2*l:])
		u.dmin[l] = u.d[l]
	}
}

// metaBlocksGo reads the scales of n 32-blocks.
func metaBlocksGo(to, src *byte, n int) {
	u := (*unpacked)(unsafe.Pointer(to))
	s := bytesAt(src, 2*n*lanes)
	for j := range n {
		for l := range lanes {
			u.scale[j][l] = int32(math.Float32bits(half(s[2*(j*lanes+l):])))
		}
	}
}

// metaPowersGo reads the scales of n 32-blocks that are 2^(e−128), as max(2^(e−127)/2, 2^−128): infinite for e = 255, which is NaN in
// files and refused when they are read.
func metaPowersGo(to, src *byte, n int) {
	u := (*unpacked)(unsafe.Pointer(to))
	s := bytesAt(src, n*lanes)
	for j := range n {
		for l := range lanes {
			power := math.Float32frombits(uint32(s[j*lanes+l])<<23) / 2
			u.scale[j][l] = int32(math.Float32bits(max(power, 0x1p-128)))
		}
	}
}

// dots returns Σ c·q over vectors [v, v+n) in one lane.
func dots(codes []byte, q []int8, lane, v, n int) int32 {
	s := int32(0)
	for ; n > 0; v, n = v+1, n-1 {
		c, x := codes[v*vecBytes+perWord*lane:][:perWord], q[v*perWord:][:perWord]
		for i := range perWord {
			s += int32(c[i]) * int32(x[i])
		}
	}
	return s
}

// superGo returns the tile of one row of a K type with groups of the given number of columns: for each lane
//
//	c += d·x.d·S − dmin·x.d·M,  S = 254·S₀ + S₁ of S = Σ_j scale[j]·Σ c·q,  M = 254·M₀ + M₁ of M = Σ_j min[j]·Σ q
//
// with integer sums in the coarse half 0 and the fine half 1, whose d is x.d, and each of the float32 operations rounded
// on its own.
func superGo(group int) tileFunc {
	return func(codes, panel *byte, row *int8, c *float32, _, _ int) {
		u, halves := (*unpacked)(unsafe.Pointer(panel)), (*[2]rounded)(unsafe.Pointer(row))
		all, out := bytesAt(codes, chunk*lanes), floatsAt(c, lanes)
		for l := range lanes {
			var s, m [2]int32
			for half := range halves {
				x := &halves[half]
				sums := x.sums[:]
				if group == 32 {
					sums = x.pairs[:]
				}
				for j := range chunk / group {
					s[half] += u.scale[j][l] * dots(all, x.q[:], l, j*group/perWord, group/perWord)
					m[half] += int32(u.min[j/2][l][j%2]) * int32(sums[j])
				}
			}
			d := halves[1].d[0]
			a := float32(float32(u.d[l]*d) * join(s))
			b := float32(float32(u.dmin[l]*d) * join(m))
			out[l] += float32(a - b)
		}
	}
}

// join returns the sum of both halves in fine steps.
func join(s [2]int32) float32 { return float32(float32(s[0])*finer) + float32(s[1]) }

// blocksGo is the tile of one row of n 32-blocks: in each half x, Σ_j (scale[j]·x.d[j])·(Σ c·q − zero·Σ q), the coarse
// sum beginning with c; c becomes the sum of both.
func blocksGo(codes, panel *byte, row *int8, c *float32, n, zero int) {
	u, halves := (*unpacked)(unsafe.Pointer(panel)), (*[2]rounded)(unsafe.Pointer(row))
	all, out := bytesAt(codes, n*32*lanes), floatsAt(c, lanes)
	for l := range lanes {
		total := [2]float32{out[l], 0}
		for half := range halves {
			x := &halves[half]
			for j := range n {
				s := dots(all, x.q[:], l, j*32/perWord, 32/perWord) - int32(zero)*int32(x.sums[2*j])
				scale := math.Float32frombits(uint32(u.scale[j][l]))
				total[half] += float32(float32(scale*x.d[j]) * float32(s))
			}
		}
		out[l] = total[0] + total[1]
	}
}
