package vec

import "golang.org/x/sys/cpu"

// supported reports whether this processor, and the operating system's register saving, has i.
func supported(i ISA) bool {
	avx2 := cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI1 && cpu.X86.HasBMI2 && cpu.X86.HasF16C
	switch i {
	case AVX512:
		return avx2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW
	case AVX2:
		return avx2
	}
	return i == Generic
}
