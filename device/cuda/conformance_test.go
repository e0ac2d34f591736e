//go:build emulate || gpu

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/devicetest"
)

// TestConformance runs the suite of all devices in every arithmetic, on cublasLt and on the kernels of this program.
func TestConformance(t *testing.T) {
	findDriver(t)
	for _, c := range []struct {
		name string
		o    cuda.Options
	}{
		{"bf16", cuda.Options{}}, {"f32", cuda.Options{Compute: cuda.F32}},
		{"bf16 without cublasLt", cuda.Options{ForceFallbackGEMM: true}},
		{"f32 without cublasLt", cuda.Options{Compute: cuda.F32, ForceFallbackGEMM: true}},
		{"tf32", cuda.Options{Compute: cuda.TF32}},
	} {
		t.Run(c.name, func(t *testing.T) {
			devicetest.Run(t, func() device.Device { return open(t, c.o) })
		})
	}
}

// open opens a device, which the test closes.
func open(t testing.TB, o cuda.Options) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
