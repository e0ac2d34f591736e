package gemm_test

import (
	"fmt"

	"apr/device/cpu/gemm"
	"apr/device/cpu/par"
)

// A linear layer y = x·Wᵀ + b for two tokens, three inputs and two outputs.
func Example() {
	pool := par.New(2)
	defer pool.Close()
	x := []float32{1, 2, 3, 4, 5, 6}
	w := []float32{1, 0, 0, 0, 1, 1}
	y := make([]float32, 4)
	gemm.New(pool).NT(2, 2, 3, x, 3, w, 3, []float32{10, 20}, y, 2, false)
	fmt.Println(y)
	// Output: [11 25 14 31]
}
