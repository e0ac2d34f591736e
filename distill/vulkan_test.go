//go:build vulkan

package distill

import (
	"cmp"
	"os"
	"testing"

	"apr/device"
	"apr/device/vulkan"
)

// TestVulkan holds the Vulkan device, on Mesa's llvmpipe, to the tolerances of the CPU, and eight steps of the
// trajectory to 10⁻⁴ of each loss.
func TestVulkan(t *testing.T) {
	testDevice = func(t *testing.T) device.Device {
		t.Helper()
		d, err := vulkan.Open(vulkan.Options{Adapter: cmp.Or(os.Getenv("APR_TEST_ADAPTER"), "llvmpipe")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	t.Cleanup(func() { testDevice = newCPU })
	steps := 8 // of 40, which a card has time for
	if os.Getenv("APR_TEST_ADAPTER") != "" {
		steps = 40
	}
	t.Run("qwen2", TestGoldenQwen2)
	t.Run("trajectory", func(t *testing.T) { goldenTrajectory(t, 1e-4, steps) })
}
