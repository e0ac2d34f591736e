package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// siluKernels are SwiGLU and its backward.
func (s *isa) siluKernels() {
	k := s.kernel("siluMul", "m, g, u []float32", "")
	k.slices("m", "g", "u")
	k.count("m")
	k.loop(s.lanes(), 1, func() {
		g := k.load("g")
		den := k.onePlusExpMinus(g)
		VMULPS(k.load("u"), g, g)
		VDIVPS(den, g, g)
		k.store(g, "m")
	})
	k.end()

	k = s.kernel("siluMulGrad", "dg, du, dm, g, u []float32", "")
	k.slices("dg", "du", "dm", "g", "u")
	k.count("dm")
	k.loop(s.lanes(), 1, func() {
		g := k.load("g")
		den := k.onePlusExpMinus(g)
		sig := k.held(1)
		VDIVPS(den, sig, sig)
		dms := k.load("dm")
		VMULPS(sig, dms, dms) // dm·σ
		rest := k.held(1)
		VSUBPS(sig, rest, rest)
		k.with(VFMADD213PS, VFMADD213PS_BCST, 1, g, rest) // 1 + g(1−σ)
		VMULPS(k.load("u"), rest, rest)
		VMULPS(dms, rest, rest)
		VMULPS(dms, g, g)
		k.store(rest, "dg")
		k.store(g, "du")
	})
	k.end()
}

// geluKernels are the gated unit of gelu_tanh and its backward. With w = 2k(g+0.044715g³), k = √(2/π), ½(1+tanh(w/2)) is σ(w).
func (s *isa) geluKernels() {
	k := s.kernel("geluMul", "m, g, u []float32", "")
	k.slices("m", "g", "u")
	k.count("m")
	k.loop(s.lanes(), 1, func() {
		g := k.load("g")
		w, _ := k.geluArg(g)
		den := k.onePlusExpMinus(w)
		VMULPS(k.load("u"), g, g)
		VDIVPS(den, g, g)
		k.store(g, "m")
	})
	k.end()

	k = s.kernel("geluMulGrad", "dg, du, dm, g, u []float32", "")
	k.slices("dg", "du", "dm", "g", "u")
	k.count("dm")
	k.loop(s.lanes(), 1, func() {
		g := k.load("g")
		w, near := k.geluArg(g)
		den := k.onePlusExpMinus(w)
		sig := k.held(1)
		VDIVPS(den, sig, sig)
		slope := k.held(6 * geluK * geluCube)
		VMULPS(near, near, w)
		k.with(VFMADD213PS, VFMADD213PS_BCST, 2*geluK, w, slope) // w'
		VMULPS(near, slope, slope)
		rest := k.held(1)
		VSUBPS(sig, rest, rest)
		k.with(VFMADD213PS, VFMADD213PS_BCST, 1, slope, rest) // 1 + g·w'(1−σ)
		dms := k.load("dm")
		VMULPS(sig, dms, dms) // dm·σ
		VMULPS(k.load("u"), rest, rest)
		VMULPS(dms, rest, rest)
		VMULPS(dms, g, g)
		k.store(rest, "dg")
		k.store(g, "du")
	})
	k.end()
}

const (
	geluK     = 0.79788456080286535588 // √(2/π)
	geluCube  = 0.044715
	geluLimit = 11 // beyond it σ(w) is 0 or 1, and g³ would overflow sooner or later
)

// geluArg returns w of geluKernels, and g within ±geluLimit.
func (k *kernel) geluArg(g reg.VecVirtual) (w, near reg.VecVirtual) {
	lo, hi := k.held(-geluLimit), k.held(geluLimit)
	near = k.copyOf(g)
	VMAXPS(near, lo, near) // NaN stays, as in exp
	VMINPS(near, hi, near)
	square := k.vec()
	VMULPS(near, near, square)
	w = k.held(2 * geluK * geluCube)
	k.with(VFMADD213PS, VFMADD213PS_BCST, 2*geluK, square, w)
	VMULPS(near, w, w)
	return w, near
}

// capKernels are the soft-cap and its slope.
func (s *isa) capKernels() {
	k := s.kernel("softCap", "y, x []float32, c float32", "")
	k.slices("y", "x")
	k.count("y")
	c := k.scalar("c")
	k.loop(s.lanes(), 2, func() {
		x := k.load("x")
		VDIVPS(c, x, x)
		k.tanh(x)
		VMULPS(c, x, x)
		k.store(x, "y")
	})
	k.end()

	k = s.kernel("capGrad", "grad, z []float32, c float32", "")
	k.slices("grad", "z")
	k.count("grad")
	c = k.scalar("c")
	k.loop(s.lanes(), 2, func() {
		z, grad := k.load("z"), k.load("grad")
		less, more := k.vec(), k.vec()
		VSUBPS(z, c, less) // exact where the slope is small
		VADDPS(z, c, more)
		VDIVPS(c, less, less)
		VDIVPS(c, more, more)
		VMULPS(less, grad, grad)
		VMULPS(more, grad, grad)
		k.store(grad, "grad")
	})
	k.end()
}

// onePlusExpMinus returns 1 + e^{−g}.
func (k *kernel) onePlusExpMinus(g reg.VecVirtual) reg.VecVirtual {
	e := k.zero()
	VSUBPS(g, e, e)
	k.exp(e)
	k.with(VADDPS, VADDPS_BCST, 1, e, e)
	return e
}

// softmaxKernels are the rows of attention.
func (s *isa) softmaxKernels() {
	k := s.kernel("expSum", "dst, x []float32, shift float32", "(sum float64)")
	k.slices("dst", "x")
	k.count("dst")
	shift, least := k.scalar("shift"), k.minusInf()
	sums := k.totals(1)
	sum := sums.small[0]
	k.loop(s.lanes(), 4, func() {
		x := k.loadOr("x", least)
		VSUBPS(shift, x, x)
		k.exp(x)
		VADDPS(x, sum, sum)
		k.store(x, "dst")
	})
	sums.result(0, "sum")
	k.end()

	k = s.kernel("softmaxGrad", "s, dp []float32, scale, lse, delta float32", "")
	k.slices("s", "dp")
	k.count("s")
	scale, lse, delta := k.scalar("scale"), k.scalar("lse"), k.scalar("delta")
	k.loop(s.lanes(), 2, func() {
		p := k.load("s")
		VSUBPS(lse, p, p)
		k.exp(p)
		k.store(p, "s")
		dp := k.load("dp")
		VSUBPS(delta, dp, dp)
		VMULPS(p, dp, dp)
		VMULPS(scale, dp, dp)
		k.store(dp, "dp")
	})
	k.end()
}

func (k *kernel) minusInf() reg.VecVirtual {
	v := k.vec()
	VBROADCASTSS(constantBits(0xff800000), v)
	return v
}

// optimizerKernels is AdamW.
func (s *isa) optimizerKernels() {
	const (
		decay = iota
		beta1
		rest1
		beta2
		rest2
		clip
		step
		invBias
		eps
	)
	k := s.kernel("adamW", "w, g, m, v []float32, c *float32", "")
	k.slices("w", "g", "m", "v")
	k.count("w")
	k.structure("c")
	k.loop(s.lanes(), 1, func() {
		g, m, v, w := k.load("g"), k.load("m"), k.load("v"), k.load("w")
		VMULPS(k.field("c", clip), g, g)
		VMULPS(k.field("c", beta1), m, m)
		VFMADD231PS(k.field("c", rest1), g, m)
		k.store(m, "m")
		VMULPS(k.field("c", beta2), v, v)
		gg := k.vec()
		VMULPS(k.field("c", rest2), g, gg)
		VFMADD231PS(gg, g, v)
		k.store(v, "v")
		VSQRTPS(v, v)
		den := k.field("c", eps)
		VFMADD231PS(k.field("c", invBias), v, den)
		VMULPS(k.field("c", step), m, m)
		VDIVPS(den, m, m)
		VFMSUB132PS(k.field("c", decay), m, w) // w·decay − m
		k.store(w, "w")
	})
	k.end()
}

// widenKernels decode 16-bit floats; the length is a multiple of the lanes.
func (s *isa) widenKernels() {
	for _, name := range []string{"widenBF16", "widenF16"} {
		k := s.kernel(name, "dst []float32, src *byte", "")
		k.slices("dst")
		k.count("dst")
		src := Load(Param("src"), GP64())
		dst := k.ptr["dst"]
		Label("loop")
		CMPQ(k.n, operand.U32(uint32(s.lanes())))
		JL(operand.LabelRef("done"))
		v := k.vec()
		if name == "widenBF16" {
			VPMOVZXWD(operand.Mem{Base: src}, v)
			VPSLLD(operand.U8(16), v, v)
		} else {
			VCVTPH2PS(operand.Mem{Base: src}, v)
		}
		VMOVUPS(v, operand.Mem{Base: dst})
		ADDQ(operand.U32(uint32(s.bytes/2)), src)
		ADDQ(operand.U32(uint32(s.bytes)), dst)
		SUBQ(operand.U32(uint32(s.lanes())), k.n)
		JMP(operand.LabelRef("loop"))
		Label("done")
		k.end()
	}
}
