//go:build !amd64 && !arm64

package vec

// supported reports whether this processor has i.
func supported(i ISA) bool { return i == Generic }
