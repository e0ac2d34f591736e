package main

import (
	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// unpackLoop begins a function that reads src, counts n down and writes dst; the caller ends it by endLoop.
func unpackLoop(name, signature, doc string, args int) {
	f.Func(name, signature, doc, args)
	load(0, "dst", 0)
	load(1, "src", 8)
	load(2, "n", 16)
}

func endLoop() {
	f.Op("SUB", "$1, R2, R2")
	f.Op("CBNZ", "R2, loop")
	f.Label("done")
	f.Ret()
}

// load64 and store64 move 64 bytes and advance the pointer.
func load64(first V, r int) {
	f.Op("FLDPQ.P", "32(R%d), (F%d, F%d)", r, first, first+1)
	f.Op("FLDPQ.P", "32(R%d), (F%d, F%d)", r, first+2, first+3)
}

func store64(first V, r int) {
	f.Op("FSTPQ.P", "(F%d, F%d), 32(R%d)", first, first+1, r)
	f.Op("FSTPQ.P", "(F%d, F%d), 32(R%d)", first+2, first+3, r)
}

// unpack4 writes the low nibbles of each 64 bytes, then the high ones.
func unpack4() {
	unpackLoop("unpack4NEON", "(dst, src *byte, n int)", "does what unpackGo4 does.", 24)
	bytesConstant(16, 15)
	nibbles(func() {})
}

// unpackTable is unpack4, and looks each code up.
func unpackTable() {
	unpackLoop("unpackTableNEON", "(dst, src *byte, n int, table *byte)", "does what unpackTableGo does.", 32)
	load(3, "table", 24)
	f.Load(17, 3, 0)
	bytesConstant(16, 15)
	nibbles(func() {
		for v := V(4); v < 12; v++ {
			f.V3(TBL, v, 17, v)
		}
	})
}

func nibbles(change func()) {
	f.Op("CBZ", "R2, done")
	f.Label("loop")
	load64(0, 1)
	for v := range V(4) {
		f.V3(AND, 4+v, v, 16)
		f.ShiftRight8(8+v, v, 4)
	}
	change()
	store64(4, 0)
	store64(8, 0)
	endLoop()
}

// unpack6 puts the two upper bits, of four vectors in 64 bytes, to the nibbles of two times 64 bytes.
func unpack6() {
	unpackLoop("unpack6NEON", "(dst, src *byte, n int)", "does what unpackGo6 does.", 24)
	bytesConstant(16, 15)
	bytesConstant(17, 0x30)
	f.Op("CBZ", "R2, done")
	f.Label("loop")
	load64(0, 1)
	load64(4, 1)
	load64(8, 1)
	for u := range 4 {
		for v := range V(4) {
			from, low, up := V(u/2*4)+v, 20+v, V(18)
			if u%2 == 0 {
				f.V3(AND, low, from, 16)
			} else {
				f.ShiftRight8(low, from, 4)
			}
			switch by := 4 - 2*u; {
			case by > 0:
				f.ShiftLeft8(up, 8+v, by)
			case by < 0:
				f.ShiftRight8(up, 8+v, -by)
			default:
				f.Move(up, 8+v)
			}
			f.V3(AND, up, up, 17)
			f.V3(ORR, low, low, up)
		}
		store64(20, 0)
	}
	endLoop()
}

// scales writes the int8 scales of two groups, lane by lane in turn, as int32 by group.
func scales(p int) {
	f.Op("VLD2.P", "32(R1), [V0.B16, V1.B16]")
	for i := range V(2) {
		f.V2(SXTLB, 2, i)
		f.V2(SXTL2B, 3, i)
		f.V2(SXTLH, 4, 2)
		f.V2(SXTL2H, 5, 2)
		f.V2(SXTLH, 6, 3)
		f.V2(SXTL2H, 7, 3)
		for v := range 4 {
			f.Store(V(4+v), 0, scaleAt+64*(2*p+int(i))+16*v)
		}
	}
}

// halves widens 16 float16 behind R1.
func halves(at ...int) {
	f.Op("FLDPQ.P", "32(R1), (F0, F1)")
	f.V2(FCVTLH, 2, 0)
	f.V2(FCVTL2H, 3, 0)
	f.V2(FCVTLH, 4, 1)
	f.V2(FCVTL2H, 5, 1)
	for _, a := range at {
		for v := range 4 {
			f.Store(V(2+v), 0, a+16*v)
		}
	}
}

func meta(name, doc string) {
	f.Func(name, "(u, src *byte)", doc, 16)
	load(0, "u", 0)
	load(1, "src", 8)
}

func meta32() {
	meta("meta32NEON", "does what meta32Go does.")
	for p := range 4 {
		scales(p)
	}
	for p := range 4 {
		f.Op("FLDPQ.P", "32(R1), (F0, F1)")
		f.V2(SXTLB, 2, 0)
		f.V2(SXTL2B, 3, 0)
		f.V2(SXTLB, 4, 1)
		f.V2(SXTL2B, 5, 1)
		for v := range 4 {
			f.Store(V(2+v), 0, minAt+64*p+16*v)
		}
	}
	halves(dAt)
	halves(dminAt)
	f.Ret()
}

func meta16() {
	meta("meta16NEON", "does what meta16Go does.")
	f.Op("MOVD", "R1, R2")
	for p := range 8 {
		scales(p)
	}
	for p := range 8 {
		f.Op("FLDPQ.P", "32(R2), (F0, F1)")
		f.V2(SXTLB, 2, 0)
		f.V2(SXTL2B, 3, 0)
		f.V2(SXTLB, 4, 1)
		f.V2(SXTL2B, 5, 1)
		for v := range 4 {
			f.ShiftLeft16(V(2+v), V(2+v), 5)
			f.Store(V(2+v), 0, minAt+64*p+16*v)
		}
	}
	halves(dAt, dminAt)
	f.Ret()
}

func metaBlocks() {
	f.Func("metaBlocksNEON", "(u, src *byte, n int)", "does what metaBlocksGo does.", 24)
	load(0, "u", 0)
	load(1, "src", 8)
	load(2, "n", 16)
	f.Op("CBZ", "R2, done")
	f.Label("loop")
	halves(scaleAt)
	f.Op("ADD", "$64, R0, R0")
	endLoop()
}
