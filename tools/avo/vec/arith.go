package main

import (
	"math"

	"github.com/mmcloughlin/avo/attr"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Constants stand in memory as 32 bytes each: a whole vector for AVX2, and AVX-512 broadcasts the first element.
var (
	constants []uint32
	places    = map[uint32]int{}
)

// constant returns copies of f as an operand.
func constant(f float32) operand.Mem { return constantBits(math.Float32bits(f)) }

func constantBits(u uint32) operand.Mem {
	at, ok := places[u]
	if !ok {
		at = len(constants)
		places[u] = at
		constants = append(constants, u)
	}
	return operand.NewDataAddr(operand.NewStaticSymbol("constants"), 32*at)
}

// maskTable is eight words of ones, then eight of zeros: the mask of n lanes begins 8−n words in.
func maskTable() operand.Mem { return operand.NewDataAddr(operand.NewStaticSymbol("masks"), 0) }

// emitConstants writes the tables.
func emitConstants() {
	GLOBL("constants", attr.RODATA|attr.NOPTR)
	for i, u := range constants {
		for lane := range 8 {
			DATA(32*i+4*lane, operand.U32(u))
		}
	}
	GLOBL("masks", attr.RODATA|attr.NOPTR)
	for i := range 16 {
		u := uint32(0)
		if i < 8 {
			u = 0xffffffff
		}
		DATA(4*i, operand.U32(u))
	}
}

type instruction func(ops ...operand.Op)

// with emits an instruction whose first operand is the constant f.
func (k *kernel) with(plain, broadcast instruction, f float32, ops ...operand.Op) {
	k.withBits(plain, broadcast, math.Float32bits(f), ops...)
}

func (k *kernel) withBits(plain, broadcast instruction, u uint32, ops ...operand.Op) {
	ops = append([]operand.Op{constantBits(u)}, ops...)
	if k.wide() {
		broadcast(ops...)
	} else {
		plain(ops...)
	}
}

// held loads a constant into a register.
func (k *kernel) held(f float32) reg.VecVirtual {
	v := k.vec()
	VBROADCASTSS(constant(f), v)
	return v
}

func (k *kernel) copyOf(x reg.VecVirtual) reg.VecVirtual {
	v := k.vec()
	VMOVAPS(x, v)
	return v
}

// clampLow and clampHigh bound the argument of exp: below, e^x is less than half of the smallest float32, above it is
// infinite.
const (
	clampLow  = -105
	clampHigh = 89
	ln2High   = 0.693359375 // nine bits: n·ln2High is exact
	ln2Low    = -2.12194440054690583e-4
)

// expCoefficients approximate (e^r−1−r)/r² on |r| ≤ ½ln2, highest power first (Chebyshev interpolation; relative error
// of e^r 8e-9).
var expCoefficients = []float32{0.00139263256181, 0.00836329275303, 0.0416665537626, 0.166665763056, 0.5}

// exp replaces x by e^x: n = round(x·log₂e), r = x − n·ln 2, e^x = 2ⁿ·e^r. It is within 2 units in the last place; NaN
// stays NaN.
func (k *kernel) exp(x reg.VecVirtual) {
	lo, hi := k.held(clampLow), k.held(clampHigh)
	VMAXPS(x, lo, x) // gives the first operand, here x, if either is NaN
	VMINPS(x, hi, x)
	n := k.vec()
	k.with(VMULPS, VMULPS_BCST, math.Log2E, x, n)
	if k.wide() {
		VRNDSCALEPS(operand.U8(8), n, n)
	} else {
		VROUNDPS(operand.U8(8), n, n)
	}
	k.with(VFNMADD231PS, VFNMADD231PS_BCST, ln2High, n, x)
	k.with(VFNMADD231PS, VFNMADD231PS_BCST, ln2Low, n, x)
	p := k.held(expCoefficients[0])
	for _, c := range append(expCoefficients[1:], 1, 1) {
		k.with(VFMADD213PS, VFMADD213PS_BCST, c, x, p)
	}
	if k.wide() {
		VSCALEFPS(n, p, x)
		return
	}
	// 2ⁿ in two factors, since n may be below the exponents of normal numbers.
	a, b := k.vec(), k.vec()
	VCVTPS2DQ(n, b)
	VPSRAD(operand.U8(1), b, a)
	VPSUBD(a, b, b)
	for _, e := range []reg.VecVirtual{a, b} {
		VPADDD(constantBits(127), e, e)
		VPSLLD(operand.U8(23), e, e)
		VMULPS(e, p, p)
	}
	VMOVAPS(p, x)
}

// logCoefficients approximate (ln(1+f) − f + f²/2)/f³ on √½−1 ≤ f ≤ √2−1, highest power first (Chebyshev
// interpolation; error 3e-8).
var logCoefficients = []float32{
	0.0697161147145, -0.114797338466, 0.116854199235, -0.124256873315, 0.142490576457, -0.166678023195,
	0.200007157489, -0.24999996958, 0.3333333118,
}

// log replaces x, positive and normal, by ln x: x = 2ᵉ(1+f).
func (k *kernel) log(x reg.VecVirtual) {
	const sqrtHalf = 0x3f3504f3
	e, f := k.vec(), k.vec()
	k.withBits(VPSUBD, VPSUBD_BCST, sqrtHalf, x, e)
	VPSRAD(operand.U8(23), e, e)
	VPSLLD(operand.U8(23), e, f)
	VPSUBD(f, x, x) // the mantissa, in [√½, √2)
	k.with(VSUBPS, VSUBPS_BCST, 1, x, x)
	VCVTDQ2PS(e, e)
	p := k.held(logCoefficients[0])
	for _, c := range logCoefficients[1:] {
		k.with(VFMADD213PS, VFMADD213PS_BCST, c, x, p)
	}
	VMULPS(x, x, f) // f²
	VMULPS(f, p, p)
	VMULPS(x, p, p) // f³·P
	k.with(VFMADD231PS, VFMADD231PS_BCST, ln2Low, e, p)
	k.with(VFNMADD231PS, VFNMADD231PS_BCST, 0.5, f, p)
	VADDPS(p, x, x)
	k.with(VFMADD231PS, VFMADD231PS_BCST, ln2High, e, x)
}

// log1pCoefficients approximate ln(1+x)/x on 0 ≤ x ≤ 1, highest power first (Chebyshev interpolation; error of ln(1+x) in float32
// 8e-8).
var log1pCoefficients = []float32{
	-0.00317605678, 0.0195425265, -0.0563736111, 0.105436236, -0.152696669, 0.196632743, -0.249516159, 0.333297104,
	-0.499998927, 1,
}

// log1p replaces x of [0, 1] by ln(1+x); NaN stays NaN.
func (k *kernel) log1p(x reg.VecVirtual) {
	p := k.held(log1pCoefficients[0])
	for _, c := range log1pCoefficients[1:] {
		k.with(VFMADD213PS, VFMADD213PS_BCST, c, x, p)
	}
	VMULPS(p, x, x)
}

// keepNonZero clears the lanes of x where p is zero: the product of a vanished probability and its logarithm.
func (k *kernel) keepNonZero(p, x reg.VecVirtual) {
	if k.wide() {
		m := K()
		zero := k.zero()
		VCMPPS(operand.U8(4), zero, p, m) // ≠, true for NaN
		VMOVAPS_Z(x, m, x)
		return
	}
	m := k.zero()
	VCMPPS(operand.U8(4), m, p, m)
	VANDPS(m, x, x)
}

// tanhNear bounds where tanh is a polynomial: beyond, 1 − 2/(e^{2x}+1) loses at most a unit.
const tanhNear = 0.625

// tanhCoefficients approximate (tanh(x)/x − 1)/x² in x² on |x| ≤ tanhNear, highest power first (Chebyshev interpolation;
// relative error of tanh 2e-8).
var tanhCoefficients = []float32{-0.0060967141633, 0.0209971789968, -0.0538509095778, 0.13332769737, -0.333333289441}

// tanh replaces x by tanh x, within 3 units in the last place; NaN stays NaN.
func (k *kernel) tanh(x reg.VecVirtual) {
	square, size, far := k.vec(), k.vec(), k.vec()
	VMULPS(x, x, square)
	near := k.held(tanhCoefficients[0])
	for _, c := range tanhCoefficients[1:] {
		k.with(VFMADD213PS, VFMADD213PS_BCST, c, square, near)
	}
	VMULPS(square, near, near)
	VFMADD213PS(x, x, near)
	k.withBits(VANDPS, VANDPS_BCST, 0x7fffffff, x, size)
	VADDPS(size, size, far)
	k.exp(far)
	k.with(VADDPS, VADDPS_BCST, 1, far, far)
	two := k.held(2)
	VDIVPS(far, two, two)
	far = k.held(1)
	VSUBPS(two, far, far)
	k.withBits(VANDPS, VANDPS_BCST, 0x80000000, x, x)
	VORPS(x, far, x)
	limit := k.held(tanhNear)
	if k.wide() {
		m := K()
		VCMPPS(operand.U8(1), limit, size, m) // <, false for NaN
		VMOVAPS(near, m, x)
		return
	}
	VCMPPS(operand.U8(1), limit, size, size)
	VBLENDVPS(size, near, x, x)
}
