//go:build emulate

package main

import (
	"testing"

	"apr/device/cuda/emulator"
)

// heldOutTokens is how much of the held-out text is scored: an emulated GPU is slow.
const heldOutTokens = 513

// openEmulator makes the CUDA device find the emulator instead of a driver.
func openEmulator(t *testing.T) {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
}
