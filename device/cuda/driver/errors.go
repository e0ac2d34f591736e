package driver

import (
	"fmt"
	"strings"
)

// Error is the failure of one call of a library: every result that is not zero.
type Error struct {
	Call string // the function, such as cuMemAlloc_v2
	Code int    // CUresult, or nvmlReturn_t for functions of NVML
	Name string // CUDA_ERROR_OUT_OF_MEMORY; empty if the library has none
	Text string // the library's own words
}

// Error renders "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
func (e *Error) Error() string {
	name := e.Name
	if name == "" {
		name = "error"
	}
	s := fmt.Sprintf("%s: %s (%d)", e.Call, name, e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Results of the driver that the program tells apart (CUresult in cuda.h).
const (
	codeOutOfMemory      = 2
	codeNoDevice         = 100
	codeNoBinaryForGPU   = 209
	codeInvalidPTX       = 218
	codeUnsupportedPTX   = 222
	codeNotFound         = 500
	codeDriverMismatch   = 803
	codeStubLibrary      = 34
	codeCompatNotSupport = 804
)

// lost are the results after which nothing works in the context, or the process, any more.
var lost = map[int]string{
	214: "CUDA_ERROR_ECC_UNCORRECTABLE", 220: "CUDA_ERROR_NVLINK_UNCORRECTABLE", 226: "CUDA_ERROR_CONTAINED",
	700: "CUDA_ERROR_ILLEGAL_ADDRESS", 702: "CUDA_ERROR_LAUNCH_TIMEOUT", 709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	710: "CUDA_ERROR_ASSERT", 714: "CUDA_ERROR_HARDWARE_STACK_ERROR", 715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
	716: "CUDA_ERROR_MISALIGNED_ADDRESS", 717: "CUDA_ERROR_INVALID_ADDRESS_SPACE", 718: "CUDA_ERROR_INVALID_PC",
	719: "CUDA_ERROR_LAUNCH_FAILED", 721: "CUDA_ERROR_TENSOR_MEMORY_LEAK", 807: "CUDA_ERROR_MPS_SERVER_NOT_READY",
	809: "CUDA_ERROR_MPS_CLIENT_TERMINATED", 911: "CUDA_ERROR_EXTERNAL_DEVICE", 999: "CUDA_ERROR_UNKNOWN",
}

// DeviceLost reports whether the error is sticky: every later call of the context fails with it too, so that only a
// new process can go on (illegal address, failed launch, ECC error, device off the bus …).
func (e *Error) DeviceLost() bool {
	_, ok := lost[e.Code]
	return ok && e.ofDriver()
}

// OutOfMemory reports whether device or pinned memory ran out; the context still works.
func (e *Error) OutOfMemory() bool {
	return e.Code == codeOutOfMemory && e.ofDriver()
}

// ofDriver reports whether the call is one of libcuda, whose codes these are: cuInit, not cublasLtCreate or nvmlInit.
func (e *Error) ofDriver() bool {
	name, ok := strings.CutPrefix(e.Call, "cu")
	return ok && name != "" && name[0] >= 'A' && name[0] <= 'Z'
}
