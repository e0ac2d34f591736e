package q8

import (
	"encoding/binary"

	"apr/quant"
	"apr/tensor"
)

// packRow puts a stored row in its lane of its panel.
func (m *Matrix) packRow(row int, src []byte) {
	f, lane := m.f, row%lanes
	for c := range chunks(m.cols) {
		dst, width := m.chunkAt(row/lanes, c)
		meta := dst[f.codeBytes(width):]
		for b := range width / f.block {
			block := src[:f.blockBytes]
			src = src[f.blockBytes:]
			f.packCodes(dst, b*f.block, lane, block)
			if f.super {
				f.packScales(meta, lane, block)
			} else {
				copy(meta[f.scaleBytes*(b*lanes+lane):][:f.scaleBytes], block)
			}
		}
	}
}

// packCodes puts the codes of a block in a lane, from column first of the chunk on.
func (f *format) packCodes(dst []byte, first, lane int, block []byte) {
	var all [chunk]byte
	codes := all[:f.block]
	f.codes(codes, block)
	dst = dst[f.codeBytes(first)+perWord*lane:]
	put := func(vector int, v uint64) { binary.LittleEndian.PutUint32(dst[vector*vecBytes:], uint32(v)) }
	switch f.bits {
	case 4:
		for p := range f.block / 8 {
			a := word(codes, 8*p)
			put(p, a|a>>28)
		}
	case 6:
		for p := range f.block / 16 {
			a, b := word(codes, 16*p), word(codes, 16*p+8)
			lowA, lowB, upA, upB := a&nibbles, b&nibbles, a>>4&(3*ones), b>>4&(3*ones)
			put(3*p, lowA|lowA>>28)
			put(3*p+1, lowB|lowB>>28)
			put(3*p+2, upA|upA>>30|upB<<4|upB>>26)
		}
	default:
		for p := range f.block / 4 {
			put(p, uint64(binary.LittleEndian.Uint32(codes[4*p:])))
		}
	}
}

// packScales puts the scales of a superblock in a lane.
func (f *format) packScales(meta []byte, lane int, block []byte) {
	d, dmin, scales, mins := f.meta(block)
	groups := chunk / f.group
	at := func(j int) int { return j/2*2*lanes + 2*lane + j%2 }
	for j := range groups {
		meta[at(j)] = byte(scales[j])
		if f.mins {
			meta[groups*lanes+at(j)] = byte(mins[j])
		}
	}
	if f.mins {
		meta = meta[groups*lanes:]
		copy(meta[groups*lanes+2*lanes+2*lane:][:2], block[dmin:])
	}
	copy(meta[groups*lanes+2*lane:][:2], block[d:])
}

// code returns the code of column k of a chunk in a lane.
func (f *format) code(data []byte, lane, k int) byte {
	v, at := k/perWord, perWord*lane+k%perWord
	switch f.bits {
	case 4:
		return data[v/2*vecBytes+at] >> (4 * (v % 2)) & 15
	case 6:
		u := v % 4
		data = data[v/4*3*vecBytes:]
		return data[u/2*vecBytes+at]>>(4*(u%2))&15 | data[2*vecBytes+at]>>(2*u)&3<<4
	}
	return data[v*vecBytes+at]
}

// DecodeRow writes columns [lo, hi) of a row to dst[0:hi-lo], with the bits that package quant gives the stored blocks.
func (m *Matrix) DecodeRow(dst []float32, row, lo, hi int) {
	f, lane := m.f, row%lanes
	for k := lo; k < hi; k++ {
		data, width := m.chunkAt(row/lanes, k/chunk)
		meta := data[f.codeBytes(width):]
		c, j := f.code(data, lane, k%chunk), k%chunk/f.group
		if f.table != nil {
			dst[k-lo] = quant.MXFP4Scale(meta[j*lanes+lane]) * (float32(f.table[c]) - float32(f.zero))
			continue
		}
		q := float32(c)
		if !f.super {
			dst[k-lo] = half(meta[2*(j*lanes+lane):]) * (q - float32(f.zero))
			continue
		}
		groups := width / f.group
		scale := func(set int) float32 {
			return float32(int8(meta[set*groups*lanes+j/2*2*lanes+2*lane+j%2]))
		}
		if f.mins {
			d, dmin := half(meta[2*groups*lanes+2*lane:]), half(meta[2*groups*lanes+2*lanes+2*lane:])
			s := d * scale(0)
			dst[k-lo] = float32(s*q) - float32(dmin*scale(1))
		} else {
			s := half(meta[groups*lanes+2*lane:]) * scale(0)
			dst[k-lo] = s * (q - 32)
		}
	}
}

// half returns the float16 at the start of b.
func half(b []byte) float32 { return tensor.F16ToF32(binary.LittleEndian.Uint16(b)) }
