// Command gemm generates the assembly of apr/device/cpu/gemm: register tiles of a matrix product and the two ways of
// packing a panel, for AVX-512 and for AVX2 with FMA. Run it through go generate in that package.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa describes one instruction set: how many rows and vectors a tile has and how its vector registers are called.
type isa struct {
	name    string
	lanes   int // float32 per vector
	rows    int // of the largest tile
	vectors int // per row of a tile
	vec     func(i int) reg.VecPhysical
	zero    func(r reg.VecPhysical)
}

const tileSignature = "func(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, " +
	"alpha float32, bias *float32, acc bool)"

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
	avx512 := isa{
		name: "AVX512", lanes: 16, rows: 14, vectors: 2,
		vec:  func(i int) reg.VecPhysical { return zmm[i] },
		zero: func(r reg.VecPhysical) { VPXORQ(r, r, r) },
	}
	avx2 := isa{
		name: "AVX2", lanes: 8, rows: 6, vectors: 2,
		vec:  func(i int) reg.VecPhysical { return ymm[i] },
		zero: func(r reg.VecPhysical) { VXORPS(r, r, r) },
	}
	ConstraintExpr("amd64")
	for _, s := range []isa{avx512, avx2} {
		for h := 1; h <= s.rows; h++ {
			s.tile(h)
		}
		s.transpose()
		s.copy()
	}
	avx512.dot()
	Generate()
}

// bytes loads an int parameter that counts float32 elements and turns it into bytes.
func bytes(name string) reg.GPVirtual {
	r := Load(Param(name), GP64()).(reg.GPVirtual)
	SHLQ(operand.U8(2), r)
	return r
}

func pointer(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// tile generates an h-row tile. Its accumulators are one chain of fused multiply-adds over p for each element, so that
// every tile height, and both instruction sets, give the same bits.
func (s isa) tile(h int) {
	TEXT(fmt.Sprintf("tile%s%d", s.name, h), NOSPLIT, tileSignature)
	Doc(fmt.Sprintf("tile%s%d computes %d rows of %d columns, as tileGo does.", s.name, h, h, s.vectors*s.lanes))
	Pragma("noescape")
	k := pointer("k")
	bases, step1, step3 := rowBases("a", "ars", h, 5)
	acs := bytes("acs")
	b, bs := pointer("b"), bytes("bs")

	acc := func(i, v int) reg.VecPhysical { return s.vec(i*s.vectors + v) }
	spare := func(i int) reg.VecPhysical { return s.vec(s.rows*s.vectors + i) } // not accumulators
	for i := range h * s.vectors {
		s.zero(s.vec(i))
	}
	touch, ldc := pointer("c"), bytes("ldc")
	for i := range h { // C comes while the sums are made
		PREFETCHT0(operand.Mem{Base: touch})
		PREFETCHT0(operand.Mem{Base: touch, Disp: s.vectors*s.lanes*4 - 4})
		if i < h-1 {
			ADDQ(ldc, touch)
		}
	}
	TESTQ(k, k)
	JE(operand.LabelRef("store"))
	Label("loop")
	for v := range s.vectors {
		VMOVUPS(operand.Mem{Base: b, Disp: v * s.lanes * 4}, spare(v))
	}
	ADDQ(bs, b)
	for i := range h {
		x := spare(s.vectors + i%2)
		VBROADCASTSS(row(bases, step1, step3, i, 5), x)
		for v := range s.vectors {
			VFMADD231PS(x, spare(v), acc(i, v))
		}
	}
	for _, base := range bases {
		ADDQ(acs, base)
	}
	DECQ(k)
	JNE(operand.LabelRef("loop"))

	Label("store")
	s.epilogue(h, s.vectors, acc, spare)
	RET()
}

// epilogue stores alpha·acc, plus the bias if given, plus what C holds if asked.
func (s isa) epilogue(h, vectors int, acc func(i, v int) reg.VecPhysical, spare func(i int) reg.VecPhysical) {
	alpha, _ := Param("alpha").Resolve()
	VBROADCASTSS(alpha.Addr, spare(0))
	for i := range h {
		for v := range vectors {
			VMULPS(spare(0), acc(i, v), acc(i, v))
		}
	}
	bias := pointer("bias")
	TESTQ(bias, bias)
	JE(operand.LabelRef("unbiased"))
	for v := range vectors {
		VMOVUPS(operand.Mem{Base: bias, Disp: v * s.lanes * 4}, spare(v))
	}
	for i := range h {
		for v := range vectors {
			VADDPS(spare(v), acc(i, v), acc(i, v))
		}
	}
	Label("unbiased")
	c := pointer("c")
	var ldc reg.GPVirtual
	if h > 1 {
		ldc = bytes("ldc")
	}
	add := Load(Param("acc"), GP8())
	TESTB(add.(reg.GPVirtual), add.(reg.GPVirtual))
	JE(operand.LabelRef("plain"))
	from := GP64()
	MOVQ(c, from)
	for i := range h {
		for v := range vectors {
			VADDPS(operand.Mem{Base: from, Disp: v * s.lanes * 4}, acc(i, v), acc(i, v))
		}
		if i < h-1 {
			ADDQ(ldc, from)
		}
	}
	Label("plain")
	for i := range h {
		for v := range vectors {
			VMOVUPS(acc(i, v), operand.Mem{Base: c, Disp: v * s.lanes * 4})
		}
		if i < h-1 {
			ADDQ(ldc, c)
		}
	}
	VZEROUPPER()
}

// rowBases loads a pointer and a stride and returns a pointer to every each-th of the rows, and once and three times the
// stride in bytes.
func rowBases(first, stride string, rows, each int) (bases []reg.GPVirtual, step1, step3 reg.GPVirtual) {
	a := pointer(first)
	step1 = bytes(stride)
	step3 = GP64()
	LEAQ(operand.Mem{Base: step1, Index: step1, Scale: 2}, step3)
	bases = []reg.GPVirtual{a}
	for r := each; r < rows; r += each {
		next := GP64()
		LEAQ(row(bases, step1, step3, r-1, each), next)
		ADDQ(step1, next)
		bases = append(bases, next)
	}
	return bases, step1, step3
}

// row addresses row i, at most 4 rows after a base.
func row(bases []reg.GPVirtual, step1, step3 reg.GPVirtual, i, each int) operand.Mem {
	m := operand.Mem{Base: bases[i/each]}
	switch i % each {
	case 1:
		m.Index, m.Scale = step1, 1
	case 2:
		m.Index, m.Scale = step1, 2
	case 3:
		m.Index, m.Scale = step3, 1
	case 4:
		m.Index, m.Scale = step1, 4
	}
	return m
}

// transpose generates dst[p·ldd+i] = a[i·ars+p] for i < lanes, p < 4·blocks: 4×4 transposes within 128-bit lanes,
// whose inputs are put together by loads, so that only 8 shuffles are left for 4 columns.
func (s isa) transpose() {
	TEXT("transpose"+s.name, NOSPLIT, "func(blocks int, a *float32, ars int, dst *float32, ldd int)")
	Doc(fmt.Sprintf("transpose%s packs %d rows as columns: dst[p·ldd+i] = a[i·ars+p], p < 4·blocks.", s.name, s.lanes))
	Pragma("noescape")
	blocks := pointer("blocks")
	bases, step1, step3 := rowBases("a", "ars", s.lanes, 4)
	dst, ldd := pointer("dst"), bytes("ldd")
	ldd3 := GP64()
	LEAQ(operand.Mem{Base: ldd, Index: ldd, Scale: 2}, ldd3)
	four := GP64() // a cache line of each row at once, and the rest 4 columns at a time
	MOVQ(blocks, four)
	SHRQ(operand.U8(2), four)
	JE(operand.LabelRef("rest"))
	Label("line")
	for i := range s.lanes {
		m := row(bases, step1, step3, i, 4)
		m.Disp = prefetchAhead
		PREFETCHT0(m)
	}
	for part := range 4 {
		s.transpose4(bases, step1, step3, part*16, dst, ldd, ldd3)
	}
	for _, base := range bases {
		ADDQ(operand.U8(64), base)
	}
	DECQ(four)
	JNE(operand.LabelRef("line"))
	Label("rest")
	ANDQ(operand.U8(3), blocks)
	JE(operand.LabelRef("done"))
	Label("columns")
	s.transpose4(bases, step1, step3, 0, dst, ldd, ldd3)
	for _, base := range bases {
		ADDQ(operand.U8(16), base)
	}
	DECQ(blocks)
	JNE(operand.LabelRef("columns"))
	Label("done")
	VZEROUPPER()
	RET()
}

// prefetchAhead is how many bytes ahead a row is fetched: several rows are read at once, more than hardware follows.
const prefetchAhead = 512

// transpose4 transposes 4 columns, disp bytes from the bases, and moves dst on.
func (s isa) transpose4(bases []reg.GPVirtual, step1, step3 reg.GPVirtual, disp int, dst, ldd, ldd3 reg.GPVirtual) {
	for j := range 4 {
		r := s.vec(j)
		for g := range bases {
			m := row(bases, step1, step3, 4*g+j, 4)
			m.Disp = disp
			switch {
			case g == 0:
				VMOVUPS(m, r.(reg.Vec).AsX())
			case s.lanes == 16:
				VINSERTF32X4(operand.U8(g), m, r, r)
			default:
				VINSERTF128(operand.U8(g), m, r, r)
			}
		}
	}
	VUNPCKLPS(s.vec(1), s.vec(0), s.vec(4))
	VUNPCKHPS(s.vec(1), s.vec(0), s.vec(5))
	VUNPCKLPS(s.vec(3), s.vec(2), s.vec(6))
	VUNPCKHPS(s.vec(3), s.vec(2), s.vec(7))
	VUNPCKLPD(s.vec(6), s.vec(4), s.vec(0))
	VUNPCKHPD(s.vec(6), s.vec(4), s.vec(1))
	VUNPCKLPD(s.vec(7), s.vec(5), s.vec(2))
	VUNPCKHPD(s.vec(7), s.vec(5), s.vec(3))
	VMOVUPS(s.vec(0), operand.Mem{Base: dst})
	VMOVUPS(s.vec(1), operand.Mem{Base: dst, Index: ldd, Scale: 1})
	VMOVUPS(s.vec(2), operand.Mem{Base: dst, Index: ldd, Scale: 2})
	VMOVUPS(s.vec(3), operand.Mem{Base: dst, Index: ldd3, Scale: 1})
	LEAQ(operand.Mem{Base: dst, Index: ldd, Scale: 4}, dst)
}

// dot generates a tile of one row and 16 columns that needs no packing: 16×16 elements of B are transposed in registers,
// whole cache lines at a time, so that rows at a stride of a large power of two do not push each other out of the cache.
func (s isa) dot() {
	TEXT("dot"+s.name, NOSPLIT, "func(blocks int, a, b *float32, brs int, c *float32, alpha float32, bias *float32, acc bool)")
	Doc("dot" + s.name + " computes 1 row of 16 columns from 16 lines of B: c[j] (=|+=) alpha·Σ_p a[p]·b[j·brs+p] (+ bias[j]), p < 16·blocks.")
	Pragma("noescape")
	blocks, a := pointer("blocks"), pointer("a")
	bases, step1, step3 := rowBases("b", "brs", 16, 4)
	sum := s.vec(16)
	s.zero(sum)
	Label("loop")
	for i := range 16 {
		VMOVUPS(row(bases, step1, step3, i, 4), s.vec(i))
	}
	for i, column := range s.transpose16() {
		VFMADD231PS_BCST(operand.Mem{Base: a, Disp: 4 * i}, column, sum)
	}
	for _, base := range append(bases, a) {
		ADDQ(operand.U8(64), base)
	}
	DECQ(blocks)
	JNE(operand.LabelRef("loop"))
	s.epilogue(1, 1, func(_, _ int) reg.VecPhysical { return sum }, s.vec)
	RET()
}

// transpose16 transposes the registers 0 … 15 by way of 16 … 31, sparing 16, and returns the columns in order.
// The first two stages make 4×4 transposes within the 128-bit lanes, the last two move lanes.
func (s isa) transpose16() [16]reg.VecPhysical {
	var columns [16]reg.VecPhysical
	t := func(i int) reg.VecPhysical { return s.vec(17 + i) }
	for g := 0; g < 16; g += 4 {
		VUNPCKLPS(s.vec(g+1), s.vec(g), t(0))
		VUNPCKHPS(s.vec(g+1), s.vec(g), t(1))
		VUNPCKLPS(s.vec(g+3), s.vec(g+2), t(2))
		VUNPCKHPS(s.vec(g+3), s.vec(g+2), t(3))
		VUNPCKLPD(t(2), t(0), s.vec(g))
		VUNPCKHPD(t(2), t(0), s.vec(g+1))
		VUNPCKLPD(t(3), t(1), s.vec(g+2))
		VUNPCKHPD(t(3), t(1), s.vec(g+3))
	}
	for q := range 4 { // lane L of register 4g+q: column 4L+q of the rows 4g … 4g+3
		r := func(g int) reg.VecPhysical { return s.vec(4*g + q) }
		VSHUFF32X4(operand.U8(0x88), r(1), r(0), t(0)) // lanes 0 2 of both
		VSHUFF32X4(operand.U8(0xdd), r(1), r(0), t(1)) // lanes 1 3
		VSHUFF32X4(operand.U8(0x88), r(3), r(2), t(2))
		VSHUFF32X4(operand.U8(0xdd), r(3), r(2), t(3))
		VSHUFF32X4(operand.U8(0x88), t(2), t(0), r(0))
		VSHUFF32X4(operand.U8(0x88), t(3), t(1), r(1))
		VSHUFF32X4(operand.U8(0xdd), t(2), t(0), r(2))
		VSHUFF32X4(operand.U8(0xdd), t(3), t(1), r(3))
		for lane := range 4 {
			columns[4*lane+q] = r(lane)
		}
	}
	return columns
}

// copy generates dst[p·ldd+i] = a[p·acs+i] for i < lanes, p < k.
func (s isa) copy() {
	TEXT("copy"+s.name, NOSPLIT, "func(k int, a *float32, acs int, dst *float32, ldd int)")
	Doc(fmt.Sprintf("copy%s packs k rows of %d columns: dst[p·ldd+i] = a[p·acs+i].", s.name, s.lanes))
	Pragma("noescape")
	k, a, acs := pointer("k"), pointer("a"), bytes("acs")
	dst, ldd := pointer("dst"), bytes("ldd")
	TESTQ(k, k)
	JE(operand.LabelRef("done"))
	Label("loop")
	PREFETCHT0(operand.Mem{Base: a, Index: acs, Scale: 8}) // hardware does not follow long strides
	PREFETCHT0(operand.Mem{Base: a, Index: acs, Scale: 8, Disp: 64})
	VMOVUPS(operand.Mem{Base: a}, s.vec(0))
	VMOVUPS(s.vec(0), operand.Mem{Base: dst})
	ADDQ(acs, a)
	ADDQ(ldd, dst)
	DECQ(k)
	JNE(operand.LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}
