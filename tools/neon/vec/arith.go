package main

import (
	"math"

	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// The polynomials are those of tools/avo/vec/arith.go, where their errors are.
const (
	clampLow  = -105
	clampHigh = 89
	ln2High   = 0.693359375 // nine bits: n·ln2High is exact
	ln2Low    = -2.12194440054690583e-4
	tanhNear  = 0.625
)

var (
	expCoefficients = []float32{0.00139263256181, 0.00836329275303, 0.0416665537626, 0.166665763056, 0.5}
	logCoefficients = []float32{
		0.0697161147145, -0.114797338466, 0.116854199235, -0.124256873315, 0.142490576457, -0.166678023195,
		0.200007157489, -0.24999996958, 0.3333333118,
	}
	log1pCoefficients = []float32{
		-0.00317605678, 0.0195425265, -0.0563736111, 0.105436236, -0.152696669, 0.196632743, -0.249516159, 0.333297104,
		-0.499998927, 1,
	}
	tanhCoefficients = []float32{-0.0060967141633, 0.0209971789968, -0.0538509095778, 0.13332769737, -0.333333289441}
)

// polynomial returns the polynomial in x with the coefficients, highest power first.
func (k *kernel) polynomial(x V, coefficients ...float32) V {
	p := k.held(coefficients[0])
	for _, c := range coefficients[1:] {
		q := k.held(c)
		f.V3(FMLA, q, x, p)
		k.free(p)
		p = q
	}
	return p
}

// with does d = n op c.
func (k *kernel) with(i Instruction, d, n V, c float32) {
	v := k.constant(c)
	f.V3(i, d, n, v)
	k.free(v)
}

// withBits is with for a constant that is given as bits.
func (k *kernel) withBits(i Instruction, d, n V, u uint32) {
	v := k.bits(u)
	f.V3(i, d, n, v)
	k.free(v)
}

// exp replaces x by e^x: n = round(x·log₂e), r = x − n·ln 2, e^x = 2ⁿ·e^r, 2ⁿ in two factors, since n may be below the exponents
// of normal numbers. NaN stays NaN.
func (k *kernel) exp(x V) {
	k.with(FMAX, x, x, clampLow)
	k.with(FMIN, x, x, clampHigh)
	n := k.vec()
	k.with(FMUL, n, x, math.Log2E)
	f.V2(FRINTN, n, n)
	k.with(FMLS, x, n, ln2High)
	k.with(FMLS, x, n, ln2Low)
	p := k.polynomial(x, append(append([]float32{}, expCoefficients...), 1, 1)...)
	a := k.vec()
	f.V2(FCVTNS, n, n)
	f.ShiftRight32(a, n, 1)
	f.V3(SUB, n, n, a)
	for _, e := range []V{a, n} {
		k.withBits(ADD, e, e, 127)
		f.ShiftLeft32(e, e, 23)
	}
	f.V3(FMUL, p, p, a)
	f.V3(FMUL, x, p, n)
	k.free(p, n, a)
}

// log replaces x, positive and normal, by ln x: x = 2ᵉ(1+f).
func (k *kernel) log(x V) {
	const sqrtHalf = 0x3f3504f3
	e, square := k.vec(), k.vec()
	k.withBits(SUB, e, x, sqrtHalf)
	f.ShiftRight32(e, e, 23)
	f.ShiftLeft32(square, e, 23)
	f.V3(SUB, x, x, square) // the mantissa, in [√½, √2)
	k.with(FSUB, x, x, 1)
	f.V2(SCVTF, e, e)
	p := k.polynomial(x, logCoefficients...)
	f.V3(FMUL, square, x, x)
	f.V3(FMUL, p, p, square)
	f.V3(FMUL, p, p, x) // f³·P
	k.with(FMLA, p, e, ln2Low)
	k.with(FMLS, p, square, 0.5)
	f.V3(FADD, x, x, p)
	k.with(FMLA, x, e, ln2High)
	k.free(e, square, p)
}

// log1p replaces x of [0, 1] by ln(1+x); NaN stays NaN.
func (k *kernel) log1p(x V) {
	p := k.polynomial(x, log1pCoefficients...)
	f.V3(FMUL, x, x, p)
	k.free(p)
}

// keepNonZero clears the lanes of x where p is zero: the product of a vanished probability and its logarithm.
func (k *kernel) keepNonZero(p, x V) {
	m := k.vec()
	f.V2(FEQZERO, m, p)
	f.V3(BIC, x, x, m)
	k.free(m)
}

// tanh replaces x by tanh x; NaN stays NaN.
func (k *kernel) tanh(x V) {
	square, size := k.vec(), k.vec()
	f.V3(FMUL, square, x, x)
	p := k.polynomial(square, tanhCoefficients...)
	f.V3(FMUL, p, p, square)
	near := k.copyOf(x)
	f.V3(FMLA, near, p, x)
	f.V2(FABS, size, x)
	far := k.vec()
	f.V3(FADD, far, size, size)
	k.free(square, p)
	k.exp(far)
	k.with(FADD, far, far, 1)
	two := k.held(2)
	f.V3(FDIV, two, two, far)
	one := k.held(1)
	f.V3(FSUB, far, one, two)
	k.withBits(AND, x, x, 0x80000000)
	f.V3(ORR, far, far, x)
	limit := k.constant(tanhNear)
	f.V3(FCMGT, size, limit, size) // false for NaN
	f.V3(BSL, size, near, far)
	f.Move(x, size)
	k.free(two, one, limit, near, far, size)
}

// onePlusExpMinus returns 1 + e^{−g}.
func (k *kernel) onePlusExpMinus(g V) V {
	e := k.vec()
	f.V2(FNEG, e, g)
	k.exp(e)
	k.with(FADD, e, e, 1)
	return e
}
