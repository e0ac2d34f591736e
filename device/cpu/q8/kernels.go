package q8

import (
	"fmt"
	"unsafe"
)

//go:generate sh -c "cd ../../../tools && go run ./avo/q8 -pkg q8 -out ../device/cpu/q8/kernels_amd64.s -stubs ../device/cpu/q8/stubs_amd64.go"
//go:generate sh -c "cd ../../../tools && go run ./neon/q8 -out ../device/cpu/q8/kernels_arm64.s -stubs ../device/cpu/q8/stubs_arm64.go"

// tileFunc adds the products of a chunk of a panel with that chunk of h rows of activations, the two halves of each side
// by side in memory, to a tile of h rows of 16 outputs without gaps; one function for each h. See superGo and blocksGo; blocks and zero are
// for the latter. u is the first byte of an unpacked, x of a rounded: assembly knows the layouts, not the types.
type tileFunc func(codes, u *byte, x *int8, c *float32, blocks, zero int)

// bothFunc is a tileFunc for two panels of a K type at once, u being the first byte of two unpacked, one behind the
// other: a broadcast of activations serves two products. Their tiles are next elements apart. A line of memory for each
// group, from ahead on, is fetched into the cache meanwhile.
type bothFunc func(u *byte, x *int8, c *float32, next int, ahead *byte)

// kernels is one implementation of the inner loops.
type kernels struct {
	name string

	super32, super16, blocks []tileFunc // by height; [0] is nil

	both32, both16 []bothFunc // by height; may be empty

	// The product of one row of activations with a panel of a K type, by bits and group, or nil: data is the panel, x all
	// chunks of the row. The same bits as unpacking and multiplying chunk by chunk.
	row4x32, row6x32, row6x16 func(data *byte, x *int8, c *float32, chunks int)

	unpack4, unpack6 func(dst, src *byte, n int)
	unpackTable      func(dst, src *byte, n int, table *byte) // unpack4, then each code is looked up
	meta32, meta16   func(u, src *byte)
	metaBlocks       func(u, src *byte, n int) // scales of float16
	metaPowers       func(u, src *byte, n int) // scales that are exponents
	top              func(x []float32) uint32
	sums             func(sums *[16]int16, q *[chunk]int8)
	quantize         func(q []int8, rest, x []float32, inv, d float32)
}

var generic = &kernels{
	name: "generic", super32: []tileFunc{nil, superGo(32)}, super16: []tileFunc{nil, superGo(16)}, blocks: []tileFunc{nil, blocksGo},
	unpack4: unpackGo4, unpack6: unpackGo6, unpackTable: unpackTableGo, meta32: meta32Go, meta16: meta16Go,
	metaBlocks: metaBlocksGo, metaPowers: metaPowersGo,
	top: topGo, sums: sumsGo, quantize: quantizeGo,
}

// Names lists the kernels that run on this machine, best first: avx512 (with VNNI), avx2, neon (with dot products), generic.
func Names() []string {
	var names []string
	for _, kn := range available() {
		names = append(names, kn.name)
	}
	return names
}

// lookUp returns the kernels of an instruction set. A processor with AVX-512 but without VNNI uses those of AVX2, whose
// results are the same; one with NEON but without its dot products uses Go.
func lookUp(name string) (*kernels, error) {
	list := available()
	for _, kn := range list {
		if kn.name == name || name == "avx512" && kn.name == "avx2" || name == "neon" && kn.name == "generic" {
			return kn, nil
		}
	}
	return nil, fmt.Errorf("q8: no kernels %q on this machine, which has %v", name, Names())
}

// tiles returns the tile functions for a format.
func (kn *kernels) tiles(f *format) []tileFunc {
	switch {
	case !f.super:
		return kn.blocks
	case f.group == 32:
		return kn.super32
	}
	return kn.super16
}

// both returns the tile functions for two panels, or none.
func (kn *kernels) both(f *format) []bothFunc {
	switch {
	case !f.super:
		return nil
	case f.group == 32:
		return kn.both32
	}
	return kn.both16
}

// row returns the function for one row of activations, or nil.
func (kn *kernels) row(f *format) func(data *byte, x *int8, c *float32, chunks int) {
	switch {
	case !f.super:
		return nil
	case f.bits == 4:
		return kn.row4x32
	case f.group == 32:
		return kn.row6x32
	}
	return kn.row6x16
}

// unpack prepares a chunk of width columns and returns its codes as bytes, which are in u or, of 8 bits, in place.
func (kn *kernels) unpack(u *unpacked, f *format, data []byte, width int) (codes *byte) {
	codes = &u.codes[0]
	switch {
	case f.table != nil:
		kn.unpackTable(codes, &data[0], width/8, &f.table[0])
	case f.bits == 4:
		kn.unpack4(codes, &data[0], width/8)
	case f.bits == 6:
		kn.unpack6(codes, &data[0], width/16)
	default:
		codes = &data[0]
	}
	meta := &data[f.codeBytes(width)]
	switch {
	case f.scaleBytes == 1:
		kn.metaPowers(&u.codes[0], meta, width/32)
	case !f.super:
		kn.metaBlocks(&u.codes[0], meta, width/32)
	case f.mins:
		kn.meta32(&u.codes[0], meta)
	default:
		kn.meta16(&u.codes[0], meta)
	}
	return codes
}

func bytesAt(p *byte, n int) []byte        { return unsafe.Slice(p, n) }
func floatsAt(p *float32, n int) []float32 { return unsafe.Slice(p, n) }
