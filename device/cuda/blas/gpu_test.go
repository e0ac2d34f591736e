//go:build gpu

package blas

import (
	"testing"
	"time"

	"apr/tensor"
)

const workspaceBytes = 32 << 20

// findDriver leaves the search for libcuda to the package.
func findDriver(testing.TB) string { return "" }

// sustainedSweep is the products of a step that distils a model of 7B into one of 0.5B.
var sustainedSweep = sweep{
	shapes: func() []Shape {
		bias := trained(NT, 8192, 4608, 3584)
		bias.Bias = true
		logits := trained(NT, 512, 151936, 3584)
		logits.Out = tensor.F32
		padded, head := trained(NN, 2048, 896, 151936), trained(TN, 151936, 896, 2048)
		padded.LDA, head.LDA = 151952, 151952 // logits with rows of whole cache lines
		return []Shape{
			trained(NT, 8192, 37888, 3584), trained(NT, 8192, 3584, 18944), bias, trained(NT, 8192, 3584, 3584), logits,
			trained(NT, 4096, 9728, 896), trained(NT, 4096, 896, 4864),
			trained(NN, 4096, 896, 9728), trained(NN, 4096, 4864, 896), padded,
			trained(TN, 9728, 896, 4096), trained(TN, 896, 4864, 4096), head,
		}
	}(),
	ask: 24, proposed: 75 * time.Second, changed: 55 * time.Second, lead: 50 * time.Millisecond, timed: 200 * time.Millisecond,
}
