package teacher

import (
	"slices"

	"apr/tensor"
)

// rowGap keeps the rows of a chunk of logits from all beginning in the same sets of a processor's caches, which they
// would where V·4 bytes is a multiple of the page: products that walk down a column then miss at every row.
const rowGap = 16

// RowLength returns the elements from one row of a chunk to the next for a vocabulary of v ids: a multiple of 16, so
// that rows begin at 32 bytes in bfloat16 and at 64 in float32, and never one of 64.
func RowLength(v int) int { return (v+63)/64*64 + rowGap }

// productAlign divides the rows and columns that products compute: those of a vocabulary of 151,665 ids took two to
// three times as long on an H200 as those of one of 151,936.
const productAlign = 64

// ProductColumns returns how many columns of logits are computed for a vocabulary of v ids: v or, where activations are
// narrow and all heads have so many rows, the next multiple of productAlign. Nothing reads the logits of columns beyond
// v, and their gradient is 0.
func ProductColumns(act tensor.DType, v int, heads ...int) int {
	wide := (v + productAlign - 1) / productAlign * productAlign
	if act == tensor.F32 || slices.Min(heads) < wide {
		return v
	}
	return wide
}

// productRows returns how many of at most `most` rows are computed where n are wanted: where activations are narrow a
// multiple of productAlign, so that products have few shapes, of which a device keeps a plan each.
func productRows(act tensor.DType, n, most int) int {
	if act == tensor.F32 {
		return n
	}
	return max(n, min(most, (n+productAlign-1)/productAlign*productAlign))
}
