package quant

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"apr/internal/fault"
	"apr/tensor"
)

// QuantizeRows encodes the rows×cols matrix src, row-major, as blocks of type d into dst, on all processors.
// The bytes are those of [Quantize] on each row.
//
// Rows that do not fill whole blocks are a fault of kind Invalid (E-QUANT-004): their two layouts cannot be told apart
// safely. A value that cannot be quantised is the fault of Quantize, placed at "row 3, column 5"; of several the first
// is reported, and dst is not to be used. QuantizeRows panics if len(src) is not rows·cols or len(dst) does not fit.
func QuantizeRows(dst []byte, src []float32, rows, cols int, d tensor.DType) error {
	if !CanQuantize(d) {
		panic("quant: cannot quantise to " + d.String())
	}
	if cols%d.BlockLen() != 0 {
		return fault.New(fault.Invalid, "rows of %d columns do not fill blocks of %d", cols, d.BlockLen()).
			WithHint("keep this matrix in bf16").WithID("E-QUANT-004")
	}
	size, ok := MatrixLen(rows, cols, RowPadded, d)
	if !ok || len(src) != rows*cols || int64(len(dst)) != size {
		panic("quant: matrix size and buffer lengths differ")
	}
	if i := firstUnusable(src); i >= 0 {
		return unusable(src[i]).At("row %d, column %d", i/cols, i%cols)
	}
	eachRow(rows, func(r int) {
		n, bytes := d.BlockLen(), d.BlockBytes()
		for b := r * cols / n; b < (r+1)*cols/n; b++ {
			encodeBlock(dst[b*bytes:(b+1)*bytes], src[b*n:(b+1)*n], d)
		}
	})
	return nil
}

// RowRMSE sets rmse[r] to the root mean square error of row r, √(1/cols Σ(x̂−x)²) in float64, where x̂ are the decoded
// blocks of QuantizeRows. It panics if lengths do not fit len(rmse) rows of cols columns; rows must fill their blocks.
func RowRMSE(rmse []float64, src []float32, blocks []byte, cols int, d tensor.DType) {
	rows := len(rmse)
	size, ok := MatrixLen(rows, cols, RowPadded, d)
	if !ok || cols%d.BlockLen() != 0 || len(src) != rows*cols || int64(len(blocks)) != size {
		panic("quant: matrix size and buffer lengths differ")
	}
	eachRow(rows, func(r int) {
		var decoded [superblock]float32
		sum := 0.0
		for c := 0; c < cols; c += superblock {
			x := src[r*cols+c : r*cols+min(c+superblock, cols)]
			y := decoded[:len(x)]
			DequantizeRange(y, blocks, r*cols+c, d)
			for i, v := range x {
				e := float64(y[i]) - float64(v)
				sum += float64(e * e)
			}
		}
		rmse[r] = math.Sqrt(sum / float64(max(cols, 1)))
	})
}

// eachRow calls work for every row, on as many goroutines as Go may run at once, and waits.
func eachRow(rows int, work func(row int)) {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(rows, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for {
				r := int(next.Add(1)) - 1
				if r >= rows {
					return
				}
				work(r)
			}
		})
	}
	wait.Wait()
}
