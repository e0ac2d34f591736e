package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: AVX-512 with 64-byte vectors and mask registers, or AVX2 with 32.
type isa struct {
	name  string
	bytes int
}

func (s *isa) wide() bool { return s.bytes == 64 }
func (s *isa) lanes() int { return s.bytes / 4 }

// vec returns a new full vector register.
func (s *isa) vec() reg.VecVirtual {
	if s.wide() {
		return ZMM()
	}
	return YMM()
}

// half returns a new register of half a vector.
func (s *isa) half() reg.VecVirtual {
	if s.wide() {
		return YMM()
	}
	return XMM()
}

// zero returns a new register holding zeros.
func (s *isa) zero() reg.VecVirtual {
	v := s.vec()
	if s.wide() {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
	return v
}

// kernel is the function being generated and the state of its loop.
type kernel struct {
	*isa
	name string
	ptr  map[string]reg.Register
	off  reg.GPVirtual // byte offset of the step in every array
	n    reg.GPVirtual // elements left

	disp   int  // of the unrolled step, in bytes
	unroll int  // number of the unrolled step
	tail   bool // masked
	mask   reg.Register
	labels int
	after  func() // emitted after the unrolled steps and after the tail, if not nil
}

// kernel begins a function.
func (s *isa) kernel(name, params, result string) *kernel {
	full := name + s.name
	TEXT(full, attr.NOSPLIT, "func("+params+") "+result)
	Doc(fmt.Sprintf("%s does what %s does.", full, name))
	Pragma("noescape")
	signatures = append(signatures, full+"("+params+") "+result)
	return &kernel{isa: s, name: full, ptr: map[string]reg.Register{}}
}

// slices loads the base pointers of slice parameters.
func (k *kernel) slices(names ...string) {
	for _, n := range names {
		k.ptr[n] = Load(Param(n).Base(), GP64())
	}
}

// count loads the length of a slice as the number of elements of the loop.
func (k *kernel) count(name string) {
	k.n = Load(Param(name).Len(), GP64()).(reg.GPVirtual)
}

// scalar broadcasts a float32 parameter.
func (k *kernel) scalar(name string) reg.VecVirtual {
	a, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := k.vec()
	VBROADCASTSS(a.Addr, v)
	return v
}

// structure loads a pointer parameter to a struct of float32 fields.
func (k *kernel) structure(name string) { k.ptr[name] = Load(Param(name), GP64()) }

// field broadcasts field i of a struct of float32.
func (k *kernel) field(name string, i int) reg.VecVirtual {
	v := k.vec()
	VBROADCASTSS(operand.Mem{Base: k.ptr[name], Disp: 4 * i}, v)
	return v
}

func (k *kernel) label(what string) string {
	k.labels++
	return fmt.Sprintf("%s%d", what, k.labels)
}

// loop emits body for unroll vectors of lanes elements at a time, for one, and for the masked tail.
func (k *kernel) loop(lanes, unroll int, body func()) {
	k.off = GP64()
	XORQ(k.off, k.off)
	for u := unroll; u >= 1; u = u / 2 {
		top, done := k.label("loop"), k.label("done")
		Label(top)
		CMPQ(k.n, operand.U32(uint32(u*lanes)))
		JL(operand.LabelRef(done))
		for i := range u {
			k.unroll, k.disp = i, 4*lanes*i
			body()
		}
		k.unroll, k.disp = 0, 0
		if k.after != nil {
			k.after()
		}
		ADDQ(operand.U32(uint32(4*lanes*u)), k.off)
		SUBQ(operand.U32(uint32(u*lanes)), k.n)
		JMP(operand.LabelRef(top))
		Label(done)
	}
	end := k.label("end")
	TESTQ(k.n, k.n)
	JZ(operand.LabelRef(end))
	k.makeMask()
	k.tail = true
	body()
	k.tail = false
	if k.after != nil {
		k.after()
	}
	Label(end)
}

// makeMask makes a mask of the n elements left.
func (k *kernel) makeMask() {
	if k.wide() {
		bits := GP32()
		MOVL(operand.U32(0xffff), bits)
		BZHIL(k.n.As32(), bits, bits)
		m := K()
		KMOVW(bits, m)
		k.mask = m
		return
	}
	table, at := GP64(), GP64()
	LEAQ(maskTable(), table)
	MOVQ(operand.U32(8), at)
	SUBQ(k.n, at)
	m := YMM()
	VMOVDQU(operand.Mem{Base: table, Index: at, Scale: 4}, m)
	k.mask = m
}

func (k *kernel) mem(name string) operand.Mem {
	return operand.Mem{Base: k.ptr[name], Index: k.off, Scale: 1, Disp: k.disp}
}

// load reads a vector of an array, zeros beyond the tail.
func (k *kernel) load(name string) reg.VecVirtual {
	v := k.vec()
	k.loadTo(name, v)
	return v
}

// loadHalf reads half a vector; the loop must have half the lanes.
func (k *kernel) loadHalf(name string) reg.VecVirtual {
	v := k.half()
	k.loadTo(name, v)
	return v
}

func (k *kernel) loadTo(name string, v reg.VecVirtual) {
	switch {
	case !k.tail:
		VMOVUPS(k.mem(name), v)
	case k.wide():
		VMOVUPS_Z(k.mem(name), k.mask, v)
	default:
		VMASKMOVPS(k.mem(name), k.maskFor(v), v)
	}
}

// maskFor is the AVX2 mask in the width of v.
func (k *kernel) maskFor(v reg.VecVirtual) reg.Register {
	if v.Size() == 16 {
		return k.mask.(reg.VecVirtual).AsX()
	}
	return k.mask
}

// loadOr reads a vector of an array; beyond the tail it has the value of fill.
func (k *kernel) loadOr(name string, fill reg.VecVirtual) reg.VecVirtual {
	v := k.vec()
	switch {
	case !k.tail:
		VMOVUPS(k.mem(name), v)
	case k.wide():
		VMOVAPS(fill, v)
		VMOVUPS(k.mem(name), k.mask, v)
	default:
		VMASKMOVPS(k.mem(name), k.mask, v)
		VBLENDVPS(k.mask, v, fill, v)
	}
	return v
}

// store writes a vector to an array, up to the tail.
func (k *kernel) store(v reg.VecVirtual, name string) {
	switch {
	case !k.tail:
		VMOVUPS(v, k.mem(name))
	case k.wide():
		VMOVUPS(v, k.mask, k.mem(name))
	default:
		VMASKMOVPS(v, k.maskFor(v), k.mem(name))
	}
}

// sum32 adds the float32 lanes of v into the lowest of the returned register.
func (k *kernel) sum32(v reg.VecVirtual) reg.VecVirtual {
	y, t := v.AsY(), YMM()
	if k.wide() {
		VEXTRACTF64X4(operand.U8(1), v, t)
		VADDPS(t, y, t)
	} else {
		VMOVAPS(y, t)
	}
	x, h := t.AsX(), XMM()
	VEXTRACTF128(operand.U8(1), t, h)
	VADDPS(h, x, h)
	VMOVHLPS(h, h, x)
	VADDPS(x, h, h)
	VMOVSHDUP(h, x)
	VADDSS(x, h, h)
	return h
}

// sum64 adds the float64 lanes of v into the lowest of the returned register.
func (k *kernel) sum64(v reg.VecVirtual) reg.VecVirtual {
	y, t := v.AsY(), YMM()
	if k.wide() {
		VEXTRACTF64X4(operand.U8(1), v, t)
		VADDPD(t, y, t)
	} else {
		VMOVAPD(y, t)
	}
	x, h := t.AsX(), XMM()
	VEXTRACTF128(operand.U8(1), t, h)
	VADDPD(h, x, h)
	VUNPCKHPD(h, h, x)
	VADDSD(x, h, h)
	return h
}

// max32 returns the largest lane of v as the lowest of the returned register.
func (k *kernel) max32(v reg.VecVirtual) reg.VecVirtual {
	y, t := v.AsY(), YMM()
	if k.wide() {
		VEXTRACTF64X4(operand.U8(1), v, t)
		VMAXPS(t, y, t)
	} else {
		VMOVAPS(y, t)
	}
	x, h := t.AsX(), XMM()
	VEXTRACTF128(operand.U8(1), t, h)
	VMAXPS(h, x, h)
	VMOVHLPS(h, h, x)
	VMAXPS(x, h, h)
	VMOVSHDUP(h, x)
	VMAXSS(x, h, h)
	return h
}

func (k *kernel) result32(v reg.VecVirtual, name string) { Store(v.AsX(), Return(name)) }
func (k *kernel) end() {
	VZEROUPPER()
	RET()
}
