//go:build !amd64 && !arm64

package q8

// available lists the kernels that run everywhere.
func available() []*kernels { return []*kernels{generic} }
