package gemm

import "golang.org/x/sys/cpu"

var avx512 = &kernels{
	name: "avx512", mr: 14, nr: 32, lanes: 16, transpose: transposeAVX512, copy: copyAVX512, dot: dotAVX512,
	tile: []tileFunc{
		nil, tileAVX5121, tileAVX5122, tileAVX5123, tileAVX5124, tileAVX5125, tileAVX5126, tileAVX5127,
		tileAVX5128, tileAVX5129, tileAVX51210, tileAVX51211, tileAVX51212, tileAVX51213, tileAVX51214,
	},
}

var avx2 = &kernels{
	name: "avx2", mr: 6, nr: 16, lanes: 8, transpose: transposeAVX2, copy: copyAVX2,
	tile: []tileFunc{nil, tileAVX21, tileAVX22, tileAVX23, tileAVX24, tileAVX25, tileAVX26},
}

// available lists the kernels that this processor and its operating system can run, best first.
func available() []*kernels {
	list := []*kernels{generic}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		list = append([]*kernels{avx2}, list...)
		if cpu.X86.HasAVX512F {
			list = append([]*kernels{avx512}, list...)
		}
	}
	return list
}
