package cpu_test

import (
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/cpu/vec"
	"apr/device/devicetest"
	"apr/internal/contracttest"
)

// open returns a device, closed when the test ends.
func open(t testing.TB, o cpu.Options) *cpu.Device {
	t.Helper()
	d, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestConformance(t *testing.T) {
	for _, isa := range vec.Available() {
		t.Run(isa.String(), func(t *testing.T) {
			contracttest.Cases(t, 1)
			devicetest.Run(t, func() device.Device { return open(t, cpu.Options{ISA: isa.String()}) })
		})
	}
}
