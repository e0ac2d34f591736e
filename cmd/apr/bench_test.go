package main

import "testing"

// What random weights are in is told: the asked types, or those that the teacher's backend needs.
func TestRandomTypes(t *testing.T) {
	for _, tt := range []struct {
		shape, backend, asked, want string
	}{
		{"0.5b", "cublas", "", "bf16"},
		{"0.5b", "cublas", "q8_0", "q8_0"},
		{"7b:0.5b", "cublas", "", "bf16"},
		{"7b:0.5b", "cublas", "q6k", "q6k"},
		{"7b:0.5b", "q4k", "", "q4_k_m"},
		{"7b:0.5b", "q4k", "q8_0", "q8_0"},
	} {
		o := &benchOptions{shape: tt.shape, teacherBackend: tt.backend, teacherGEMM: "bf16", quantize: tt.asked}
		if got := o.randomTypes(); got != tt.want {
			t.Errorf("%s, %s, %q: %s, want %s", tt.shape, tt.backend, tt.asked, got, tt.want)
		}
	}
}
