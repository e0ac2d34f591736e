package tensor_test

import (
	"fmt"

	"apr/tensor"
)

// Stored values become float32 and back; bfloat16 keeps eight bits of the mantissa.
func Example() {
	stored := make([]byte, 2*3)
	tensor.Narrow(stored, []float32{1, 0.1, -3.14159}, tensor.BF16)
	values := make([]float32, 3)
	tensor.Widen(values, stored, tensor.BF16)
	fmt.Println(values)

	info := tensor.Info{Name: "w", DType: tensor.Q4_K, Shape: []int{2, 512}}
	fmt.Println(info.Elements(), "elements in", tensor.Q4_K.RowBytes(info.Cols())*2, "bytes of", tensor.Q4_K)
	// Output:
	// [1 0.100097656 -3.140625]
	// 1024 elements in 576 bytes of q4_k
}
