//go:build emulate

package generate

import (
	"testing"

	"apr/device/cuda"
	"apr/device/cuda/emulator"
)

func TestCUDADrawsByLimits(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	drawsByLimits(t, d)
}
