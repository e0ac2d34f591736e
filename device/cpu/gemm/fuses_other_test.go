//go:build !arm64

package gemm

const goFuses = false // on amd64; elsewhere there is no assembly to compare with
