package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// simpleKernels are loops of a few products and sums for each element.
func (s *isa) simpleKernels() {
	s.add()
	s.scale()
	s.normScale()
	s.normGrad()
	s.rotate()
	s.maximum()
	s.index()
}

func (s *isa) add() {
	k := s.kernel("add", "dst, x []float32", "")
	k.slices("dst", "x")
	k.count("dst")
	k.loop(s.lanes(), 4, func() {
		v := k.load("dst")
		VADDPS(k.load("x"), v, v)
		k.store(v, "dst")
	})
	k.end()
}

func (s *isa) scale() {
	k := s.kernel("scale", "x []float32, s float32", "")
	k.slices("x")
	k.count("x")
	f := k.scalar("s")
	k.loop(s.lanes(), 4, func() {
		v := k.load("x")
		VMULPS(f, v, v)
		k.store(v, "x")
	})
	k.end()
}

func (s *isa) normScale() {
	k := s.kernel("normScale", "y, x, w []float32, s float32", "")
	k.slices("y", "x", "w")
	k.count("y")
	f := k.scalar("s")
	k.loop(s.lanes(), 4, func() {
		v := k.load("x")
		VMULPS(f, v, v)
		VMULPS(k.load("w"), v, v)
		k.store(v, "y")
	})
	k.end()
}

func (s *isa) normGrad() {
	k := s.kernel("normGrad", "dx, dw, dy, x, w []float32, rstd, c float32", "")
	k.slices("dx", "dw", "dy", "x", "w")
	k.count("dx")
	rstd, c := k.scalar("rstd"), k.scalar("c")
	k.loop(s.lanes(), 2, func() {
		xhat, dy, dw := k.load("x"), k.load("dy"), k.load("dw")
		VMULPS(rstd, xhat, xhat)
		VFMADD231PS(dy, xhat, dw)
		k.store(dw, "dw")
		VMULPS(k.load("w"), dy, dy)
		VFNMADD231PS(xhat, c, dy)
		dx := k.load("dx")
		VFMADD231PS(rstd, dy, dx)
		k.store(dx, "dx")
	})
	k.end()
}

func (s *isa) rotate() {
	k := s.kernel("rotate", "x, cos, sin []float32, heads int", "")
	k.slices("x", "cos", "sin")
	heads := Load(Param("heads"), GP64())
	half := Load(Param("cos").Len(), GP64())
	k.ptr["lo"] = k.ptr["x"]
	hi := GP64()
	LEAQ(operand.Mem{Base: k.ptr["x"], Index: half, Scale: 4}, hi)
	k.ptr["hi"] = hi
	TESTQ(heads, heads)
	JZ(operand.LabelRef("none"))
	Label("head")
	n := GP64()
	MOVQ(half, n)
	k.n = n
	k.loop(s.lanes(), 2, func() {
		a, b, cos, sin := k.load("lo"), k.load("hi"), k.load("cos"), k.load("sin")
		u, v := k.vec(), k.vec()
		VMULPS(b, sin, u)
		VMULPS(a, sin, v)
		VFMSUB213PS(u, cos, a) // a·cos − b·sin
		VFMADD213PS(v, cos, b) // b·cos + a·sin
		k.store(a, "lo")
		k.store(b, "hi")
	})
	for _, p := range []string{"lo", "hi"} {
		LEAQ(operand.Mem{Base: k.ptr[p], Index: half, Scale: 8}, k.ptr[p])
	}
	DECQ(heads)
	JNZ(operand.LabelRef("head"))
	Label("none")
	k.end()
}

func (s *isa) maximum() {
	k := s.kernel("maximum", "x []float32", "(m float32)")
	k.slices("x")
	k.count("x")
	least := k.vec()
	VBROADCASTSS(constantBits(0xff800000), least)
	var m [4]reg.VecVirtual
	for i := range m {
		m[i] = k.copyOf(least)
	}
	k.loop(s.lanes(), 4, func() {
		VMAXPS(k.loadOr("x", least), m[k.unroll], m[k.unroll])
	})
	VMAXPS(m[1], m[0], m[0])
	VMAXPS(m[3], m[2], m[2])
	VMAXPS(m[2], m[0], m[0])
	k.result32(k.max32(m[0]), "m")
	k.end()
}

// index looks at a vector of flags at a time and leaves its loop at the first that has one.
func (s *isa) index() {
	k := s.kernel("index", "x []float32, v float32", "(i int)")
	k.slices("x")
	k.count("x")
	v := k.scalar("v")
	flags := GP32()
	found := k.label("found")
	k.loop(s.lanes(), 1, func() {
		x := k.load("x")
		if s.wide() {
			m := K()
			if k.tail {
				VCMPPS(operand.U8(0), v, x, k.mask, m)
			} else {
				VCMPPS(operand.U8(0), v, x, m)
			}
			KMOVW(m, flags)
		} else {
			VCMPPS(operand.U8(0), v, x, x)
			if k.tail {
				VANDPS(k.mask, x, x)
			}
			VMOVMSKPS(x, flags)
		}
		TESTL(flags, flags)
		JNZ(operand.LabelRef(found))
	})
	none := GP64()
	MOVQ(operand.I32(-1), none)
	Store(none, Return("i"))
	k.end()
	Label(found)
	TZCNTL(flags, flags)
	SHRQ(operand.U8(2), k.off)
	at := GP64()
	MOVL(flags, at.As32())
	ADDQ(k.off, at)
	Store(at, Return("i"))
	k.end()
}
