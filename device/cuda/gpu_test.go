//go:build gpu

package cuda_test

import "testing"

// findDriver leaves the search for libcuda to the package.
func findDriver(testing.TB) {}

// TestTreeOfGPUs: treeOfRanks on the cards of the machine.
func TestTreeOfGPUs(t *testing.T) { treeOfRanks(t) }
