package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrow is single for AVX2, which has neither 32 registers nor dot products of bytes: pairs of products are added
// up in 16 bits as long as they fit, then multiplied with their scale and added in 32. Vectors of 16 lanes have
// two parts.
type narrow struct{ single }

// registers of a narrow row, by half of the row and part.
var (
	totals2 = [2][2]reg.VecPhysical{{reg.Y0, reg.Y1}, {reg.Y2, reg.Y3}} // of a chunk
	groups2 = [2][2]reg.VecPhysical{{reg.Y4, reg.Y5}, {reg.Y6, reg.Y7}} // of a group, in 16 bits; later Σ min·Σq
	scales2 = [2][2]reg.VecPhysical{{reg.Y4, reg.Y5}, {reg.Y6, reg.Y7}} // with 6 bits: of both groups of a pair, by part
	codes2  = [4]reg.VecPhysical{reg.Y8, reg.Y9, reg.Y10, reg.Y11}
	bcast2  = reg.Y12
	spare2  = reg.Y13
	upper2  = reg.Y14 // masks
	low2    = reg.Y15
)

// eachScale are shuffles that put the scale of the first or the second group of a pair into both halves of each lane.
func eachScale() (masks [2]operand.Mem) {
	for j := range masks {
		masks[j] = GLOBL(fmt.Sprintf("scale%d", j), 8|16) // RODATA, NOPTR
		for lane := range 8 {
			b := uint32(4*(lane%4) + 2*j)
			DATA(4*lane, operand.U32(b|(b+1)<<8|b<<16|(b+1)<<24))
		}
	}
	return masks
}

func (s narrow) row(masks [2]operand.Mem) {
	name := fmt.Sprintf("row%d%s%d", s.group, s.name, s.bits)
	s.function(name, "func(data *byte, x *int8, c *float32, chunks int)",
		fmt.Sprintf("adds chunks of a panel with %d-bit codes to one row, as unpacking and superGo(%d) of each do.",
			s.bits, s.group))
	data, x, c, n := pointer("data"), pointer("x"), pointer("c"), pointer("chunks")
	s.bytesOf(0x0f, low2)
	s.bytesOf(0x30, upper2)
	meta, codes, q, left := GP64(), GP64(), GP64(), GP64()
	codeBytes := 256 * lanes * s.bits / 8
	Label("chunk")
	MOVQ(data, codes)
	LEAQ(operand.Mem{Base: data, Disp: codeBytes}, meta)
	MOVQ(x, q)
	for half := range 2 {
		for v := range 2 {
			s.zero(totals2[half][v])
		}
	}
	MOVQ(operand.U32(256/s.group/2), left)
	Label("pair")
	PREFETCHT0(operand.Mem{Base: meta, Disp: ahead})
	if s.bits == 6 {
		for v := range 2 {
			s.widen(operand.Mem{Base: meta, Disp: 16 * v}, scales2[1][v])
			VPSHUFB(masks[0], scales2[1][v], scales2[0][v])
			VPSHUFB(masks[1], scales2[1][v], scales2[1][v])
		}
	}
	for j := range 2 {
		if s.bits == 4 {
			s.fourBits(codes, q, meta, j, masks[j])
		} else {
			s.sixBits(codes, q, j)
		}
	}
	ADDQ(operand.U32(2*s.group*lanes*s.bits/8), codes)
	ADDQ(operand.U32(2*s.group), q)
	ADDQ(operand.U32(32), meta)
	DECQ(left)
	JNE(operand.LabelRef("pair"))
	s.minimaOfRow(meta, x)
	if s.mins {
		ADDQ(operand.U32(128), meta) // meta stands behind the minima
	}
	s.finishRow(meta, x, c)
	ADDQ(operand.U32(s.chunkBytes(codeBytes)), data)
	ADDQ(operand.U32(2*rowBytes), x)
	DECQ(n)
	JNE(operand.LabelRef("chunk"))
	VZEROUPPER()
	RET()
}

// weights loads a part of a vector, and fetches the line that is some way ahead of it.
func (s narrow) weights(codes reg.GPVirtual, at, v int, r reg.VecPhysical) {
	VMOVDQU(operand.Mem{Base: codes, Disp: at + 32*v}, r)
	if v == 0 {
		PREFETCHT0(operand.Mem{Base: codes, Disp: at + ahead})
	}
}

// nibbles cuts bytes in w into their low halves, which stay there, and the high ones.
func (s narrow) nibbles(w, high reg.VecPhysical) {
	VPSRLW(operand.U8(4), w, high)
	VPAND(low2, w, w)
	VPAND(low2, high, high)
}

// fourBits adds group j of a pair: 8 vectors of codes up to 15, whose 16-bit sums come to at most 8·2·15·127 =
// 30,480.
func (s narrow) fourBits(codes, q, meta reg.GPVirtual, j int, mask operand.Mem) {
	for p := range 4 {
		for v := range 2 {
			s.weights(codes, (4*j+p)*vecBytes, v, codes2[v])
			s.nibbles(codes2[v], codes2[2+v])
		}
		for u := range 2 { // vectors 2p and 2p+1
			for half := range 2 {
				VPBROADCASTD(operand.Mem{Base: q, Disp: half*rowBytes + j*s.group + 4*(2*p+u)}, bcast2)
				for v := range 2 {
					sum := groups2[half][v]
					if p == 0 && u == 0 {
						VPMADDUBSW(bcast2, codes2[v], sum)
						continue
					}
					VPMADDUBSW(bcast2, codes2[2*u+v], spare2)
					VPADDW(spare2, sum, sum)
				}
			}
		}
	}
	for v := range 2 {
		scale := codes2[v]
		s.widen(operand.Mem{Base: meta, Disp: 16 * v}, scale)
		VPSHUFB(mask, scale, scale)
		for half := range 2 {
			s.scaled(scale, groups2[half][v], totals2[half][v])
		}
	}
}

// scaled adds scale times both 16-bit numbers of each lane to a total.
func (s narrow) scaled(scale, sum, total reg.VecPhysical) {
	VPMADDWD(scale, sum, sum)
	VPADDD(sum, total, total)
}

// sixBits adds group j of a pair, four vectors at a time. Two sums of codes up to 63 fit 16 bits, 2·2·63·127 =
// 32,004, and four of those of a type with groups of 32, whose codes have 5 bits: 4·2·31·127 = 31,496.
func (s narrow) sixBits(codes, q reg.GPVirtual, j int) {
	fours := s.group / 16
	fit := 2 * fours
	for p := range fours {
		for v := range 2 {
			s.unpack(codes, (j*fours+p)*3*vecBytes, v)
			for half := range 2 {
				for u := range 4 {
					VPBROADCASTD(operand.Mem{Base: q, Disp: half*rowBytes + j*s.group + 16*p + 4*u}, bcast2)
					if u%fit == 0 {
						VPMADDUBSW(bcast2, codes2[u], spare2)
						continue
					}
					VPMADDUBSW(bcast2, codes2[u], bcast2)
					VPADDW(bcast2, spare2, spare2)
					if u%fit == fit-1 {
						s.scaled(scales2[j][v], spare2, totals2[half][v])
					}
				}
			}
		}
	}
}

// unpack fills codes2 with a part of four vectors of 6-bit codes.
func (s narrow) unpack(codes reg.GPVirtual, at, v int) {
	for i := range 2 {
		s.weights(codes, at+i*vecBytes, v, codes2[2*i])
		s.nibbles(codes2[2*i], codes2[2*i+1])
	}
	s.weights(codes, at+2*vecBytes, v, bcast2)
	for u, code := range codes2 {
		up := spare2
		switch u {
		case 0, 1:
			VPSLLW(operand.U8(4-2*u), bcast2, up)
		case 2:
			up = bcast2
		case 3:
			VPSRLW(operand.U8(2), bcast2, up)
		}
		VPAND(upper2, up, spare2)
		VPOR(spare2, code, code)
	}
}

// minimaOfRow sets groups2 to Σ min·Σq over all groups; meta stands behind the scales.
func (s narrow) minimaOfRow(meta, x reg.GPVirtual) {
	scaleBytes := 256 / s.group * lanes
	at := -scaleBytes // the minima are 32 times the scales
	if s.mins {
		at = 0
	}
	for p := range 256 / s.group / 2 {
		for v := range 2 {
			w := codes2[v]
			s.widen(operand.Mem{Base: meta, Disp: at + 32*p + 16*v}, w)
			for half := range 2 {
				VPBROADCASTD(operand.Mem{Base: x, Disp: half*rowBytes + s.sumsAt() + 4*p}, bcast2)
				if p == 0 {
					VPMADDWD(bcast2, w, groups2[half][v])
					continue
				}
				VPMADDWD(bcast2, w, bcast2)
				VPADDD(bcast2, groups2[half][v], groups2[half][v])
			}
		}
	}
	for v := 0; v < 2 && !s.mins; v++ {
		for half := range 2 {
			VPSLLD(operand.U8(5), groups2[half][v], groups2[half][v])
		}
	}
}

// finishRow joins the halves, scales the sums of a chunk and adds them to the outputs.
func (s narrow) finishRow(meta, x, c reg.GPVirtual) {
	steps, xd, t, d := codes2[0], codes2[1], codes2[2], codes2[3]
	s.finer(steps)
	VBROADCASTSS(operand.Mem{Base: x, Disp: rowBytes + rowDAt}, xd)
	for v := range 2 {
		sum, low, out := totals2[0][v], groups2[0][v], operand.Mem{Base: c, Disp: 32 * v}
		s.join(steps, sum, totals2[1][v])
		s.join(steps, low, groups2[1][v])
		VCVTPH2PS(operand.Mem{Base: meta, Disp: 16 * v}, d)
		VMULPS(d, xd, t)
		VMULPS(sum, t, sum)
		if s.mins {
			VCVTPH2PS(operand.Mem{Base: meta, Disp: 32 + 16*v}, d)
			VMULPS(d, xd, t)
		}
		VMULPS(low, t, low)
		VSUBPS(low, sum, sum)
		VADDPS(out, sum, sum)
		VMOVUPS(sum, out)
	}
}
