package q8

import "golang.org/x/sys/cpu"

var avx512 = &kernels{
	name: "avx512",
	super32: []tileFunc{
		nil, super32AVX5121, super32AVX5122, super32AVX5123, super32AVX5124, super32AVX5125,
	},
	super16: []tileFunc{
		nil, super16AVX5121, super16AVX5122, super16AVX5123, super16AVX5124, super16AVX5125,
	},
	blocks: []tileFunc{
		nil, blocksAVX5121, blocksAVX5122, blocksAVX5123, blocksAVX5124, blocksAVX5125,
	},
	both32:  []bothFunc{nil, super32Both1, super32Both2, super32Both3},
	both16:  []bothFunc{nil, super16Both1, super16Both2, super16Both3},
	row4x32: row32AVX5124, row6x32: row32AVX5126, row6x16: row16AVX5126,
	unpack4: unpack4AVX512, unpack6: unpack6AVX512, unpackTable: unpackTableAVX512,
	meta32: meta32AVX512, meta16: meta16AVX512, metaBlocks: metaBlocksAVX512, metaPowers: metaPowersAVX512,
	top: topAVX512, sums: sumsOfAVX2, quantize: quantizeAVX512,
}

var avx2 = &kernels{
	name:    "avx2",
	super32: []tileFunc{nil, super32AVX21}, super16: []tileFunc{nil, super16AVX21},
	blocks:  []tileFunc{nil, blocksAVX21},
	row4x32: row32AVX24, row6x32: row32AVX26, row6x16: row16AVX26,
	unpack4: unpack4AVX2, unpack6: unpack6AVX2, unpackTable: unpackTableAVX2,
	meta32: meta32AVX2, meta16: meta16AVX2, metaBlocks: metaBlocksAVX2, metaPowers: metaPowersAVX2,
	top: topAVX2, sums: sumsOfAVX2, quantize: quantizeAVX2,
}

// available lists the kernels that this processor and its operating system can run, best first.
func available() []*kernels {
	list := []*kernels{generic}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		list = append([]*kernels{avx2}, list...)
		if cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VNNI {
			list = append([]*kernels{avx512}, list...)
		}
	}
	return list
}

func sumsOfAVX2(sums *[16]int16, q *[chunk]int8) { sumsAVX2(&sums[0], &q[0]) }
