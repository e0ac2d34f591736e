package dry_test

import (
	"testing"

	"apr/device"
	"apr/device/devicetest"
	"apr/device/dry"
	"apr/tensor"
)

// A dry device accepts and refuses what every device does, whatever type of activations it stands for.
func TestConformanceOfRefusals(t *testing.T) {
	for _, act := range []tensor.DType{tensor.F32, tensor.BF16} {
		t.Run(act.String(), func(t *testing.T) {
			devicetest.Refuse(t, func() device.Device {
				return dry.New(dry.Target{Info: device.Info{Kind: "dry", Activations: act}, Matrices: act})
			})
		})
	}
}
