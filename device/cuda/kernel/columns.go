package kernel

import (
	"fmt"
	"unsafe"
)

const columnsModule = "columns"

// columnSumArgs is struct ColumnSumArgs of columns.cu.
type columnSumArgs struct {
	sum, part    uint64
	groups, cols uint32
}

// biasGradArgs is struct BiasGradArgs of columns.cu.
type biasGradArgs struct {
	dy, part             uint64
	stride               int64
	rows, cols, perGroup uint32
}

// BiasGrad adds columns: dbias[c] += Σ_r dy[r,c], dy [n,out] bfloat16 or float32, dbias [1,out] float32. Sums are float32,
// over groups of rows and then over the groups, in an order that depends on the shape alone.
//
// Bytes moved: those of dy.
func BiasGrad(q Queue, dbias, dy Mat) {
	if dy.Rows == 0 || dy.Cols == 0 {
		return
	}
	pack := packWidth(dy.Cols, dy)
	blocks := ceil(dy.Cols, 32*pack)
	groups := max(1, min(ceil(1024, blocks), ceil(dy.Rows, 32)))
	per := ceil(dy.Rows, groups)
	groups = ceil(dy.Rows, per)
	part := q.Scratch(4 * groups * dy.Cols)
	q.Launch(Launch{
		Module: columnsModule, Kernel: fmt.Sprintf("bias_grad_%s_%d", typeName(dy.Type), pack),
		Grid: [3]int{blocks, groups, 1}, Block: 256,
		Args: unsafe.Pointer(&biasGradArgs{dy.Ptr, part, int64(dy.Stride), uint32(dy.Rows), uint32(dy.Cols), uint32(per)}),
	})
	columnSum(q, dbias, part, groups)
}

// columnSum adds the rows of part [groups, cols], float32 without gaps, to sum [1, cols].
func columnSum(q Queue, sum Mat, part uint64, groups int) {
	a := &columnSumArgs{sum.Ptr, part, uint32(groups), uint32(sum.Cols)}
	launch(q, columnsModule, "column_sum", sum.Cols, 32, 256, unsafe.Pointer(a))
}

// ceil returns ⌈n/d⌉.
func ceil(n, d int) int { return (n + d - 1) / d }
