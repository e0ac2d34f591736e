package q8

import "golang.org/x/sys/cpu"

// neon needs the instructions of dot products (FEAT_DotProd). Activations are rounded by Go: once for all outputs.
var neon = &kernels{
	name:    "neon",
	super32: []tileFunc{nil, super32NEON}, super16: []tileFunc{nil, super16NEON}, blocks: []tileFunc{nil, blocksNEON},
	unpack4: unpack4NEON, unpack6: unpack6NEON, unpackTable: unpackTableNEON,
	meta32: meta32NEON, meta16: meta16NEON, metaBlocks: metaBlocksNEON, metaPowers: metaPowersGo,
	top: topGo, sums: sumsGo, quantize: quantizeGo,
}

// available lists the kernels that this processor can run, best first.
func available() []*kernels {
	if cpu.ARM64.HasASIMDDP {
		return []*kernels{neon, generic}
	}
	return []*kernels{generic}
}
