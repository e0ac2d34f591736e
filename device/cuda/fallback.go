package cuda

import (
	"apr/device/cuda/blas"
	"apr/device/cuda/kernel"
)

func fallback(q kernel.Queue, op blas.Op, c, a, b, bias kernel.Mat, add bool, compute Compute) {
	panic("todo")
}
