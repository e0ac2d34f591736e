//go:build gpu && !emulate

package main

import "testing"

// heldOutTokens is how much of the held-out text is scored: all of it.
const heldOutTokens = 1 << 30

// openEmulator does nothing: the GPU is real.
func openEmulator(*testing.T) {}
