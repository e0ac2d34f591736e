package kernel

import "apr/tensor"

const plainModule = "attention_plain"

// Of attention_plain.cu.
const (
	plainRows = 4  // own rows of a warp
	plainTile = 32 // rows of a tile
)

// plain describes the blocks for one head width: their rows and the bytes of shared memory for n of their own and two
// other tiles. Eight warps, or four where wide heads would ask for more than the 99 KiB that every device has.
func plain(d, n int) (rows, shared int) {
	ld := (d+31)/32*32 + 4
	warps := 8
	if d > 128 {
		warps = 4
	}
	rows = warps * plainRows
	return rows, 4 * ld * (2*plainTile + n*rows)
}

func plainSuffix(t tensor.DType) string {
	if t == tensor.BF16 {
		return "_bf16"
	}
	return "_f32"
}

// plainForward has one block for rows queries of a head; every one reads the keys and values it sees, so these cross
// shared memory QLen/rows times.
func plainForward(q Queue, a *attentionArgs, t tensor.DType) {
	rows, shared := plain(int(a.d), 1)
	grid := [3]int{(int(a.qLen) + rows - 1) / rows, int(a.heads), int(a.batch)}
	a.start(q, plainModule, "attention_plain"+plainSuffix(t), grid, rows/plainRows*32, shared)
}

// plainBackward computes dq with the blocks of the forward, then dk and dv with one block for rows keys of a key-value
// head, which passes over the queries of all query heads that read it.
func plainBackward(q Queue, a *attentionArgs, t tensor.DType) {
	rows, shared := plain(int(a.d), 2)
	block := rows / plainRows * 32
	grid := [3]int{(int(a.qLen) + rows - 1) / rows, int(a.heads), int(a.batch)}
	a.start(q, plainModule, "attention_plain_dq"+plainSuffix(t), grid, block, shared)
	grid = [3]int{(int(a.kLen) + rows - 1) / rows, int(a.kvHeads), int(a.batch)}
	a.start(q, plainModule, "attention_plain_dkv"+plainSuffix(t), grid, block, shared)
}
