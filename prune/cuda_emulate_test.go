//go:build emulate

package prune

import (
	"testing"

	"apr/device/cuda/emulator"
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
