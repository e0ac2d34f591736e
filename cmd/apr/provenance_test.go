package main

import (
	"maps"
	"math"
	"testing"

	"apr/internal/cli"
	runlog "apr/run/log"
)

func TestEnvironmentKeepsSecrets(t *testing.T) {
	got := environment([]string{"APR_RUNS_DIR=r", "HF_TOKEN=hf_canary", "GOMAXPROCS=2", "GOPROXY=https://user:canary@x", "HOME=/h",
		"CUDA_VISIBLE_DEVICES=0", "RANK=1", "APR_SECRET_X=canary", "=odd", "MANAGED_MEMORY=1"})
	want := map[string]string{"APR_RUNS_DIR": "r", "HF_TOKEN": "(set, not recorded)", "GOMAXPROCS": "2", "CUDA_VISIBLE_DEVICES": "0", "RANK": "1",
		"APR_SECRET_X": "(set, not recorded)", "MANAGED_MEMORY": "1"}
	if !maps.Equal(got, want) {
		t.Errorf("environment %v, want %v", got, want)
	}
}

func TestConfigFiles(t *testing.T) {
	got := configFiles(cli.Settings{{Origin: "default"}, {Origin: "config a b:c.yaml:12"}, {Origin: "config a b:c.yaml:13"}, {Origin: "flag"}})
	if len(got) != 1 || got[0] != "a b:c.yaml" {
		t.Errorf("configuration files %q", got)
	}
}

func TestCardPeak(t *testing.T) {
	for name, want := range map[string]float64{
		"NVIDIA H200": 989e12, "NVIDIA H200 NVL": 835e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12,
		"NVIDIA A10G": 70e12, "NVIDIA A10": 125e12, "NVIDIA L4": 121e12, "NVIDIA L40S": 362e12,
		"NVIDIA RTX A4000": 0, "NVIDIA H100 80GB HBM3 MIG 1g.10gb": 0, "": 0, "Some card": 0,
	} {
		if got := cardPeak(name, "bf16").FLOPS; got != want {
			t.Errorf("%s: %g, want %g", name, got, want)
		}
	}
	if got := cardPeak("NVIDIA A100-SXM4-80GB", "f32").FLOPS; got != 19.5e12 {
		t.Errorf("float32: %g", got)
	}
}

// TestUtilisation: a step's operations over its time and the peak; heads and loss count by targets. A peak that steps exceed is
// refuted, for good.
func TestUtilisation(t *testing.T) {
	step := func(leg string, ms float64, targets int) (s runlog.Step) {
		s.Leg, s.MS.Total, s.Targets = leg, ms, targets
		return s
	}
	known := func() *utilisation { return &utilisation{body: 8e8, heads: 1e6, peak: 1e11} }
	for targets, want := range map[int]float64{200: 0.5, 0: 0.4, 100: 0.45} {
		if got, ok := known().of(step("student", 20, targets)); !ok || math.Abs(got-want) > 1e-12 {
			t.Errorf("%d targets: utilisation %g, %v; want %g", targets, got, ok, want)
		}
	}
	for name, tt := range map[string]struct {
		u *utilisation
		s runlog.Step
	}{
		"control": {known(), step("control", 20, 200)}, "no peak": {&utilisation{body: 1}, step("student", 1, 0)},
		"no time": {known(), step("student", 0, 200)}, "no operations": {&utilisation{peak: 1}, step("student", 1, 0)},
		"above the peak": {known(), step("student", 9.9, 200)},
	} {
		if got, ok := tt.u.of(tt.s); ok {
			t.Errorf("%s: a utilisation of %g is shown", name, got)
		}
	}
	u := known()
	if _, ok := u.of(step("student", 10, 200)); !ok {
		t.Error("all of the peak is no utilisation")
	}
	for _, ms := range []float64{9, 100} { // the mean is above the peak, then a slow step
		if got, ok := u.of(step("student", ms, 200)); ok {
			t.Errorf("%g ms: a utilisation of %g is shown beside a peak that was exceeded", ms, got)
		}
	}
	var a average
	for range 100 {
		a.add(1)
	}
	if got := a.add(21); got != 2 {
		t.Errorf("average %g, want 2", got)
	}
}
