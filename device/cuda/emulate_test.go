//go:build emulate && !gpu

package cuda_test

import (
	"testing"

	"apr/device/cuda/emulator"
)

// findDriver makes the emulator the only driver that is found.
func findDriver(t testing.TB) {
	t.Helper()
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
}

// TestTreeOfRanks: treeOfRanks on up to 8 devices. FT-RANKS-021 claims this count, which few machines have as cards, so
// the contract's check is for the emulator alone.
func TestTreeOfRanks(t *testing.T) { treeOfRanks(t) }
