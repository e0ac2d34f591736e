package q8

import (
	"encoding/binary"

	"apr/quant"
	"apr/tensor"
)

// format says how blocks of one type are stored and packed.
type format struct {
	block, blockBytes int // as stored: elements and bytes
	bits              int // of a packed code: 4, 6 or 8
	group             int // columns that share a scale
	super             bool
	mins              bool      // super: the type has minima of its own; else they are 32 times the scale
	zero              int32     // not super: the code that stands for 0
	scaleBytes        int       // not super: of a scale; 2: a float16, 1: the exponent of a power of two
	table             *[16]byte // what codes of 4 bits are looked up in; nil: they are numbers

	// codes writes the codes of a stored block, a byte each.
	codes func(codes, block []byte)
	// meta returns the offsets of d and dmin in a stored block, and its scales and minima.
	meta func(b []byte) (d, dmin int, scales, mins [16]int8)
}

// formats are the types that can be packed. The codes of Q5_K and Q5_0 have 5 bits and are packed as 6.
var formats = map[tensor.DType]*format{
	tensor.Q4_K:  {block: 256, blockBytes: 144, bits: 4, group: 32, super: true, mins: true, codes: codesQ4K, meta: metaQ4K},
	tensor.Q5_K:  {block: 256, blockBytes: 176, bits: 6, group: 32, super: true, mins: true, codes: codesQ5K, meta: metaQ4K},
	tensor.Q6_K:  {block: 256, blockBytes: 210, bits: 6, group: 16, super: true, codes: codesQ6K, meta: metaQ6K},
	tensor.Q8_0:  {block: 32, blockBytes: 34, bits: 8, group: 32, zero: 128, scaleBytes: 2, codes: codesQ80},
	tensor.Q5_0:  {block: 32, blockBytes: 22, bits: 6, group: 32, zero: 16, scaleBytes: 2, codes: codesQ50},
	tensor.Q4_0:  {block: 32, blockBytes: 18, bits: 4, group: 32, zero: 8, scaleBytes: 2, codes: codesQ40},
	tensor.MXFP4: {block: 32, blockBytes: 17, bits: 4, group: 32, zero: mxfp4Zero, scaleBytes: 1, table: &mxfp4Codes, codes: codesMXFP4},
}

// codeBytes returns the bytes of the codes of a chunk of width columns.
func (f *format) codeBytes(width int) int { return width * lanes * f.bits / 8 }

// chunkBytes returns the bytes of a chunk of width columns, whole cache lines.
func (f *format) chunkBytes(width int) int {
	n := f.codeBytes(width)
	switch {
	case !f.super:
		n += width / f.group * lanes * f.scaleBytes
	case f.mins:
		n += 2*width/f.group*lanes + 2*lanes*2
	default:
		n += width/f.group*lanes + lanes*2
	}
	return (n + 63) &^ 63
}

// panelBytes returns the bytes of a panel of rows of cols columns.
func (f *format) panelBytes(cols int) int {
	return cols/chunk*f.chunkBytes(chunk) + f.chunkBytes(cols%chunk)
}

func word(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

const (
	ones    = 0x0101010101010101
	nibbles = 0x0f * ones
)

// eights fills codes with eight at a time, those of columns 8i … 8i+7 from f(i).
func eights(codes []byte, f func(i int) uint64) {
	for i := range len(codes) / 8 {
		binary.LittleEndian.PutUint64(codes[8*i:], f(i))
	}
}

// codesQ4K: group j = i/4 has the low (even j) or high nibbles of 32 bytes; see package quant for the stored forms.
func codesQ4K(codes, b []byte) {
	eights(codes, func(i int) uint64 { return word(b, 16+32*(i/8)+8*(i%4)) >> (i & 4) & nibbles })
}

func codesQ5K(codes, b []byte) {
	eights(codes, func(i int) uint64 {
		fifth := word(b, 16+8*(i%4)) >> (i / 4) & ones
		return word(b, 48+32*(i/8)+8*(i%4))>>(i&4)&nibbles | fifth<<4
	})
}

func codesQ6K(codes, b []byte) {
	eights(codes, func(i int) uint64 {
		h, k := i/16, i/4%4
		low := word(b, 64*h+32*(k&1)+8*(i%4)) >> (4 * (k >> 1)) & nibbles
		return low | word(b, 128+32*h+8*(i%4))>>(2*k)&(3*ones)<<4
	})
}

func codesQ80(codes, b []byte) {
	eights(codes, func(i int) uint64 { return word(b, 2+8*i) ^ 0x80*ones })
}

func codesQ40(codes, b []byte) {
	eights(codes, func(i int) uint64 { return word(b, 2+8*(i%2)) >> (4 * (i / 2)) & nibbles })
}

func codesMXFP4(codes, b []byte) {
	eights(codes, func(i int) uint64 { return word(b, 1+8*(i%2)) >> (4 * (i / 2)) & nibbles })
}

// mxfp4Zero is added to the doubled floats of MXFP4, so that none is negative.
const mxfp4Zero = 12

// mxfp4Codes are they.
var mxfp4Codes = func() (t [16]byte) {
	for c := range t {
		t[c] = byte(quant.MXFP4Value(c) + mxfp4Zero)
	}
	return t
}()

func codesQ50(codes, b []byte) {
	eights(codes, func(i int) uint64 {
		bits := uint64(b[2+i]) * ones & 0x8040201008040201 // bit l in byte l
		fifth := (bits + 0x7f*ones) >> 7 & ones
		return word(b, 6+8*(i%2))>>(4*(i/2))&nibbles | fifth<<4
	})
}

// metaQ4K: the eight scales and minima have 6 bits; those of groups 4–7 are in two pieces.
func metaQ4K(b []byte) (d, dmin int, scales, mins [16]int8) {
	s := b[4:16]
	for j := range 4 {
		scales[j], mins[j] = int8(s[j]&63), int8(s[j+4]&63)
		scales[j+4] = int8(s[j+8]&15 | s[j]>>6<<4)
		mins[j+4] = int8(s[j+8]>>4 | s[j+4]>>6<<4)
	}
	return 0, 2, scales, mins
}

func metaQ6K(b []byte) (d, dmin int, scales, mins [16]int8) {
	for j := range scales {
		scales[j] = int8(b[192+j])
	}
	return 208, 0, scales, mins
}
