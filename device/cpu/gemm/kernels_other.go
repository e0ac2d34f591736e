//go:build !amd64 && !arm64

package gemm

// available lists the kernels that run everywhere.
func available() []*kernels { return []*kernels{generic} }
