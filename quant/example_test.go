package quant_test

import (
	"fmt"

	"apr/quant"
	"apr/tensor"
)

func Example() {
	row := make([]float32, 256)
	for i := range row {
		row[i] = float32(i-128) / 128
	}
	blocks := make([]byte, tensor.Q4_K.RowBytes(len(row)))
	if err := quant.Quantize(blocks, row, tensor.Q4_K); err != nil {
		fmt.Println(err)
		return
	}
	part := make([]float32, 32) // elements 64 to 95 only
	quant.DequantizeRange(part, blocks, 64, tensor.Q4_K)
	fmt.Printf("%d bytes; element 64 was %.2f and is %.2f\n", len(blocks), row[64], part[0])
	// Output: 144 bytes; element 64 was -0.50 and is -0.50
}
