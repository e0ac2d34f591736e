//go:build emulate && !gpu

package main

import (
	"testing"

	"apr/device/cuda/emulator"
)

// findDriver makes the emulator the only driver that is found.
func findDriver(t testing.TB) {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
}
