package kernel

import (
	"unsafe"

	"apr/tensor"
)

const stagedModule = "gemv_staged_sm90"

const (
	stagedWarps  = 8       // STAGED_WARPS of gemv_staged.cuh
	stagedPacks  = 2       // STAGED_PACKS
	stagedRows   = 64      // STAGED_ROWS
	stagedStatic = 5 << 10 // bytes of shared memory that the kernel declares, and more
	stagedShared = 227<<10 - stagedStatic
)

// stagedBlocks returns how many thread blocks GemvStaged takes for W on a device with `most` multiprocessors.
func stagedBlocks(w Mat, most int) int { return min(max(1, most), w.Rows) }

// GemvStagedServes reports whether GemvStaged takes these operands on a device with `multiprocessors`, of compute
// capability 9.0: all of W has room in their shared memory.
func GemvStagedServes(y, x, w Mat, multiprocessors int) bool {
	if y.Rows != 1 || x.Rows != 1 || w.Rows <= gemvWide {
		return false
	}
	if x.Type != tensor.BF16 || w.Type != tensor.BF16 || y.Type != tensor.BF16 {
		return false
	}
	rows := ceil(w.Rows, stagedBlocks(w, multiprocessors))
	return w.Cols%8 == 0 && w.Cols > 0 && w.Cols <= 32*stagedWarps*stagedPacks*8 && w.Stride == w.Cols &&
		rowsAt(x, 16) && rowsAt(w, 16) && rows <= stagedRows && 2*rows*w.Cols <= stagedShared
}

// GemvStaged is GemvPlain of one row in bfloat16 with W that no kernel changes: its rows are on their way before the
// kernel before it has ended.
//
// Bytes moved: those of W, once.
func GemvStaged(q Queue, y, x, w, bias Mat, add bool) {
	need(GemvStagedServes(y, x, w, q.Multiprocessors()), "GemvStaged", "types, shapes or alignment")
	blocks := stagedBlocks(w, q.Multiprocessors())
	q.Launch(Launch{
		Module: stagedModule, Kernel: "gemv_staged", Grid: [3]int{blocks, 1, 1}, Block: 32 * stagedWarps,
		Shared: ceil(2*ceil(w.Rows, blocks)*w.Cols, 16) * 16,
		Args:   unsafe.Pointer(newGemv(y, x, plainBlocks(w), bias, add)),
	})
}
