package main

import (
	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// simpleKernels are loops of a few products and sums for each element.
func simpleKernels() {
	generate("add", "dst, x []float32", "", func(k *kernel) {
		k.slices("dst", "x")
		k.count("dst")
		k.loop(4, func() {
			v := k.load("dst")
			f.V3(FADD, v, v, k.load("x"))
			k.store(v, "dst")
		})
		f.Ret()
	})
	generate("scale", "x []float32, s float32", "", func(k *kernel) {
		k.slices("x")
		k.count("x")
		s := k.scalar("s")
		k.loop(4, func() {
			v := k.load("x")
			f.V3(FMUL, v, v, s)
			k.store(v, "x")
		})
		f.Ret()
	})
	generate("normScale", "y, x, w []float32, s float32", "", func(k *kernel) {
		k.slices("y", "x", "w")
		k.count("y")
		s := k.scalar("s")
		k.loop(4, func() {
			v := k.load("x")
			f.V3(FMUL, v, v, s)
			f.V3(FMUL, v, v, k.load("w"))
			k.store(v, "y")
		})
		f.Ret()
	})
	generate("normGrad", "dx, dw, dy, x, w []float32, rstd, c float32", "", func(k *kernel) {
		k.slices("dx", "dw", "dy", "x", "w")
		k.count("dx")
		rstd, c := k.scalar("rstd"), k.scalar("c")
		k.loop(2, func() {
			xhat, dy, dw := k.load("x"), k.load("dy"), k.load("dw")
			f.V3(FMUL, xhat, xhat, rstd)
			f.V3(FMLA, dw, dy, xhat)
			k.store(dw, "dw")
			f.V3(FMUL, dy, dy, k.load("w"))
			f.V3(FMLS, dy, xhat, c)
			dx := k.load("dx")
			f.V3(FMLA, dx, rstd, dy)
			k.store(dx, "dx")
		})
		f.Ret()
	})
	generate("rotate", "x, cos, sin []float32, heads int", "", rotate)
	generate("maximum", "x []float32", "(m float32)", maximum)
	generate("index", "x []float32, v float32", "(i int)", index)
}

func rotate(k *kernel) {
	k.slices("x", "cos", "sin")
	x, cos, sin := k.ptr["x"], k.ptr["cos"], k.ptr["sin"]
	half, heads := k.general(), k.general()
	f.Op("MOVD", "cos_len+%d(FP), R%d", k.offsets["cos"]+8, half)
	f.Op("MOVD", "heads+%d(FP), R%d", k.offsets["heads"], heads)
	k.order = []string{"lo", "hi", "c", "s"}
	for _, a := range k.order {
		k.ptr[a] = k.general()
	}
	k.n = k.general()
	f.Op("CBZ", "R%d, none", heads)
	f.Label("head")
	f.Op("MOVD", "R%d, R%d", half, k.n)
	f.Op("MOVD", "R%d, R%d", x, k.ptr["lo"])
	f.Op("ADD", "R%d<<2, R%d, R%d", half, x, k.ptr["hi"])
	f.Op("MOVD", "R%d, R%d", cos, k.ptr["c"])
	f.Op("MOVD", "R%d, R%d", sin, k.ptr["s"])
	k.loop(2, func() {
		a, b, c, s := k.load("lo"), k.load("hi"), k.load("c"), k.load("s")
		u, v := k.vec(), k.vec()
		f.V3(FMUL, u, b, s)
		f.V2(FNEG, u, u)
		f.V3(FMUL, v, a, s)
		f.V3(FMLA, u, a, c) // a·cos − b·sin
		f.V3(FMLA, v, b, c) // b·cos + a·sin
		k.store(u, "lo")
		k.store(v, "hi")
	})
	f.Op("ADD", "R%d<<3, R%d, R%d", half, x, x)
	f.Op("SUB", "$1, R%d, R%d", heads, heads)
	f.Op("CBNZ", "R%d, head", heads)
	f.Label("none")
	f.Ret()
}

func maximum(k *kernel) {
	k.slices("x")
	k.count("x")
	var m [4]V
	for i := range m {
		m[i] = k.keep()
		f.Load(m[i], table, place(0xff800000))
	}
	least := k.keep()
	f.Move(least, m[0])
	k.loop(4, func() { f.V3(FMAXNM, m[k.unroll], m[k.unroll], k.loadOr("x", least)) })
	f.V3(FMAXNM, m[0], m[0], m[1])
	f.V3(FMAXNM, m[2], m[2], m[3])
	f.V3(FMAXNM, m[0], m[0], m[2])
	f.V2(FMAXNMV, m[0], m[0])
	f.Op("FMOVS", "F%d, m+%d(FP)", m[0], k.offsets["m"])
	f.Ret()
}

// index looks at four elements at a time, and at one at a time from where one of them is equal, and in the tail.
func index(k *kernel) {
	k.slices("x")
	k.count("x")
	v := k.scalar("v")
	start, x := k.general(), k.ptr["x"]
	f.Op("MOVD", "R%d, R%d", x, start)
	eq, one := k.vec(), k.vec()
	f.Label("loop")
	f.Op("CMP", "$4, R%d", k.n)
	f.Op("BLT", "single")
	f.Load(eq, x, 0)
	f.V3(FCMEQ, eq, eq, v)
	f.V2(UMAXV, eq, eq)
	f.Op("FMOVS", "F%d, R%d", eq, temp)
	f.Op("CBNZW", "R%d, single", temp)
	f.Op("ADD", "$16, R%d, R%d", x, x)
	f.Op("SUB", "$4, R%d, R%d", k.n, k.n)
	f.Op("JMP", "loop")
	f.Label("single")
	f.Op("CBZ", "R%d, none", k.n)
	f.Op("FMOVS", "(R%d), F%d", x, one)
	f.Op("FCMPS", "F%d, F%d", v, one)
	f.Op("BEQ", "found")
	f.Op("ADD", "$4, R%d, R%d", x, x)
	f.Op("SUB", "$1, R%d, R%d", k.n, k.n)
	f.Op("JMP", "single")
	f.Label("none")
	f.Op("MOVD", "$-1, R%d", temp)
	f.Op("MOVD", "R%d, i+%d(FP)", temp, k.offsets["i"])
	f.Ret()
	f.Label("found")
	f.Op("SUB", "R%d, R%d, R%d", start, x, x)
	f.Op("LSR", "$2, R%d, R%d", x, x)
	f.Op("MOVD", "R%d, i+%d(FP)", x, k.offsets["i"])
	f.Ret()
}

// sumKernels add up in float64.
func sumKernels() {
	sum("dot", "a, b []float32", "a", []string{"a", "b"}, func(_ *kernel, v []V) { f.V3(FMLAD, v[2], v[0], v[1]) })
	sum("dot3", "a, b, c []float32", "a", []string{"a", "b", "c"}, func(_ *kernel, v []V) {
		f.V3(FMULD, v[0], v[0], v[1])
		f.V3(FMLAD, v[3], v[0], v[2])
	})
	sum("sumSquares", "x []float32", "x", []string{"x"}, func(_ *kernel, v []V) { f.V3(FMLAD, v[1], v[0], v[0]) })
	generate("addSumSquares", "dst, x, delta []float32", "(sum float64)", func(k *kernel) {
		k.slices("dst", "x", "delta")
		k.count("dst")
		sums := k.sums()
		k.loop(4, func() {
			v := k.load("x")
			f.V3(FADD, v, v, k.load("delta"))
			k.store(v, "dst")
			for half := range 2 {
				w := k.widened(v, half)
				f.V3(FMLAD, sums[2*k.unroll+half], w, w)
			}
		})
		k.addSums(sums)
		f.Ret()
	})
}

// widened returns half of a vector as float64.
func (k *kernel) widened(v V, half int) V {
	w := k.vec()
	if half == 0 {
		f.V2(FCVTLD, w, v)
	} else {
		f.V2(FCVTL2D, w, v)
	}
	return w
}

func (k *kernel) sums() (sums [8]V) {
	for i := range sums {
		sums[i] = k.zeroKept()
	}
	return sums
}

func (k *kernel) addSums(sums [8]V) {
	for step := 1; step < len(sums); step *= 2 {
		for i := 0; i < len(sums); i += 2 * step {
			f.V3(FADDD, sums[i], sums[i], sums[i+step])
		}
	}
	k.total(sums[0], "sum")
}

// sum generates a sum over products; term gets the widened halves of the arrays and the sum.
func sum(name, params, count string, arrays []string, term func(k *kernel, v []V)) {
	generate(name, params, "(sum float64)", func(k *kernel) {
		k.slices(arrays...)
		k.count(count)
		sums := k.sums()
		k.loop(4, func() {
			var loaded []V
			for _, a := range arrays {
				loaded = append(loaded, k.load(a))
			}
			for half := range 2 {
				var v []V
				for _, x := range loaded {
					v = append(v, k.widened(x, half))
				}
				term(k, append(v, sums[2*k.unroll+half]))
			}
		})
		k.addSums(sums)
		f.Ret()
	})
}
