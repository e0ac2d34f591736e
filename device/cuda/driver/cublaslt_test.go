package driver

import (
	"strings"
	"testing"
)

func TestLtErrorNames(t *testing.T) {
	for status, want := range map[uintptr]string{
		7: "cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE (7)", 15: "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (15)",
		99: "cublasLtMatmul: CUBLAS_STATUS_UNKNOWN (99)", 0xdead00000007: "cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE (7)",
	} {
		if err := ltError(ltMatmul, status); err == nil || err.Error() != want {
			t.Errorf("status %#x: %v", status, err)
		}
	}
	if err := ltError(ltMatmul, 0xdead00000000); err != nil { // only the low 32 bits are the C enum
		t.Errorf("success: %v", err)
	}
	for i, name := range ltNames {
		if !strings.HasPrefix(name, "cublasLt") {
			t.Errorf("call %d has the name %q", i, name)
		}
	}
}
