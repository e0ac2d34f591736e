package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// bytesOf fills r with a byte.
func (s isa) bytesOf(b uint32, r reg.VecPhysical) {
	t := GP32()
	MOVL(operand.U32(b*0x01010101), t)
	x := r.(reg.Vec).AsX()
	VMOVD(t, x)
	VPBROADCASTD(x, r)
}

func (s isa) and(a, b, dst reg.VecPhysical) {
	if s.wide() {
		VPANDD(a, b, dst)
	} else {
		VPAND(a, b, dst)
	}
}

func (s isa) or(a, b, dst reg.VecPhysical) {
	if s.wide() {
		VPORD(a, b, dst)
	} else {
		VPOR(a, b, dst)
	}
}

func (s isa) store(r reg.VecPhysical, m operand.Mem) {
	if s.wide() {
		VMOVDQU32(r, m)
	} else {
		VMOVDQU(r, m)
	}
}

func (s isa) unpack4() {
	s.function("unpack4"+s.name, "func(dst, src *byte, n int)", "does what unpackGo4 does; n > 0.")
	dst, src, n := pointer("dst"), pointer("src"), pointer("n")
	mask := s.vec(0)
	s.bytesOf(0x0f, mask)
	Label("loop")
	for v := range s.parts {
		a, b := s.vec(1), s.vec(2)
		s.load(operand.Mem{Base: src, Disp: v * s.bytes}, a)
		VPSRLW(operand.U8(4), a, b)
		s.and(mask, a, a)
		s.and(mask, b, b)
		s.store(a, operand.Mem{Base: dst, Disp: v * s.bytes})
		s.store(b, operand.Mem{Base: dst, Disp: vecBytes + v*s.bytes})
	}
	ADDQ(operand.U32(vecBytes), src)
	ADDQ(operand.U32(2*vecBytes), dst)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// unpackTable is unpack4 with a look-up in a table of 16 bytes.
func (s isa) unpackTable() {
	s.function("unpackTable"+s.name, "func(dst, src *byte, n int, table *byte)", "does what unpackTableGo does; n > 0.")
	dst, src, n, table := pointer("dst"), pointer("src"), pointer("n"), pointer("table")
	mask, t := s.vec(0), s.vec(3)
	s.bytesOf(0x0f, mask)
	if s.wide() {
		VBROADCASTI32X4(operand.Mem{Base: table}, t)
	} else {
		VBROADCASTI128(operand.Mem{Base: table}, t)
	}
	Label("loop")
	for v := range s.parts {
		a, b := s.vec(1), s.vec(2)
		s.load(operand.Mem{Base: src, Disp: v * s.bytes}, a)
		VPSRLW(operand.U8(4), a, b)
		s.and(mask, a, a)
		s.and(mask, b, b)
		VPSHUFB(a, t, a)
		VPSHUFB(b, t, b)
		s.store(a, operand.Mem{Base: dst, Disp: v * s.bytes})
		s.store(b, operand.Mem{Base: dst, Disp: vecBytes + v*s.bytes})
	}
	ADDQ(operand.U32(vecBytes), src)
	ADDQ(operand.U32(2*vecBytes), dst)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func (s isa) unpack6() {
	s.function("unpack6"+s.name, "func(dst, src *byte, n int)", "does what unpackGo6 does; n > 0.")
	dst, src, n := pointer("dst"), pointer("src"), pointer("n")
	low, high := s.vec(0), s.vec(1)
	s.bytesOf(0x0f, low)
	s.bytesOf(0x30, high)
	Label("loop")
	for v := range s.parts {
		up, a, t := s.vec(2), s.vec(3), s.vec(4)
		s.load(operand.Mem{Base: src, Disp: 2*vecBytes + v*s.bytes}, up)
		for u := range 4 {
			switch u {
			case 0:
				VPSLLW(operand.U8(4), up, t)
			case 1:
				VPSLLW(operand.U8(2), up, t)
			case 2:
				t = up
			case 3:
				VPSRLW(operand.U8(2), up, t)
			}
			if u%2 == 0 {
				s.load(operand.Mem{Base: src, Disp: u/2*vecBytes + v*s.bytes}, a)
				s.and(low, a, s.vec(5))
			} else {
				VPSRLW(operand.U8(4), a, s.vec(5))
				s.and(low, s.vec(5), s.vec(5))
			}
			s.and(high, t, s.vec(6))
			s.or(s.vec(5), s.vec(6), s.vec(5))
			s.store(s.vec(5), operand.Mem{Base: dst, Disp: u*vecBytes + v*s.bytes})
			t = s.vec(4)
		}
	}
	ADDQ(operand.U32(3*vecBytes), src)
	ADDQ(operand.U32(4*vecBytes), dst)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// widen loads a vector of 16-bit numbers from bytes.
func (s isa) widen(m operand.Mem, r reg.VecPhysical) { VPMOVSXBW(m, r) }

// scalePair writes the scales of groups 2p and 2p+1, which are the halves of the 32-bit lanes of r.
func (s isa) scalePair(u reg.GPVirtual, p, v int, r, t reg.VecPhysical) {
	VPSLLD(operand.U8(16), r, t)
	VPSRAD(operand.U8(16), t, t)
	s.store(t, operand.Mem{Base: u, Disp: scaleAt + 2*p*64 + v*s.bytes})
	VPSRAD(operand.U8(16), r, t)
	s.store(t, operand.Mem{Base: u, Disp: scaleAt + (2*p+1)*64 + v*s.bytes})
}

// halves writes 16 float16 as float32.
func (s isa) halves(src reg.GPVirtual, from int, dst reg.GPVirtual, to ...int) {
	for v := range s.parts {
		r := s.vec(v)
		VCVTPH2PS(operand.Mem{Base: src, Disp: from + v*s.bytes/2}, r)
		for _, at := range to {
			VMOVUPS(r, operand.Mem{Base: dst, Disp: at + v*s.bytes})
		}
	}
}

func (s isa) meta32() {
	s.function("meta32"+s.name, "func(u, src *byte)", "does what meta32Go does.")
	u, src := pointer("u"), pointer("src")
	for p := range 4 {
		for v := range s.parts {
			r, t := s.vec(0), s.vec(1)
			s.widen(operand.Mem{Base: src, Disp: 32*p + v*s.bytes/2}, r)
			s.scalePair(u, p, v, r, t)
			s.widen(operand.Mem{Base: src, Disp: 128 + 32*p + v*s.bytes/2}, r)
			s.store(r, operand.Mem{Base: u, Disp: minAt + 64*p + v*s.bytes})
		}
	}
	s.halves(src, 256, u, dAt)
	s.halves(src, 288, u, dminAt)
	VZEROUPPER()
	RET()
}

func (s isa) meta16() {
	s.function("meta16"+s.name, "func(u, src *byte)", "does what meta16Go does.")
	u, src := pointer("u"), pointer("src")
	for p := range 8 {
		for v := range s.parts {
			r, t := s.vec(0), s.vec(1)
			s.widen(operand.Mem{Base: src, Disp: 32*p + v*s.bytes/2}, r)
			s.scalePair(u, p, v, r, t)
			VPSLLW(operand.U8(5), r, r)
			s.store(r, operand.Mem{Base: u, Disp: minAt + 64*p + v*s.bytes})
		}
	}
	s.halves(src, 256, u, dAt, dminAt)
	VZEROUPPER()
	RET()
}

func (s isa) metaBlocks() {
	s.function("metaBlocks"+s.name, "func(u, src *byte, n int)", "does what metaBlocksGo does; n > 0.")
	u, src, n := pointer("u"), pointer("src"), pointer("n")
	Label("loop")
	s.halves(src, 0, u, scaleAt)
	ADDQ(operand.U32(32), src)
	ADDQ(operand.U32(64), u)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// float fills r with a number.
func (s isa) float(x float32, r reg.VecPhysical) {
	t := GP32()
	MOVL(operand.U32(math.Float32bits(x)), t)
	VMOVD(t, r.(reg.Vec).AsX())
	VPBROADCASTD(r.(reg.Vec).AsX(), r)
}

func (s isa) metaPowers() {
	s.function("metaPowers"+s.name, "func(u, src *byte, n int)", "does what metaPowersGo does; n > 0.")
	u, src, n := pointer("u"), pointer("src"), pointer("n")
	half, least, r := s.vec(0), s.vec(1), s.vec(2)
	s.float(0.5, half)
	s.float(0x1p-128, least)
	Label("loop")
	for v := range s.parts {
		VPMOVZXBD(operand.Mem{Base: src, Disp: v * s.bytes / 4}, r)
		VPSLLD(operand.U8(23), r, r)
		VMULPS(half, r, r)
		VMAXPS(least, r, r)
		VMOVUPS(r, operand.Mem{Base: u, Disp: scaleAt + v*s.bytes})
	}
	ADDQ(operand.U32(16), src)
	ADDQ(operand.U32(64), u)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// top: magnitudes of floats are in the order of their bits.
func (s isa) top() {
	s.function("top"+s.name, "func(x []float32) uint32", "does what topGo does.")
	x, n := Load(Param("x").Base(), GP64()).(reg.GPVirtual), Load(Param("x").Len(), GP64()).(reg.GPVirtual)
	most, sign := s.vec(0), s.vec(1)
	s.zero(most)
	t := GP32()
	MOVL(operand.U32(0x7fffffff), t)
	VMOVD(t, sign.(reg.Vec).AsX())
	VPBROADCASTD(sign.(reg.Vec).AsX(), sign)
	SHRQ(operand.U8(5), n)
	JE(operand.LabelRef("done"))
	Label("loop")
	for i := range 128 / s.bytes {
		s.load(operand.Mem{Base: x, Disp: i * s.bytes}, s.vec(2))
		s.and(sign, s.vec(2), s.vec(2))
		VPMAXUD(s.vec(2), most, most)
	}
	ADDQ(operand.U32(128), x)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	Label("done")
	if s.wide() {
		VEXTRACTI64X4(operand.U8(1), reg.Z0, reg.Y2)
		VPMAXUD(reg.Y2, reg.Y0, reg.Y0)
	}
	VEXTRACTI128(operand.U8(1), reg.Y0, reg.X2)
	VPMAXUD(reg.X2, reg.X0, reg.X0)
	VPSHUFD(operand.U8(0x4e), reg.X0, reg.X2)
	VPMAXUD(reg.X2, reg.X0, reg.X0)
	VPSHUFD(operand.U8(0xb1), reg.X0, reg.X2)
	VPMAXUD(reg.X2, reg.X0, reg.X0)
	VMOVD(reg.X0, t)
	Store(t, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func (s isa) quantize() {
	s.function("quantize"+s.name, "func(q []int8, rest, x []float32, inv, d float32)", "does what quantizeGo does.")
	q, n := Load(Param("q").Base(), GP64()).(reg.GPVirtual), Load(Param("x").Len(), GP64()).(reg.GPVirtual)
	rest, x := Load(Param("rest").Base(), GP64()).(reg.GPVirtual), Load(Param("x").Base(), GP64()).(reg.GPVirtual)
	inv, _ := Param("inv").Resolve()
	d, _ := Param("d").Resolve()
	VBROADCASTSS(inv.Addr, s.vec(0))
	VBROADCASTSS(d.Addr, s.vec(5))
	SHRQ(operand.U8(5), n)
	JE(operand.LabelRef("done"))
	Label("loop")
	for i := range 128 / s.bytes {
		r, back := s.vec(1+i), s.vec(6)
		VMOVUPS(operand.Mem{Base: x, Disp: i * s.bytes}, s.vec(7))
		VMULPS(s.vec(7), s.vec(0), r)
		VCVTPS2DQ(r, r)
		VCVTDQ2PS(r, back)
		VMULPS(s.vec(5), back, back)
		VSUBPS(back, s.vec(7), back)
		VMOVUPS(back, operand.Mem{Base: rest, Disp: i * s.bytes})
	}
	if s.wide() {
		for i := range 2 {
			VPMOVDB(s.vec(1+i), operand.Mem{Base: q, Disp: 16 * i})
		}
	} else { // packing works within the halves of registers; a permutation of words puts them in order
		for i := range 2 {
			a, b := s.vec(1+2*i), s.vec(2+2*i)
			VPACKSSDW(b, a, a)
			VPERMQ(operand.U8(0xd8), a, a)
		}
		VPACKSSWB(reg.Y3, reg.Y1, reg.Y1)
		VPERMQ(operand.U8(0xd8), reg.Y1, reg.Y1)
		VMOVDQU(reg.Y1, operand.Mem{Base: q})
	}
	ADDQ(operand.U32(128), x)
	ADDQ(operand.U32(128), rest)
	ADDQ(operand.U32(32), q)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

// sums adds 256 numbers of 8 bits in sixteens: in pairs, then three times neighbours within 128-bit halves.
func sums() {
	s := isa{name: "AVX2", parts: 2, bytes: 32}
	s.function("sumsAVX2", "func(to *int16, q *int8)", "does what sumsGo does.")
	to, q := pointer("to"), pointer("q")
	one := reg.Y15
	VPCMPEQD(one, one, one)
	VPABSB(one, one)
	y := []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7}
	for i, r := range y {
		VMOVDQU(operand.Mem{Base: q, Disp: 32 * i}, r)
		VPMADDUBSW(r, one, r)
	}
	for n := 4; n > 0; n /= 2 {
		for i := range n {
			VPHADDW(y[2*i+1], y[2*i], y[i])
		}
	}
	// word k of each half is the sum of that half of register k
	VEXTRACTI128(operand.U8(1), reg.Y0, reg.X1)
	VPUNPCKLWD(reg.X1, reg.X0, reg.X2)
	VPUNPCKHWD(reg.X1, reg.X0, reg.X3)
	VMOVDQU(reg.X2, operand.Mem{Base: to})
	VMOVDQU(reg.X3, operand.Mem{Base: to, Disp: 16})
	VZEROUPPER()
	RET()
}
