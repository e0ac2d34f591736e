//go:build vulkan

package model_test

import (
	"cmp"
	"os"
	"testing"

	"apr/device"
	"apr/device/vulkan"
)

// TestVulkanFamilies: the goldens of all families that the Vulkan device computes have the tolerances of the CPU, on
// Mesa's llvmpipe; the others are refused by name.
func TestVulkanFamilies(t *testing.T) {
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
	t.Run("forward", TestFamiliesForward)
	t.Run("backward", TestFamiliesBackward)
	t.Run("greedy", TestFamiliesGreedy)
}
