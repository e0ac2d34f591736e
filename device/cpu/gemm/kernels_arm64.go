package gemm

// neon has the tiles of AVX2 and its order of sums: the results have the same bits.
var neon = &kernels{
	name: "neon", mr: 6, nr: 16, lanes: 8, transpose: transposeNEON, copy: copyNEON,
	tile: []tileFunc{nil, tileNEON1, tileNEON2, tileNEON3, tileNEON4, tileNEON5, tileNEON6},
}

// available lists the kernels that run here, best first: every arm64 processor has NEON.
func available() []*kernels { return []*kernels{neon, generic} }
