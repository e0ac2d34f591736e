package q8_test

import (
	"fmt"

	"apr/device/cpu/par"
	"apr/device/cpu/q8"
	"apr/quant"
	"apr/tensor"
)

// A matrix of one output that adds up 32 activations, which all are 1.
func Example() {
	pool := par.New(2)
	defer pool.Close()
	row := make([]float32, 32)
	for i := range row {
		row[i] = 1
	}
	blocks := make([]byte, tensor.Q8_0.RowBytes(len(row)))
	if err := quant.Quantize(blocks, row, tensor.Q8_0); err != nil {
		fmt.Println(err)
		return
	}
	w, err := q8.Pack(new(q8.Memory), pool, tensor.Q8_0, 1, len(row), func(dst []byte, lo, hi int) error {
		copy(dst, blocks)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	y := make([]float32, 1)
	q8.New(pool).Multiply([]*q8.Matrix{w}, 1, 1, row, len(row), nil, y, 1, false)
	fmt.Printf("%.2f\n", y[0])
	// Output: 32.00
}
