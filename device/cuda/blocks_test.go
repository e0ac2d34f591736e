//go:build emulate || gpu

package cuda_test

import (
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/devicetest"
)

// keeping is a device that keeps every matrix in a form.
type keeping struct {
	*cuda.Device
	form device.Form
}

func (k keeping) Weight(spec device.WeightSpec) (device.Weight, error) {
	spec.Form = k.form
	return k.Device.Weight(spec)
}

// arranging is a device that keeps every matrix in blocks, in tiles where it has them.
type arranging struct{ keeping }

func (a arranging) Weight(spec device.WeightSpec) (device.Weight, error) {
	w, err := a.keeping.Weight(spec)
	if err == nil {
		a.NewStream().(device.Arranger).Arrange(2, w)
	}
	return w, err
}

// TestConformanceInTiles runs the suite of all devices with matrices in tiles, on a newer GPU, whose kernels are others
// where an operation has a choice.
func TestConformanceInTiles(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	devicetest.Part{Of: func(x devicetest.Case) bool { return !chooseNothing(x) }}.Run(t, func() device.Device {
		return arranging{keeping{open(t, cuda.Options{}), device.Form{Blocks: true}}}
	})
}

// TestConformanceInBlocks runs the cases of weights with matrices that stay in blocks.
func TestConformanceInBlocks(t *testing.T) {
	findDriver(t)
	for _, c := range []struct {
		name string
		o    cuda.Options
	}{
		{"bf16", cuda.Options{}}, {"f32", cuda.Options{Compute: cuda.F32}},
		{"bf16 without cublasLt", cuda.Options{ForceFallbackGEMM: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			devicetest.RunWeights(t, func() device.Device { return keeping{open(t, c.o), device.Form{Blocks: true}} })
		})
	}
}
