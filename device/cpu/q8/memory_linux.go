package q8

import "syscall"

const madvHugepage = 14 // MADV_HUGEPAGE

// adviseHuge asks for huge pages. A kernel that refuses maps ordinary ones, which are slower and nothing else.
func adviseHuge(b []byte) { _ = syscall.Madvise(b, madvHugepage) }
