// Command quant generates the assembly of apr/quant: the searches for scales of Q4_K, Q5_K and Q6_K, for AVX-512 and for
// AVX2. Run it through go generate in that package.
//
// A lane is a group of a block. Eight groups lie side by side, so that every lane does in the order of the plain loops
// what these do to its group, and finds the same bits. Nothing is fused but products and sums of small integers, which
// are exact. AVX2 goes over the eight groups twice, by four.
package main

import (
	"math"

	"github.com/mmcloughlin/avo/attr"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64")
	for _, s := range []isa{{"AVX512", 64}, {"AVX2", 32}} {
		s.affineScan()
		s.affineRefine()
		s.affineRound()
		s.affineIntegers()
		s.symmetricScan()
		s.symmetricRefine()
		s.symmetricRound()
	}
	emitConstants()
	Generate()
}

// isa is an instruction set, by the bytes of a vector.
type isa struct {
	name  string
	bytes int
}

const row = 64 // bytes of eight float64

func (s isa) wide() bool { return s.bytes == 64 }

// begin starts a function.
func (s isa) begin(name, params, does string) {
	TEXT(name+s.name, NOSPLIT, "func("+params+")")
	Doc(name + s.name + " " + does)
	Pragma("noescape")
}

// halves emits body for the first lanes and, with AVX2, for the other four; off is where they are in a row.
func (s isa) halves(body func(off int)) {
	for off := 0; off < row; off += s.bytes {
		body(off)
	}
	VZEROUPPER()
	RET()
}

func (s isa) vec() reg.VecVirtual {
	if s.wide() {
		return ZMM()
	}
	return YMM()
}

func (s isa) zero() reg.VecVirtual {
	v := s.vec()
	VXORPD(v, v, v)
	return v
}

// load returns row i of the structure at p, from byte off of the row.
func (s isa) load(p reg.Register, i, off int) reg.VecVirtual {
	v := s.vec()
	VMOVUPD(at(p, i, off), v)
	return v
}

func store(v reg.VecVirtual, p reg.Register, i, off int) { VMOVUPD(v, at(p, i, off)) }

func at(p reg.Register, i, off int) operand.Mem { return operand.Mem{Base: p, Disp: row*i + off} }

func pointer(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// scalar copies a parameter to all lanes.
func (s isa) scalar(name string) reg.VecVirtual {
	v := s.vec()
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSD(p.Addr, v)
	return v
}

// copyOf returns another register with the same lanes.
func (s isa) copyOf(x reg.VecVirtual) reg.VecVirtual {
	v := s.vec()
	VMOVAPD(x, v)
	return v
}

// truncate drops fractions.
func (s isa) truncate(v reg.VecVirtual) {
	if s.wide() {
		VRNDSCALEPD(operand.U8(11), v, v)
	} else {
		VROUNDPD(operand.U8(11), v, v)
	}
}

// floor rounds down.
func (s isa) floor(v reg.VecVirtual) {
	if s.wide() {
		VRNDSCALEPD(operand.U8(9), v, v)
	} else {
		VROUNDPD(operand.U8(9), v, v)
	}
}

// Predicates of comparisons: ordered, so that NaN is never less, equal or greater.
const (
	equal   = 0x00
	less    = 0x11
	atMost  = 0x12
	greater = 0x1e
)

// compare returns the mask of the lanes where a stands in the relation to b.
func (s isa) compare(a reg.VecVirtual, relation uint8, b operand.Op) reg.Register {
	if s.wide() {
		k := K()
		VCMPPD(operand.U8(relation), b, a, k)
		return k
	}
	m := YMM()
	VCMPPD(operand.U8(relation), b, a, m)
	return m
}

// and returns the lanes that are in both masks.
func (s isa) and(a, b reg.Register) reg.Register {
	if s.wide() {
		k := K()
		KANDW(a, b, k)
		return k
	}
	m := YMM()
	VANDPD(a, b, m)
	return m
}

// choose copies the lanes of src in the mask to dst.
func (s isa) choose(mask reg.Register, src, dst reg.VecVirtual) {
	if s.wide() {
		VMOVAPD(src, mask, dst)
	} else {
		VBLENDVPD(mask, src, dst, dst)
	}
}

// inverse returns 1/v, and 0 for 0.
func (s isa) inverse(v reg.VecVirtual) reg.VecVirtual {
	r := s.vec()
	VMOVUPD(constant(1), r)
	VDIVPD(v, r, r)
	s.choose(s.compare(v, equal, constant(0)), s.zero(), r)
	return r
}

// held keeps a constant in a register where there are enough of them.
func (s isa) held(f float64) operand.Op {
	if !s.wide() {
		return constant(f)
	}
	v := s.vec()
	VMOVUPD(constant(f), v)
	return v
}

// loop emits body n times as a loop.
func loop(label string, n int, body func()) {
	i := GP64()
	MOVQ(operand.U64(uint64(n)), i)
	Label(label)
	body()
	DECQ(i)
	JNE(operand.LabelRef(label))
}

// Constants stand in memory as a row each.
var (
	constants []float64
	places    = map[uint64]int{}
)

func constant(f float64) operand.Mem {
	at, ok := places[math.Float64bits(f)]
	if !ok {
		at = len(constants)
		places[math.Float64bits(f)] = at
		constants = append(constants, f)
	}
	return operand.NewDataAddr(operand.NewStaticSymbol("constants"), row*at)
}

func emitConstants() {
	GLOBL("constants", attr.RODATA|attr.NOPTR)
	for i, f := range constants {
		for lane := range 8 {
			DATA(row*i+8*lane, operand.U64(math.Float64bits(f)))
		}
	}
}
