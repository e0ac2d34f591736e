//go:build backward

package teacher_test

import (
	"testing"

	"apr/teacher"
)

// TestBackwardDoesNotCompile is the claim that this file does not compile: a teacher has nothing to go back through.
func TestBackwardDoesNotCompile(t *testing.T) {
	(&teacher.Resident{}).Backward(nil)
}
