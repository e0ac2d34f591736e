//go:build emulate

package main

import (
	"testing"

	"apr/device/cuda"
	"apr/device/cuda/emulator"
)

// heldOutTokens is how much of the held-out text is scored, in heldOutCompute: an emulated GPU is slow, and over few
// tokens the rounding of bfloat16 does not average out.
const (
	heldOutTokens  = 1025
	heldOutCompute = cuda.F32
)

// openEmulator makes the CUDA device find the emulator instead of a driver.
func openEmulator(t *testing.T) {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
}

// blockTokens is the length of the sequence over which a teacher in blocks is compared.
const blockTokens = 48
