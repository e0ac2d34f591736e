//go:build gpu && !emulate

package model_test

import "testing"

// openEmulator does nothing: a driver is there.
func openEmulator(*testing.T) {}
