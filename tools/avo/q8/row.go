package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// single is the product of one row of activations with a panel of a K type, for AVX-512: it unpacks codes in registers,
// so that nothing is written but 16 outputs, and reads weights at the speed of memory.
type single struct {
	isa
	bits, group int
	mins        bool // stored; else 32 times the scales
}

// registers of a single row; halves of the row are side by side.
var (
	totals = [2]reg.VecPhysical{reg.Z0, reg.Z1} // of a chunk
	lows   = [2]reg.VecPhysical{reg.Z2, reg.Z3} // Σ min·Σq
	groups = [2]reg.VecPhysical{reg.Z4, reg.Z5} // of a group
	pair   = reg.Z6                             // scales of two groups
	scales = [2]reg.VecPhysical{reg.Z7, reg.Z8}
	minima = reg.Z9
	out    = reg.Z10
	low    = reg.Z11 // masks
	upper  = reg.Z12
	packed = [3]reg.VecPhysical{reg.Z13, reg.Z14, reg.Z15}
	codes4 = [4]reg.VecPhysical{reg.Z16, reg.Z17, reg.Z18, reg.Z19}
	steps  = reg.Z24
	spare  = [4]reg.VecPhysical{reg.Z20, reg.Z21, reg.Z22, reg.Z23}
)

// ahead is how many bytes ahead of use weights are fetched: the latency of memory at its full speed.
const ahead = 6144

func (s single) row() {
	name := fmt.Sprintf("row%d%s%d", s.group, s.name, s.bits)
	s.function(name, "func(data *byte, x *int8, c *float32, chunks int)",
		fmt.Sprintf("adds chunks of a panel with %d-bit codes to one row, as unpacking and superGo(%d) of each do.", s.bits, s.group))
	data, x, c, n := pointer("data"), pointer("x"), pointer("c"), pointer("chunks")
	s.bytesOf(0x0f, low)
	s.bytesOf(0x30, upper)
	s.finer(steps)
	VMOVUPS(operand.Mem{Base: c}, out)
	meta, codes, q, sums, left := GP64(), GP64(), GP64(), GP64(), GP64()
	codeBytes := 256 * lanes * s.bits / 8
	Label("chunk")
	MOVQ(data, codes)
	LEAQ(operand.Mem{Base: data, Disp: codeBytes}, meta)
	MOVQ(x, q)
	LEAQ(operand.Mem{Base: x, Disp: s.sumsAt()}, sums)
	for half := range 2 {
		s.zero(totals[half])
		s.zero(lows[half])
	}
	MOVQ(operand.U32(256/s.group/2), left)
	Label("pair")
	s.scalesOf(meta, sums)
	for j := range 2 {
		s.oneGroup(codes, q, j)
		for half := range 2 {
			VPMULLD(scales[j], groups[half], groups[half])
			VPADDD(groups[half], totals[half], totals[half])
		}
	}
	ADDQ(operand.U32(2*s.group*lanes*s.bits/8), codes)
	ADDQ(operand.U32(2*s.group), q)
	ADDQ(operand.U32(32), meta)
	ADDQ(operand.U32(4), sums)
	DECQ(left)
	JNE(operand.LabelRef("pair"))
	if s.mins {
		ADDQ(operand.U32(128), meta) // meta stands behind the minima
	}
	s.finishRow(meta, x)
	ADDQ(operand.U32(s.chunkBytes(codeBytes)), data)
	ADDQ(operand.U32(2*rowBytes), x)
	DECQ(n)
	JNE(operand.LabelRef("chunk"))
	VMOVUPS(out, operand.Mem{Base: c})
	VZEROUPPER()
	RET()
}

func (s single) sumsAt() int {
	if s.group == 32 {
		return pairsAt
	}
	return sumsAt
}

// chunkBytes is that of the package's format.
func (s single) chunkBytes(codeBytes int) int {
	n := codeBytes + 256/s.group*lanes + 2*lanes
	if s.mins {
		n = codeBytes + 2*256/s.group*lanes + 4*lanes
	}
	return (n + 63) &^ 63
}

// scalesOf loads the scales of two groups and adds their minima.
func (s single) scalesOf(meta, sums reg.GPVirtual) {
	VPMOVSXBW(operand.Mem{Base: meta}, pair)
	PREFETCHT0(operand.Mem{Base: meta, Disp: ahead})
	VPSLLD(operand.U8(16), pair, scales[0])
	VPSRAD(operand.U8(16), scales[0], scales[0])
	VPSRAD(operand.U8(16), pair, scales[1])
	if s.mins {
		VPMOVSXBW(operand.Mem{Base: meta, Disp: 256 / s.group * lanes}, minima)
	} else {
		VPSLLW(operand.U8(5), pair, minima)
	}
	for half := range 2 {
		accumulate("VPDPWSSD", operand.Mem{Base: sums, Disp: half * rowBytes}, minima, lows[half])
	}
}

// oneGroup sets the group sums of group j of a pair.
func (s single) oneGroup(codes, q reg.GPVirtual, j int) {
	for half := range 2 {
		s.zero(groups[half])
	}
	vectors := s.group / 4
	for v := 0; v < vectors; {
		at := (j*vectors + v) * vecBytes * s.bits / 8
		unpacked := s.unpackCodes(codes, at)
		for _, w := range unpacked {
			for half := range 2 {
				accumulate("VPDPBUSD", operand.Mem{Base: q, Disp: half*rowBytes + j*s.group + 4*v}, w, groups[half])
			}
			v++
		}
	}
}

// unpackCodes returns the next two vectors of 4-bit codes, or four of 6 bits.
func (s single) unpackCodes(codes reg.GPVirtual, at int) []reg.VecPhysical {
	load := func(i int) {
		VMOVDQU32(operand.Mem{Base: codes, Disp: at + i*vecBytes}, packed[i])
		PREFETCHT0(operand.Mem{Base: codes, Disp: at + i*vecBytes + ahead})
	}
	nibbles := func(i int) {
		VPANDD(low, packed[i], codes4[2*i])
		VPSRLW(operand.U8(4), packed[i], codes4[2*i+1])
		VPANDD(low, codes4[2*i+1], codes4[2*i+1])
	}
	load(0)
	nibbles(0)
	if s.bits == 4 {
		return codes4[:2]
	}
	load(1)
	nibbles(1)
	load(2)
	VPSLLW(operand.U8(4), packed[2], spare[0])
	VPSLLW(operand.U8(2), packed[2], spare[1])
	VPSRLW(operand.U8(2), packed[2], spare[3])
	for u, up := range []reg.VecPhysical{spare[0], spare[1], packed[2], spare[3]} {
		VPTERNLOGD(operand.U8(0xf8), upper, up, codes4[u]) // code | up & mask
	}
	return codes4[:]
}

// finishRow joins the halves, scales the sums of a chunk and adds them to the outputs.
func (s single) finishRow(meta, x reg.GPVirtual) {
	d, dmin := spare[0], spare[1]
	VCVTPH2PS(operand.Mem{Base: meta}, d)
	if s.mins {
		VCVTPH2PS(operand.Mem{Base: meta, Disp: 32}, dmin)
	} else {
		dmin = d
	}
	xd, t := spare[2], spare[3]
	s.join(steps, totals[0], totals[1])
	s.join(steps, lows[0], lows[1])
	VBROADCASTSS(operand.Mem{Base: x, Disp: rowBytes + rowDAt}, xd)
	VMULPS(d, xd, t)
	VMULPS(totals[0], t, totals[0])
	VMULPS(dmin, xd, t)
	VMULPS(lows[0], t, lows[0])
	VSUBPS(lows[0], totals[0], totals[0])
	VADDPS(totals[0], out, out)
}
