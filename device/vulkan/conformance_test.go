//go:build vulkan

package vulkan

import (
	"cmp"
	"os"
	"testing"

	"apr/device"
	"apr/device/devicetest"
)

// software is Mesa's llvmpipe, on which the tests run unless APR_TEST_ADAPTER names another adapter.
const software = "llvmpipe"

// open opens the adapter of the tests; a machine without it fails.
func open(t testing.TB, o Options) *Device {
	t.Helper()
	o.Adapter = cmp.Or(os.Getenv("APR_TEST_ADAPTER"), software)
	d, err := Open(o)
	if err != nil {
		t.Fatalf("these tests need %s (Debian: apt-get install mesa-vulkan-drivers libvulkan1): %v", software, err)
	}
	return d
}

func TestConformance(t *testing.T) {
	devicetest.Run(t, func() device.Device { return open(t, Options{}) })
}
