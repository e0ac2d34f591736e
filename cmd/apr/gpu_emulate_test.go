//go:build emulate

package main

import (
	"testing"

	"apr/device/cuda/emulator"
)

// TestEmulatedScripts runs the scripts of testdata/emulate, in which the CUDA driver is the emulator. $DRIVER is its
// folder.
func TestEmulatedScripts(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	runScripts(t, "emulate", map[string]string{"APR_CUDA_LIB_DIR": dir, "DRIVER": dir})
}
