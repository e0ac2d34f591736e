//go:build gpu && !emulate

package distill

import "testing"

// openEmulator does nothing: the GPU is real.
func openEmulator(*testing.T) {}
