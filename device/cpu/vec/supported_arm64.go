package vec

// supported reports whether this processor has i: every arm64 processor has NEON.
func supported(i ISA) bool { return i == Generic || i == NEON }
