package gemm

const goFuses = true // x·y + z is one operation in Go code
