//go:build gpu || emulate

package distill

import (
	"context"
	"path/filepath"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/teacher/cache"
)

// TestCUDAVerifyCache: a GPU gives the bytes of its own cache again, and they fit what a CPU says.
func TestCUDAVerifyCache(t *testing.T) {
	openEmulator(t)
	c := smallConfig(t, 4)
	c.ValFraction, c.StudentConfig, c.Output = 0, "", filepath.Join(t.TempDir(), "cache")
	gpu := func() (device.Device, error) { return cuda.Open(cuda.Options{Compute: cuda.BF16}) }
	on := func(open func() (device.Device, error), do func(device.Device)) {
		d, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		do(d)
	}
	on(gpu, func(d device.Device) {
		if _, err := Precompute(context.Background(), c, CacheJob{Kind: cache.Draws, Draws: 50, Entropy: true, Of: 1}, d, &quiet{}); err != nil {
			t.Fatal(err)
		}
	})
	r, err := cache.Open(c.Output)
	if err != nil {
		t.Fatal(err)
	}
	for method, open := range map[string]func() (device.Device, error){identical: gpu, goodFit: func() (device.Device, error) { return cpu.New(cpu.Options{}) }} {
		on(open, func(d device.Device) {
			out, err := VerifyCache(context.Background(), c, r, 0, d, &quiet{})
			if err != nil || out.Method != method || !out.Passed {
				t.Errorf("%s: %+v, %v", method, out, err)
			} else if out.Fit != nil {
				t.Logf("%+v", *out.Fit)
			}
		})
		contracttest.Cases(t, 1)
	}
}
