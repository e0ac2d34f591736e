package main

import (
	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

const (
	geluK     = 0.79788456080286535588 // √(2/π)
	geluCube  = 0.044715
	geluLimit = 11 // beyond it σ(w) is 0 or 1, and g³ would overflow sooner or later
)

// gateKernels are gated units and the soft-cap, and their backwards.
func gateKernels() {
	gate("siluMul", func(_ *kernel, g V) V { return g })
	gate("geluMul", func(k *kernel, g V) V {
		w, near := k.geluArg(g)
		k.free(near)
		return w
	})
	gateGrad("siluMulGrad", func(_ *kernel, g V) (w, slope V) { return g, g })
	gateGrad("geluMulGrad", func(k *kernel, g V) (w, slope V) {
		w, near := k.geluArg(g)
		square, slope := k.vec(), k.held(2*geluK)
		f.V3(FMUL, square, near, near)
		k.with(FMLA, slope, square, 6*geluK*geluCube) // w'
		f.V3(FMUL, slope, slope, near)
		k.free(near, square)
		return w, slope
	})
	generate("softCap", "y, x []float32, c float32", "", func(k *kernel) {
		k.slices("y", "x")
		k.count("y")
		c := k.scalar("c")
		k.loop(2, func() {
			x := k.load("x")
			f.V3(FDIV, x, x, c)
			k.tanh(x)
			f.V3(FMUL, x, x, c)
			k.store(x, "y")
		})
		f.Ret()
	})
	generate("capGrad", "grad, z []float32, c float32", "", func(k *kernel) {
		k.slices("grad", "z")
		k.count("grad")
		c := k.scalar("c")
		k.loop(2, func() {
			z, grad := k.load("z"), k.load("grad")
			less, more := k.vec(), k.vec()
			f.V3(FSUB, less, c, z) // exact where the slope is small
			f.V3(FADD, more, c, z)
			f.V3(FDIV, less, less, c)
			f.V3(FDIV, more, more, c)
			f.V3(FMUL, grad, grad, less)
			f.V3(FMUL, grad, grad, more)
			k.store(grad, "grad")
		})
		f.Ret()
	})
}

// gate generates m = g·σ(w)·u with w from g.
func gate(name string, arg func(k *kernel, g V) V) {
	generate(name, "m, g, u []float32", "", func(k *kernel) {
		k.slices("m", "g", "u")
		k.count("m")
		k.loop(2, func() {
			g := k.load("g")
			den := k.onePlusExpMinus(arg(k, g))
			f.V3(FMUL, g, g, k.load("u"))
			f.V3(FDIV, g, g, den)
			k.store(g, "m")
		})
		f.Ret()
	})
}

// gateGrad generates dg = dm·u·σ(1 + slope·(1−σ)) and du = dm·g·σ, σ = σ(w), where slope is g·w'.
func gateGrad(name string, arg func(k *kernel, g V) (w, slope V)) {
	generate(name, "dg, du, dm, g, u []float32", "", func(k *kernel) {
		k.slices("dg", "du", "dm", "g", "u")
		k.count("dm")
		k.loop(1, func() {
			g := k.load("g")
			w, slope := arg(k, g)
			den := k.onePlusExpMinus(w)
			sig := k.held(1)
			f.V3(FDIV, sig, sig, den)
			dms := k.load("dm")
			f.V3(FMUL, dms, dms, sig) // dm·σ
			rest := k.held(1)
			f.V3(FSUB, rest, rest, sig)
			dg := k.held(1)
			f.V3(FMLA, dg, slope, rest)
			f.V3(FMUL, dg, dg, k.load("u"))
			f.V3(FMUL, dg, dg, dms)
			f.V3(FMUL, g, g, dms)
			k.store(dg, "dg")
			k.store(g, "du")
		})
		f.Ret()
	})
}

// geluArg returns w = 2k(g+0.044715g³), k = √(2/π), and g within ±geluLimit.
func (k *kernel) geluArg(g V) (w, near V) {
	near = k.copyOf(g)
	k.with(FMAX, near, near, -geluLimit) // NaN stays
	k.with(FMIN, near, near, geluLimit)
	square := k.vec()
	f.V3(FMUL, square, near, near)
	w = k.held(2 * geluK)
	k.with(FMLA, w, square, 2*geluK*geluCube)
	f.V3(FMUL, w, w, near)
	k.free(square)
	return w, near
}

// softmaxKernels are the rows of attention.
func softmaxKernels() {
	generate("expSum", "dst, x []float32, shift float32", "(sum float64)", func(k *kernel) {
		k.slices("dst", "x")
		k.count("dst")
		shift, least := k.scalar("shift"), k.minusInf()
		sums := k.totals(1)
		k.loop(4, func() {
			x := k.loadOr("x", least)
			f.V3(FSUB, x, x, shift)
			k.exp(x)
			f.V3(FADD, sums.small[0], sums.small[0], x)
			k.store(x, "dst")
		})
		sums.result(0, "sum")
		f.Ret()
	})
	generate("softmaxGrad", "s, dp []float32, scale, lse, delta float32", "", func(k *kernel) {
		k.slices("s", "dp")
		k.count("s")
		scale, lse, delta := k.scalar("scale"), k.scalar("lse"), k.scalar("delta")
		k.loop(2, func() {
			p := k.load("s")
			f.V3(FSUB, p, p, lse)
			k.exp(p)
			k.store(p, "s")
			dp := k.load("dp")
			f.V3(FSUB, dp, dp, delta)
			f.V3(FMUL, dp, dp, p)
			f.V3(FMUL, dp, dp, scale)
			k.store(dp, "dp")
		})
		f.Ret()
	})
}

func (k *kernel) minusInf() V {
	v := k.keep()
	f.Load(v, table, place(0xff800000))
	return v
}

// optimizerKernels is AdamW.
func optimizerKernels() {
	generate("adamW", "w, g, m, v []float32, c *float32", "", func(k *kernel) {
		k.slices("w", "g", "m", "v")
		k.count("w")
		c := k.fields("c", 9)
		decay, beta1, rest1, beta2, rest2, clip, step, invBias, eps := c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
		k.loop(1, func() {
			g, m, v, w := k.load("g"), k.load("m"), k.load("v"), k.load("w")
			f.V3(FMUL, g, g, clip)
			f.V3(FMUL, m, m, beta1)
			f.V3(FMLA, m, rest1, g)
			k.store(m, "m")
			f.V3(FMUL, v, v, beta2)
			gg := k.vec()
			f.V3(FMUL, gg, rest2, g)
			f.V3(FMLA, v, gg, g)
			k.store(v, "v")
			f.V2(FSQRT, v, v)
			den := k.copyOf(eps)
			f.V3(FMLA, den, invBias, v)
			f.V3(FMUL, m, m, step)
			f.V3(FDIV, m, m, den)
			f.V2(FNEG, m, m)
			f.V3(FMLA, m, w, decay) // w·decay − m
			k.store(m, "w")
		})
		f.Ret()
	})
}

// widenKernels decode 16-bit floats; the length is a multiple of 8.
func widenKernels() {
	for _, name := range []string{"widenBF16", "widenF16"} {
		generate(name, "dst []float32, src *byte", "", func(k *kernel) {
			k.slices("dst")
			k.count("dst")
			src, dst := k.general(), k.ptr["dst"]
			f.Op("MOVD", "src+%d(FP), R%d", k.offsets["src"], src)
			f.Op("CBZ", "R%d, done", k.n)
			f.Label("loop")
			f.Op("FMOVQ.P", "16(R%d), F0", src)
			if name == "widenBF16" {
				f.V2(UXTLH, 1, 0)
				f.V2(UXTL2H, 2, 0)
				f.ShiftLeft32(1, 1, 16)
				f.ShiftLeft32(2, 2, 16)
			} else {
				f.V2(FCVTLH, 1, 0)
				f.V2(FCVTL2H, 2, 0)
			}
			f.Op("FSTPQ.P", "(F1, F2), 32(R%d)", dst)
			f.Op("SUB", "$8, R%d, R%d", k.n, k.n)
			f.Op("CBNZ", "R%d, loop", k.n)
			f.Label("done")
			f.Ret()
		})
	}
}
