package main

import (
	"maps"
	"testing"

	"apr/internal/cli"
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

func TestUtilisation(t *testing.T) {
	u := utilisation{flops: 1e9, peak: 1e11}
	if got, ok := u.of("student", 20); !ok || got != 0.5 {
		t.Errorf("utilisation %g, %v; want a half", got, ok)
	}
	for name, ok := range map[string]bool{
		"control": second(u.of("control", 20)), "no peak": second(utilisation{flops: 1}.of("student", 1)), "no time": second(u.of("student", 0)),
	} {
		if ok {
			t.Errorf("%s: a utilisation is told", name)
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

func second(_ float64, ok bool) bool { return ok }
