package driver

import "testing"

func TestError(t *testing.T) {
	tests := []struct {
		name      string
		e         Error
		text      string
		lost, oom bool
	}{
		{"out of memory", Error{"cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", false, true},
		{"illegal address", Error{"cuStreamSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", ""}, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)", true, false},
		{"launch failed", Error{"cuEventQuery", 719, "", ""}, "cuEventQuery: error (719)", true, false},
		{"ECC", Error{Call: "cuLaunchKernel", Code: 214}, "cuLaunchKernel: error (214)", true, false},
		{"wrong value", Error{Call: "cuLaunchKernel", Code: 1}, "cuLaunchKernel: error (1)", false, false},
		{"not ready", Error{Call: "cuEventQuery", Code: 600}, "cuEventQuery: error (600)", false, false},
		{"NVML", Error{"nvmlDeviceGetPowerUsage", 999, "NVML_ERROR_UNKNOWN", ""}, "nvmlDeviceGetPowerUsage: NVML_ERROR_UNKNOWN (999)", false, false},
		{"NVML's 2", Error{Call: "nvmlInit_v2", Code: 2}, "nvmlInit_v2: error (2)", false, false},
		{"cublasLt's 2", Error{Call: "cublasLtMatmul", Code: 2}, "cublasLtMatmul: error (2)", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.e.Error() != tt.text || tt.e.DeviceLost() != tt.lost || tt.e.OutOfMemory() != tt.oom {
				t.Errorf("got %q, lost %v, out of memory %v", tt.e.Error(), tt.e.DeviceLost(), tt.e.OutOfMemory())
			}
		})
	}
}
