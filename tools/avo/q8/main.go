// Command q8 generates the assembly of apr/device/cpu/q8: tiles of integer dot products, for AVX-512 with VNNI and for
// AVX2, and what prepares their operands. Run it through go generate in that package.
package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The layout of the structs unpacked and rounded of the package.
const (
	lanes         = 16
	vecBytes      = 64
	scaleAt       = 4096
	minAt         = scaleAt + 16*64
	dAt           = minAt + 8*64
	dminAt        = dAt + 64
	unpackedBytes = dminAt + 64
	rowBytes      = 336 // of a rounded chunk
	sumsAt        = 256
	pairsAt       = sumsAt + 32
	rowDAt        = pairsAt + 16
)

// isa describes one instruction set.
type isa struct {
	name  string
	parts int // vectors of 32-bit lanes for 16 lanes, or for those of two panels
	bytes int // of a vector
	next  int // bytes from a part to the next in the struct unpacked
	tall  int // rows of the largest tile, of two halves each
	vec   func(i int) reg.VecPhysical
}

func (s isa) wide() bool { return s.bytes == 64 }

// pair reports whether two panels are multiplied at once, so that a broadcast serves two products.
func (s isa) pair() bool { return s.wide() && s.parts == 2 }

func main() {
	zmm := []reg.VecPhysical{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10,
		reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	}
	ymm := []reg.VecPhysical{
		reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10,
		reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
	}
	ConstraintExpr("amd64")
	z := func(i int) reg.VecPhysical { return zmm[i] }
	for _, s := range []isa{
		{name: "AVX512", parts: 1, bytes: 64, tall: 5, vec: z},
		{name: "AVX2", parts: 2, bytes: 32, next: 32, tall: 1, vec: func(i int) reg.VecPhysical { return ymm[i] }},
	} {
		for h := 1; h <= s.tall; h++ {
			s.super(h, 32)
			s.super(h, 16)
			s.blocks(h)
		}
		s.unpack4()
		s.unpackTable()
		s.unpack6()
		s.meta32()
		s.meta16()
		s.metaBlocks()
		s.metaPowers()
		s.top()
		s.quantize()
	}
	both := isa{name: "Both", parts: 2, bytes: 64, next: unpackedBytes, vec: z}
	for h := 1; h <= 3; h++ {
		both.super(h, 32)
		both.super(h, 16)
	}
	sums()
	wide := isa{name: "AVX512", parts: 1, bytes: 64}
	for _, r := range []single{{wide, 4, 32, true}, {wide, 6, 32, true}, {wide, 6, 16, false}} {
		r.row()
	}
	avx2 := isa{name: "AVX2", parts: 2, bytes: 32}
	masks := eachScale()
	for _, r := range []single{{avx2, 4, 32, true}, {avx2, 6, 32, true}, {avx2, 6, 16, false}} {
		narrow{r}.row(masks)
	}
	Generate()
}

func pointer(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// function begins a function that does what the plain Go of that name does.
func (s isa) function(name, signature, doc string) {
	TEXT(name, NOSPLIT, signature)
	Doc(name + " " + doc)
	Pragma("noescape")
}

func (s isa) zero(r reg.VecPhysical) {
	if s.wide() {
		VPXORQ(r, r, r)
	} else {
		VPXOR(r, r, r)
	}
}

// registers of a tile of h halves of rows: sums of a group and of the chunk by half and part, then spare ones.
type registers struct {
	s isa
	h int
}

func (r registers) group(i, v int) reg.VecPhysical { return r.s.vec(i*r.s.parts + v) }
func (r registers) total(i, v int) reg.VecPhysical { return r.s.vec((r.h+i)*r.s.parts + v) }
func (r registers) spare(i int) reg.VecPhysical    { return r.s.vec(2*r.h*r.s.parts + i) }

const tileSignature = "func(codes, u *byte, x *int8, c *float32, blocks, zero int)"

const bothSignature = "func(u *byte, x *int8, c *float32, next int, ahead *byte)"

// super generates a tile of a K type; see superGo.
func (s isa) super(h, group int) {
	name := fmt.Sprintf("super%d%s%d", group, s.name, h)
	var codes, u, ahead reg.GPVirtual
	if s.pair() {
		s.function(name, bothSignature, fmt.Sprintf("computes %d rows as superGo(%d) does each, for two panels whose codes are unpacked one behind the other; their tiles are next elements apart. Meanwhile it fetches a line of memory for each group from ahead on.", h, group))
		u, codes, ahead = pointer("u"), GP64(), pointer("ahead")
		MOVQ(u, codes)
	} else {
		s.function(name, tileSignature, fmt.Sprintf("computes %d rows as superGo(%d) does each.", h, group))
		codes, u = pointer("codes"), pointer("u")
	}
	x := pointer("x")
	h *= 2
	r := registers{s, h}
	for i := range h {
		for v := range s.parts {
			s.zero(r.total(i, v))
		}
	}
	scale, q, n := GP64(), GP64(), GP64()
	LEAQ(operand.Mem{Base: u, Disp: scaleAt}, scale)
	MOVQ(x, q)
	MOVQ(operand.U32(256/group), n)
	Label("loop")
	if s.pair() {
		PREFETCHT0(operand.Mem{Base: ahead})
		ADDQ(operand.U32(64), ahead)
	}
	if s.wide() {
		s.groupDots(r, codes, q, group/4)
		for v := range s.parts {
			s.load(operand.Mem{Base: scale, Disp: v * s.next}, r.spare(0))
			for i := range h {
				VPMULLD(r.spare(0), r.group(i, v), r.group(i, v))
				VPADDD(r.group(i, v), r.total(i, v), r.total(i, v))
			}
		}
	} else {
		s.groupOfPairs(r, codes, q, scale, group)
	}
	ADDQ(operand.U32(group*lanes), codes)
	ADDQ(operand.U32(group), q)
	ADDQ(operand.U32(64), scale)
	DECQ(n)
	JNE(operand.LabelRef("loop"))

	s.minima(r, u, x, group)
	c := pointer("c")
	for v := range s.parts {
		s.finishSuper(r, u, x, c, v)
		if s.pair() && v == 0 {
			next := pointer("next")
			LEAQ(operand.Mem{Base: c, Index: next, Scale: 4}, c)
		}
	}
	VZEROUPPER()
	RET()
}

// load loads a vector.
func (s isa) load(m operand.Mem, r reg.VecPhysical) {
	if s.wide() {
		VMOVDQU32(m, r)
	} else {
		VMOVDQU(m, r)
	}
}

// Constants of blocks for AVX2: 16-bit ones, and the code that stands for 0 in each byte.
func (s isa) one() reg.VecPhysical   { return s.vec(15) }
func (s isa) zeros() reg.VecPhysical { return s.vec(14) }

// groupDots sets the group sums to Σ c·q over n vectors of codes; for AVX2, to Σ (c−zero)·q.
func (s isa) groupDots(r registers, codes, q reg.GPVirtual, n int) {
	for i := range r.h {
		for v := range s.parts {
			s.zero(r.group(i, v))
		}
	}
	for k := range n {
		at := func(i int) operand.Mem { return operand.Mem{Base: q, Disp: i*rowBytes + 4*k} }
		for v := range s.parts {
			s.load(operand.Mem{Base: codes, Disp: k*vecBytes + v*s.next}, r.spare(v))
			if !s.wide() {
				VPSUBB(s.zeros(), r.spare(v), r.spare(v))
				VPABSB(r.spare(v), r.spare(3))
			}
			for i := 0; i < r.h && !s.pair(); i++ {
				if s.wide() {
					accumulate("VPDPBUSD", at(i), r.spare(v), r.group(i, v))
				} else {
					s.signedDots(r, at(i), r.spare(v), r.spare(3), r.group(i, v))
				}
			}
		}
		for i := 0; i < r.h && s.pair(); i++ {
			VPBROADCASTD(at(i), r.spare(2))
			for v := range s.parts {
				accumulate("VPDPBUSD", r.spare(2), r.spare(v), r.group(i, v))
			}
		}
	}
}

// accumulate emits an instruction of AVX-512 VNNI, which the assembler's own tables lack: sum += w·m in each lane,
// m being one 32-bit word for all if it is in memory.
func accumulate(opcode string, m operand.Op, w, sum reg.VecPhysical) {
	var suffixes []string
	if _, ok := m.(operand.Mem); ok {
		suffixes = []string{"BCST"}
	}
	Instruction(&ir.Instruction{
		Opcode: opcode, Suffixes: suffixes, Operands: []operand.Op{m, w, sum},
		Inputs: []operand.Op{m, w, sum}, Outputs: []operand.Op{sum}, ISA: []string{"AVX512F", "AVX512VNNI"},
	})
}

// signedDots adds four products in each lane, of signed bytes w with their magnitudes beside them: q takes their
// signs. A pair of products is at most 2·128·127 = 32,512, and fits 16 bits.
func (s isa) signedDots(r registers, m operand.Mem, w, magnitude, sum reg.VecPhysical) {
	x := r.spare(2)
	VPBROADCASTD(m, x)
	VPSIGNB(w, x, x)
	VPMADDUBSW(x, magnitude, x)
	VPMADDWD(s.one(), x, x)
	VPADDD(x, sum, sum)
}

// groupOfPairs adds scale·Σ c·q of a group to the totals, for AVX2: pairs of products are added up in 16 bits as
// long as they fit, two of codes up to 63 (2·2·63·127 = 32,004) or, in groups of 32, four of up to 31 (4·2·31·127
// = 31,496).
func (s isa) groupOfPairs(r registers, codes, q, scale reg.GPVirtual, group int) {
	fit := group / 8
	for k := range group / 4 {
		for v := range s.parts {
			s.load(operand.Mem{Base: codes, Disp: k*vecBytes + v*s.next}, r.spare(v))
		}
		for i := range r.h {
			x, t := r.spare(2), r.spare(3)
			VPBROADCASTD(operand.Mem{Base: q, Disp: i*rowBytes + 4*k}, x)
			for v := range s.parts {
				if k%fit == 0 {
					VPMADDUBSW(x, r.spare(v), r.group(i, v))
					continue
				}
				VPMADDUBSW(x, r.spare(v), t)
				VPADDW(t, r.group(i, v), r.group(i, v))
			}
		}
		if k%fit < fit-1 {
			continue
		}
		for v := range s.parts {
			twice := r.spare(4 + v) // the scale in both halves of a lane
			if k < fit {
				s.load(operand.Mem{Base: scale, Disp: v * s.next}, twice)
				VPSLLD(operand.U8(16), twice, r.spare(3))
				VPBLENDW(operand.U8(0xaa), r.spare(3), twice, twice)
			}
			for i := range r.h {
				VPMADDWD(twice, r.group(i, v), r.group(i, v))
				VPADDD(r.group(i, v), r.total(i, v), r.total(i, v))
			}
		}
	}
}

// minima sets the group sums to Σ min·Σq over all groups.
func (s isa) minima(r registers, u, x reg.GPVirtual, group int) {
	at := sumsAt
	if group == 32 {
		at = pairsAt
	}
	for i := range r.h {
		for v := range s.parts {
			s.zero(r.group(i, v))
		}
	}
	for p := range 256 / group / 2 {
		for v := range s.parts {
			w := r.spare(0)
			s.load(operand.Mem{Base: u, Disp: minAt + 64*p + v*s.next}, w)
			for i := range r.h {
				s.pairs(r, operand.Mem{Base: x, Disp: i*rowBytes + at + 4*p}, w, r.group(i, v))
			}
		}
	}
}

// pairs adds two products of 16-bit numbers in each lane.
func (s isa) pairs(r registers, m operand.Mem, w, sum reg.VecPhysical) {
	if s.wide() {
		accumulate("VPDPWSSD", m, w, sum)
		return
	}
	t := r.spare(1)
	VPBROADCASTD(m, t)
	VPMADDWD(t, w, t)
	VPADDD(t, sum, sum)
}

// finishSuper joins the halves of each row in a part, scales the sums and adds them to c.
func (s isa) finishSuper(r registers, u, x, c reg.GPVirtual, v int) {
	d := operand.Mem{Base: u, Disp: dAt + v*s.next}
	dmin := operand.Mem{Base: u, Disp: dminAt + v*s.next}
	steps := s.finer(r.spare(2))
	for i := 0; i < r.h; i += 2 {
		out := operand.Mem{Base: c, Disp: i/2*64 + v*s.bytes}
		if s.pair() {
			out.Disp = i / 2 * 64
		}
		VBROADCASTSS(operand.Mem{Base: x, Disp: (i+1)*rowBytes + rowDAt}, r.spare(0))
		s.join(steps, r.total(i, v), r.total(i+1, v))
		s.join(steps, r.group(i, v), r.group(i+1, v))
		sum, low, t := r.total(i, v), r.group(i, v), r.spare(1)
		VMULPS(d, r.spare(0), t)
		VMULPS(sum, t, sum)
		VMULPS(dmin, r.spare(0), t)
		VMULPS(low, t, low)
		VSUBPS(low, sum, sum)
		VADDPS(out, sum, sum)
		VMOVUPS(sum, out)
	}
}

// finer fills r with the number of fine steps in a coarse one.
func (s isa) finer(r reg.VecPhysical) reg.VecPhysical {
	t := GP32()
	MOVL(operand.U32(math.Float32bits(254)), t)
	VMOVD(t, r.(reg.Vec).AsX())
	VPBROADCASTD(r.(reg.Vec).AsX(), r)
	return r
}

// join turns integer sums of both halves into one in fine steps: coarse = coarse·steps + fine, as float32.
func (s isa) join(steps, coarse, fine reg.VecPhysical) {
	VCVTDQ2PS(coarse, coarse)
	VCVTDQ2PS(fine, fine)
	VMULPS(steps, coarse, coarse)
	VADDPS(fine, coarse, coarse)
}

// blocks generates a tile of 32-blocks; see blocksGo.
func (s isa) blocks(h int) {
	s.function(fmt.Sprintf("blocks%s%d", s.name, h), tileSignature, fmt.Sprintf("computes %d rows as blocksGo does each.", h))
	codes, u, x, c := pointer("codes"), pointer("u"), pointer("x"), pointer("c")
	h *= 2
	r := registers{s, h}
	for i := range h {
		for v := range s.parts {
			if i%2 == 0 {
				VMOVUPS(operand.Mem{Base: c, Disp: i/2*64 + v*s.bytes}, r.total(i, v))
			} else {
				s.zero(r.total(i, v))
			}
		}
	}
	sums, d, zero := GP64(), GP64(), GP64()
	LEAQ(operand.Mem{Base: u, Disp: scaleAt}, u)
	LEAQ(operand.Mem{Base: x, Disp: sumsAt}, sums)
	LEAQ(operand.Mem{Base: x, Disp: rowDAt}, d)
	MOVQ(pointer("zero"), zero)
	if s.wide() {
		NEGQ(zero)
		MOVWQZX(zero.As16(), zero)
	} else {
		VMOVD(zero.As32(), s.zeros().(reg.Vec).AsX())
		VPBROADCASTB(s.zeros().(reg.Vec).AsX(), s.zeros())
		VPCMPEQD(s.one(), s.one(), s.one())
		VPSRLW(operand.U8(15), s.one(), s.one())
	}
	n := pointer("blocks")
	Label("loop")
	s.groupDots(r, codes, x, 8)
	if s.wide() {
		w := r.spare(0)
		VMOVD(zero.As32(), w.(reg.Vec).AsX())
		VPBROADCASTD(w.(reg.Vec).AsX(), w)
		for i := range h {
			for v := range s.parts {
				s.pairs(r, operand.Mem{Base: sums, Disp: i * rowBytes}, w, r.group(i, v))
			}
		}
	}
	for v := range s.parts {
		for i := range h {
			t, sum := r.spare(1), r.group(i, v)
			VBROADCASTSS(operand.Mem{Base: d, Disp: i * rowBytes}, t)
			VMULPS(operand.Mem{Base: u, Disp: v * s.bytes}, t, t)
			VCVTDQ2PS(sum, sum)
			VMULPS(sum, t, sum)
			VADDPS(sum, r.total(i, v), r.total(i, v))
		}
	}
	ADDQ(operand.U32(32*lanes), codes)
	ADDQ(operand.U32(32), x)
	ADDQ(operand.U32(64), u)
	ADDQ(operand.U32(4), sums)
	ADDQ(operand.U32(4), d)
	DECQ(n)
	JNE(operand.LabelRef("loop"))
	for i := 0; i < h; i += 2 {
		for v := range s.parts {
			VADDPS(r.total(i+1, v), r.total(i, v), r.total(i, v))
			VMOVUPS(r.total(i, v), operand.Mem{Base: c, Disp: i/2*64 + v*s.bytes})
		}
	}
	VZEROUPPER()
	RET()
}
