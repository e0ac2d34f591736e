//go:build gpu && !emulate

package main

import (
	"testing"

	"apr/device/cuda"
)

// heldOutTokens is how much of the held-out text is scored, in heldOutCompute: all of it.
const (
	heldOutTokens  = 1 << 30
	heldOutCompute = cuda.BF16
)

// openEmulator does nothing: the GPU is real.
func openEmulator(*testing.T) {}

// blockTokens is the length of the sequence over which a teacher in blocks is compared.
const blockTokens = 1024
