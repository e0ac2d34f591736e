// Command q8 generates the arm64 assembly of apr/device/cpu/q8: tiles of integer dot products by SDOT (FEAT_DotProd), and what
// prepares their weights. Run it through go generate in that package.
package main

import (
	"fmt"

	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// The layout of the structs unpacked and rounded of the package.
const (
	vecBytes = 64 // 16 lanes of 4 bytes
	scaleAt  = 4096
	minAt    = scaleAt + 16*64
	dAt      = minAt + 8*64
	dminAt   = dAt + 64
	rowBytes = 336 // of a rounded chunk: the coarse half, then the fine one
	sumsAt   = 256
	pairsAt  = sumsAt + 32
	rowDAt   = pairsAt + 16

	parts = 4 // registers of 16 lanes
)

var f = New("q8", "q8")

func main() {
	super(32)
	super(16)
	blocks()
	unpack4()
	unpackTable()
	unpack6()
	meta32()
	meta16()
	metaBlocks()
	f.Main()
}

func load(r int, name string, at int) { f.Op("MOVD", "%s+%d(FP), R%d", name, at, r) }

// Registers of sums: by half and part.
func dot(half, v int) V   { return V(16 + parts*half + v) }
func total(half, v int) V { return V(24 + parts*half + v) }

const tileSignature = "(codes, u *byte, x *int8, c *float32, blocks, zero int)"

// bytesConstant fills a register with a byte.
func bytesConstant(d V, value int) {
	f.Op("MOVD", "$%#x, R26", value*0x01010101)
	f.Broadcast32(d, 26)
}

// words adds the products of n vectors of codes with as many words of both halves of activations, which are in the registers
// 4 and 5, and 6 and 7. A mask that is not negative is a register that flips bits of the codes.
func words(n, codes int, mask V) {
	for w := range n {
		f.Op("FLDPQ.P", "32(R%d), (F0, F1)", codes)
		f.Op("FLDPQ.P", "32(R%d), (F2, F3)", codes)
		for v := range parts {
			if mask >= 0 {
				f.V3(EOR, V(v), V(v), mask)
			}
			for half := range 2 {
				f.Element32(SDOTElement, dot(half, v), V(v), V(4+2*half+w/4), w%4)
			}
		}
	}
}

func zeros(first V, n int) {
	for i := range n {
		f.Zero(first + V(i))
	}
}

// super generates the tile of one row of a K type: see superGo.
func super(group int) {
	f.Func(fmt.Sprintf("super%dNEON", group), tileSignature, fmt.Sprintf("does what superGo(%d) does.", group), 48)
	load(0, "codes", 0)
	load(1, "u", 8)
	load(2, "x", 16)
	load(3, "c", 24)
	f.Op("ADD", "$%d, R1, R4", scaleAt)
	f.Op("MOVD", "R2, R5")
	f.Op("MOVD", "$%d, R6", 256/group)
	zeros(total(0, 0), 2*parts)
	f.Label("group")
	zeros(dot(0, 0), 2*parts)
	for half := range 2 {
		for i := range group / 16 {
			f.Load(V(4+2*half+i), 5, half*rowBytes+16*i)
		}
	}
	words(group/4, 0, -1)
	for v := range parts {
		f.Load(V(8+v), 4, 16*v)
		for half := range 2 {
			f.V3(MLA, total(half, v), dot(half, v), V(8+v))
		}
	}
	f.Op("ADD", "$64, R4, R4")
	f.Op("ADD", "$%d, R5, R5", group)
	f.Op("SUB", "$1, R6, R6")
	f.Op("CBNZ", "R6, group")
	minima(group)
	finishSuper()
	f.Ret()
}

// minima adds up the products of minima and sums of activations, in the registers of dot.
func minima(group int) {
	zeros(dot(0, 0), 2*parts)
	at, n := sumsAt, 16
	if group == 32 {
		at, n = pairsAt, 8
	}
	for half := range 2 {
		for i := range n / 8 {
			f.Load(V(2*half+i), 2, half*rowBytes+at+16*i)
		}
	}
	f.Op("ADD", "$%d, R1, R4", minAt)
	for p := range n / 2 {
		f.Op("VLD2.P", "32(R4), [V8.H8, V9.H8]") // of lanes 0 … 7, of both groups
		f.Op("VLD2.P", "32(R4), [V10.H8, V11.H8]")
		for odd := range 2 {
			e := 2*p + odd
			for half := range 2 {
				sums := V(2*half + e/8)
				f.Element16(SMLALElement, dot(half, 0), V(8+odd), sums, e%8)
				f.Element16(SMLAL2, dot(half, 1), V(8+odd), sums, e%8)
				f.Element16(SMLALElement, dot(half, 2), V(10+odd), sums, e%8)
				f.Element16(SMLAL2, dot(half, 3), V(10+odd), sums, e%8)
			}
		}
	}
}

// finishSuper adds d·x.d·S − dmin·x.d·M to the outputs, each operation rounded on its own.
func finishSuper() {
	f.Op("FMOVS", "%d(R2), F0", rowBytes+rowDAt)
	f.Op("MOVD", "$0x437e0000, R5") // finer, 254
	f.Op("FMOVS", "R5, F1")
	term := func(to V, v, at int, sums func(half, v int) V) {
		f.V2(SCVTF, 4, sums(0, v))
		f.Element32(FMULElement, 4, 4, 1, 0)
		f.V2(SCVTF, 5, sums(1, v))
		f.V3(FADD, 4, 4, 5)
		f.Load(to, 1, at+16*v)
		f.Element32(FMULElement, to, to, 0, 0)
		f.V3(FMUL, to, to, 4)
	}
	for v := range parts {
		term(6, v, dAt, total)
		term(7, v, dminAt, dot)
		f.V3(FSUB, 6, 6, 7)
		f.Load(7, 3, 16*v)
		f.V3(FADD, 7, 7, 6)
		f.Store(7, 3, 16*v)
	}
}

// blocks generates the tile of one row of 32-blocks: see blocksGo. Codes of 8 bits, whose zero is 128, become signed, which takes
// their zero away.
func blocks() {
	const flip = V(15)
	f.Func("blocksNEON", tileSignature, "does what blocksGo does.", 48)
	load(0, "codes", 0)
	load(1, "u", 8)
	load(2, "x", 16)
	load(3, "c", 24)
	load(6, "blocks", 32)
	load(7, "zero", 40)
	f.Zero(flip)
	f.Op("CMP", "$128, R7")
	f.Op("BNE", "begin")
	bytesConstant(flip, 0x80)
	f.Op("MOVD", "$0, R7")
	f.Label("begin")
	f.Op("ADD", "$%d, R1, R4", scaleAt)
	f.Op("MOVD", "R2, R5")                // activations
	f.Op("ADD", "$%d, R2, R8", sumsAt)    // their sums, every other one
	f.Op("ADD", "$%d, R2, R9", rowDAt)    // their scales
	f.Op("ADD", "$%d, R5, R10", rowBytes) // the fine half
	f.Op("ADD", "$%d, R8, R11", rowBytes)
	f.Op("ADD", "$%d, R9, R12", rowBytes)
	for v := range parts {
		f.Load(total(0, v), 3, 16*v)
	}
	zeros(total(1, 0), parts)
	f.Op("CBZ", "R6, done")
	f.Label("block")
	zeros(dot(0, 0), 2*parts)
	f.Op("FLDPQ.P", "32(R5), (F4, F5)")
	f.Op("FLDPQ.P", "32(R10), (F6, F7)")
	words(8, 0, flip)
	for half, r := range []int{8, 11} {
		f.Op("MOVH.P", "4(R%d), R13", r)
		f.Op("MULW", "R7, R13, R13")
		f.Broadcast32(8, 13)
		for v := range parts {
			f.V3(SUB, dot(half, v), dot(half, v), 8)
			f.V2(SCVTF, dot(half, v), dot(half, v))
		}
	}
	f.Op("FMOVS.P", "4(R9), F12")
	f.Op("FMOVS.P", "4(R12), F13")
	for v := range parts {
		f.Load(8, 4, 16*v)
		for half := range 2 {
			f.Element32(FMULElement, 14, 8, V(12+half), 0)
			f.V3(FMUL, 14, 14, dot(half, v))
			f.V3(FADD, total(half, v), total(half, v), 14)
		}
	}
	f.Op("ADD", "$64, R4, R4")
	f.Op("SUB", "$1, R6, R6")
	f.Op("CBNZ", "R6, block")
	f.Label("done")
	for v := range parts {
		f.V3(FADD, total(0, v), total(0, v), total(1, v))
		f.Store(total(0, v), 3, 16*v)
	}
	f.Ret()
}
