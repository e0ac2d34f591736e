//go:build emulate

package emulator_test

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"apr/device/cuda/emulator"
)

// A block of 64 threads adds the numbers 1 to 64.
func Example() {
	m, err := emulator.Open("testdata/words.cu")
	if err != nil {
		fmt.Println(err)
		return
	}
	in, values := m.Alloc(64 * 4)
	for i := range 64 {
		binary.LittleEndian.PutUint32(values[4*i:], uint32(i+1))
	}
	out, sums := m.Alloc(64 * 4)
	args := &struct {
		out, in uint64
		n       int64
	}{out, in, 1}
	if err := m.Run("words", "test_block_sum", [3]int{1, 1, 1}, 64, 0, unsafe.Pointer(args)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*(*float32)(unsafe.Pointer(&sums[0])))
	// Output: 2080
}
