//go:build gpu || emulate

package model_test

import (
	"testing"

	"apr/device/cuda"
)

// Adapters on a GPU: in float32 with the tolerances of the CPU, and in both types the base's bits before the first step.
func TestCUDAAdapters(t *testing.T) {
	onCUDA(t, cuda.F32)
	t.Run("families", TestAdaptersOfFamilies)
	t.Run("dropout", TestAdapterDropout)
	t.Run("step 0", TestStepZeroIsTheBase)
	onCUDA(t, cuda.BF16)
	t.Run("step 0 in bfloat16", TestStepZeroIsTheBase)
}
