//go:build gpu

package cuda_test

import (
	"testing"

	"apr/device/cuda"
)

// TestFortyGiB: one allocation of 40 GiB, with the class of the device as it is and MANAGED_MEMORY unset.
func TestFortyGiB(t *testing.T) {
	t.Setenv(cuda.ManagedVariable, "")
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	takes(t, d, 40<<10)
}
