package main

import "testing"

func TestDoctorVerdict(t *testing.T) {
	text := func(s string) *string { return &s }
	gpu := doctorBackend{Name: "cuda", Usable: true, Device: text("H100")}
	noGPU := doctorBackend{Name: "cuda", Reason: text("no NVIDIA driver was found")}
	cpu := doctorBackend{Name: "cpu", Usable: true, Device: text("avx2, 2 workers")}
	noCPU := doctorBackend{Name: "cpu", Reason: text("unknown processor.")}
	blas := []doctorSearch{{Library: "libcublasLt", Path: text("/lib")}}
	full := []doctorCheck{{ID: "disk", Status: checkFailed, Detail: "runs go to x, which is no folder"}}
	for _, tt := range []struct {
		r    doctorResult
		want string
	}{
		{doctorResult{Backends: []doctorBackend{cpu, gpu}, Libraries: blas}, "This machine trains and runs models on its GPU (H100) and on the CPU."},
		{doctorResult{Backends: []doctorBackend{cpu, gpu}}, "This machine trains and runs models on its GPU (H100) and on the CPU; without cuBLAS the GPU is slower than it could be."},
		{doctorResult{Backends: []doctorBackend{noCPU, gpu}}, "This machine trains and runs models on its GPU (H100); the CPU cannot be used: unknown processor."},
		{doctorResult{Backends: []doctorBackend{cpu, noGPU}}, "This machine trains and runs models on the CPU (avx2, 2 workers), not on a GPU: no NVIDIA driver was found."},
		{doctorResult{Backends: []doctorBackend{cpu, noGPU}, Checks: full}, "This machine trains and runs models on the CPU (avx2, 2 workers), not on a GPU: no NVIDIA driver was found; " +
			"a run has no place to write to: runs go to x, which is no folder."},
		{doctorResult{Backends: []doctorBackend{noCPU}}, "This machine can neither train nor run models: unknown processor; it was not looked at."},
	} {
		if got := tt.r.verdict(); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}
