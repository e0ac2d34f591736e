// Command gemm generates the arm64 assembly of apr/device/cpu/gemm: register tiles of a matrix product and the two ways of
// packing a panel. Run it through go generate in that package.
package main

import (
	"fmt"

	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// A tile has rows × vectors·4 columns, as that of AVX2: 24 registers of sums, 4 of B, and elements of A.
const (
	rows    = 6
	vectors = 4
	lanes   = 8
)

var f = New("gemm", "gemm")

func main() {
	for h := 1; h <= rows; h++ {
		tile(h)
	}
	transpose()
	pack()
	f.Main()
}

// General registers of a tile: 1 … 6 point to rows of A.
const (
	rk      = 0
	rAt     = 7 // offset in all rows of A, in elements
	rStep   = 8 // from a column of A to the next
	rB      = 9
	rBStep  = 10
	rC      = 11
	rCStep  = 12
	rTemp   = 13
	rRow    = 14
	firstB  = V(24)
	firstA  = V(28)
	spareAs = 4
)

func sum(i, v int) V { return V(i*vectors + v) }

// tile generates an h-row tile. Its sums are one chain of fused multiply-adds over p for each element, so that every tile height
// gives the same bits, and the same as AVX2 and as Go, which fuses on arm64.
func tile(h int) {
	name := fmt.Sprintf("tileNEON%d", h)
	f.Func(name, "(k int, a *float32, ars, acs int, b *float32, bs int, c *float32, ldc int, alpha float32, bias *float32, add bool)",
		fmt.Sprintf("computes %d rows of %d columns, as tileGo does.", h, 4*vectors), 81)
	f.Op("MOVD", "k+0(FP), R%d", rk)
	f.Op("MOVD", "a+8(FP), R1")
	if h > 1 {
		f.Op("MOVD", "ars+16(FP), R%d", rTemp)
	}
	for i := 1; i < h; i++ {
		f.Op("ADD", "R%d<<2, R%d, R%d", rTemp, i, i+1)
	}
	f.Op("MOVD", "acs+24(FP), R%d", rStep)
	f.Op("MOVD", "b+32(FP), R%d", rB)
	f.Op("MOVD", "bs+40(FP), R%d", rBStep)
	f.Op("LSL", "$2, R%d, R%d", rBStep, rBStep)
	f.Op("MOVD", "c+48(FP), R%d", rC)
	f.Op("MOVD", "ldc+56(FP), R%d", rCStep)
	f.Op("LSL", "$2, R%d, R%d", rCStep, rCStep)
	f.Op("MOVD", "R%d, R%d", rC, rRow)
	for i := range h { // C comes while the sums are made
		f.Op("PRFM", "(R%d), PLDL1KEEP", rRow)
		if i < h-1 {
			f.Op("ADD", "R%d, R%d, R%d", rCStep, rRow, rRow)
		}
	}
	for i := range h * vectors {
		f.Zero(V(i))
	}
	f.Op("MOVD", "$0, R%d", rAt)
	f.Op("CBZ", "R%d, store", rk)
	f.Label("loop")
	f.Op("FLDPQ", "(R%d), (F%d, F%d)", rB, firstB, firstB+1)
	f.Op("FLDPQ", "32(R%d), (F%d, F%d)", rB, firstB+2, firstB+3)
	f.Op("ADD", "R%d, R%d, R%d", rBStep, rB, rB)
	for i := range h {
		x := firstA + V(i%spareAs)
		f.Op("FMOVS", "(R%d)(R%d<<2), F%d", 1+i, rAt, x)
		for v := range vectors {
			f.Element32(FMLAElement, sum(i, v), firstB+V(v), x, 0)
		}
	}
	f.Op("ADD", "R%d, R%d, R%d", rStep, rAt, rAt)
	f.Op("SUB", "$1, R%d, R%d", rk, rk)
	f.Op("CBNZ", "R%d, loop", rk)
	f.Label("store")
	store(h)
	f.Ret()
}

// store writes alpha·sum, plus the bias if given, plus what C holds if asked.
func store(h int) {
	f.Op("FMOVS", "alpha+64(FP), F%d", firstA)
	for i := range h * vectors {
		f.Element32(FMULElement, V(i), V(i), firstA, 0)
	}
	f.Op("MOVD", "bias+72(FP), R%d", rTemp)
	f.Op("CBZ", "R%d, unbiased", rTemp)
	loadRow(rTemp)
	for i := range h {
		addRow(i)
	}
	f.Label("unbiased")
	f.Op("MOVBU", "add+80(FP), R%d", rTemp)
	f.Op("CBZ", "R%d, plain", rTemp)
	f.Op("MOVD", "R%d, R%d", rC, rRow)
	for i := range h {
		loadRow(rRow)
		addRow(i)
		if i < h-1 {
			f.Op("ADD", "R%d, R%d, R%d", rCStep, rRow, rRow)
		}
	}
	f.Label("plain")
	for i := range h {
		for v := range vectors {
			f.Store(sum(i, v), rC, 16*v)
		}
		if i < h-1 {
			f.Op("ADD", "R%d, R%d, R%d", rCStep, rC, rC)
		}
	}
}

func loadRow(r int) {
	for v := range vectors {
		f.Load(firstB+V(v), r, 16*v)
	}
}

func addRow(i int) {
	for v := range vectors {
		f.V3(FADD, sum(i, v), sum(i, v), firstB+V(v))
	}
}

// transpose generates dst[p·ldd+i] = a[i·ars+p] for i < lanes, p < 4·blocks: two transposes of 4×4 at a time.
func transpose() {
	f.Func("transposeNEON", "(blocks int, a *float32, ars int, dst *float32, ldd int)",
		fmt.Sprintf("packs %d rows as columns: dst[p·ldd+i] = a[i·ars+p], p < 4·blocks.", lanes), 40)
	const step, dst = 9, 10
	f.Op("MOVD", "blocks+0(FP), R0")
	f.Op("MOVD", "a+8(FP), R1")
	f.Op("MOVD", "ars+16(FP), R%d", rTemp)
	for i := 1; i < lanes; i++ {
		f.Op("ADD", "R%d<<2, R%d, R%d", rTemp, i, i+1)
	}
	f.Op("MOVD", "dst+24(FP), R%d", dst)
	f.Op("MOVD", "ldd+32(FP), R%d", step)
	f.Op("LSL", "$2, R%d, R%d", step, step)
	f.Op("CBZ", "R0, done")
	f.Label("loop")
	for i := range lanes {
		f.Op("FMOVQ.P", "16(R%d), F%d", 1+i, i)
	}
	for g := V(0); g < lanes; g += 4 {
		t := 8 + g
		f.V3(TRN1, t, g, g+1)
		f.V3(TRN2, t+1, g, g+1)
		f.V3(TRN1, t+2, g+2, g+3)
		f.V3(TRN2, t+3, g+2, g+3)
		f.V3(TRN1D, g, t, t+2)
		f.V3(TRN1D, g+1, t+1, t+3)
		f.V3(TRN2D, g+2, t, t+2)
		f.V3(TRN2D, g+3, t+1, t+3)
	}
	for p := range 4 {
		f.Op("FSTPQ", "(F%d, F%d), (R%d)", p, 4+p, dst)
		f.Op("ADD", "R%d, R%d, R%d", step, dst, dst)
	}
	f.Op("SUB", "$1, R0, R0")
	f.Op("CBNZ", "R0, loop")
	f.Label("done")
	f.Ret()
}

// pack generates dst[p·ldd+i] = a[p·acs+i] for i < lanes, p < k.
func pack() {
	f.Func("copyNEON", "(k int, a *float32, acs int, dst *float32, ldd int)",
		fmt.Sprintf("packs k rows of %d columns: dst[p·ldd+i] = a[p·acs+i].", lanes), 40)
	f.Op("MOVD", "k+0(FP), R0")
	f.Op("MOVD", "a+8(FP), R1")
	f.Op("MOVD", "acs+16(FP), R2")
	f.Op("MOVD", "dst+24(FP), R3")
	f.Op("MOVD", "ldd+32(FP), R4")
	f.Op("LSL", "$2, R2, R2")
	f.Op("LSL", "$2, R4, R4")
	f.Op("CBZ", "R0, done")
	f.Label("loop")
	f.Op("FLDPQ", "(R1), (F0, F1)")
	f.Op("FSTPQ", "(F0, F1), (R3)")
	f.Op("ADD", "R2, R1, R1")
	f.Op("ADD", "R4, R3, R3")
	f.Op("SUB", "$1, R0, R0")
	f.Op("CBNZ", "R0, loop")
	f.Label("done")
	f.Ret()
}
