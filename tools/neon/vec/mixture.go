package main

import (
	"math"

	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// mixtureKernels are the mixture of distributions by their logarithms: see tools/avo/vec/mixture.go.
func mixtureKernels() {
	generate("expTotal", "x []float32, shift, invT float32", "(sum float64)", func(k *kernel) {
		k.slices("x")
		k.count("x")
		shift, invT, least := k.scalar("shift"), k.scalar("invT"), k.minusInf()
		sums := k.totals(1)
		k.loop(4, func() {
			x := k.loadOr("x", least)
			f.V3(FSUB, x, x, shift)
			f.V3(FMUL, x, x, invT)
			k.exp(x)
			f.V3(FADD, sums.small[0], sums.small[0], x)
		})
		sums.result(0, "sum")
		f.Ret()
	})
	generate("shift", "y, x []float32, m, c float32", "", func(k *kernel) {
		k.slices("y", "x")
		k.count("y")
		m, c := k.scalar("m"), k.scalar("c")
		k.loop(4, func() {
			x := k.load("x")
			f.V3(FSUB, x, x, m)
			f.V3(FADD, x, x, c)
			k.store(x, "y")
		})
		f.Ret()
	})
	generate("logAddExp", "y, x []float32, m, c, invT, t float32", "", func(k *kernel) {
		k.slices("y", "x")
		k.count("y")
		m, c, invT, t := k.scalar("m"), k.scalar("c"), k.scalar("invT"), k.scalar("t")
		k.loop(2, func() {
			v, y := k.load("x"), k.load("y")
			f.V3(FSUB, v, v, m)
			f.V3(FADD, v, v, c)
			larger, low := k.vec(), k.vec()
			f.V3(FMAX, larger, y, v) // NaN if either is
			f.V3(FMIN, y, y, v)
			k.with(FMAX, low, larger, -math.MaxFloat32)
			f.V3(FSUB, y, y, low)
			f.V3(FMUL, y, y, invT)
			k.free(v, low)
			k.exp(y)
			k.log1p(y)
			f.V3(FMLA, larger, t, y)
			k.store(larger, "y")
		})
		f.Ret()
	})
}
