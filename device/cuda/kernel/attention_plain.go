package kernel

import "apr/tensor"

const (
	plainModule   = "attention_plain"
	limitedModule = "attention_limited"
)

// Of attention_plain.cuh.
const (
	plainRows = 4  // own rows of a warp
	plainTile = 32 // rows of a tile
)

// plain describes the blocks for one head width: their rows and the bytes of shared memory for n of their own and two
// other tiles, or one with heads of more than 256 columns. Eight warps, or fewer where wide heads would ask for more than the
// 99 KiB that every device has.
func plain(d, n int) (rows, shared int) {
	ld := (d+31)/32*32 + 4
	warps, tiles := 8, 2
	switch {
	case d > 256:
		warps, tiles = 2, 1
	case d > 128:
		warps = 4
	}
	rows = warps * plainRows
	return rows, 4 * ld * (tiles*plainTile + n*rows)
}

// plainKernels returns a module, what the names of its kernels begin with, and how they end.
func plainKernels(d int32, t tensor.DType, limited bool) (module, name, suffix string) {
	switch {
	case d > 256:
		return limitedModule, limitedModule + "_wide", plainSuffix(t)
	case limited:
		return limitedModule, limitedModule, plainSuffix(t)
	}
	return plainModule, plainModule, plainSuffix(t)
}

func plainSuffix(t tensor.DType) string {
	if t == tensor.BF16 {
		return "_bf16"
	}
	return "_f32"
}

// plainForward has one thread block for rows queries of a head; every one reads the keys and values it sees, so these
// cross shared memory QLen/rows times.
func plainForward(q Queue, a *attentionArgs, t tensor.DType, limited bool) {
	rows, shared := plain(int(a.d), 1)
	grid := [3]int{(int(a.qLen) + rows - 1) / rows, int(a.heads), int(a.batch)}
	module, name, suffix := plainKernels(a.d, t, limited)
	a.start(q, module, name+suffix, grid, rows/plainRows*32, shared)
}

// plainBackward computes dq with the blocks of the forward, then dk and dv with one thread block for rows keys of a
// key-value head, which passes over the queries of all query heads that read it.
func plainBackward(q Queue, a *attentionArgs, t tensor.DType, limited bool) {
	rows, shared := plain(int(a.d), 2)
	block := rows / plainRows * 32
	grid := [3]int{(int(a.qLen) + rows - 1) / rows, int(a.heads), int(a.batch)}
	module, name, suffix := plainKernels(a.d, t, limited)
	a.start(q, module, name+"_dq"+suffix, grid, block, shared)
	grid = [3]int{(int(a.kLen) + rows - 1) / rows, int(a.kvHeads), int(a.batch)}
	a.start(q, module, name+"_dkv"+suffix, grid, block, shared)
}
