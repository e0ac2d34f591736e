package main

import (
	"strings"
	"testing"

	"apr/bench"
)

// A step faster than the square product has no utilisation: that product ran beside other work.
func TestNoUtilisationAbovePeak(t *testing.T) {
	for peak, want := range map[float64]string{
		100: "50 GFLOP/s of 100 measured for a square product (50 %)",
		50:  "50 GFLOP/s of 50 measured for a square product (100 %)",
		40:  "50 GFLOP/s; a square product ran at 40 only",
	} {
		r := benchResult{Step: &bench.Step{Median: 2, P95: 2}}
		r.rates(1e8, peak) // in 2 ms
		if got := r.products(); !strings.HasPrefix(got, want) || (r.MFU == nil) != (peak == 40) {
			t.Errorf("peak %g: %q, MFU %v; want %q", peak, got, r.MFU, want)
		}
	}
}

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
