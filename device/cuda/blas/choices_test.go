package blas

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/tensor"
)

func TestChoicesFile(t *testing.T) {
	path := choicesPath(filepath.Join(t.TempDir(), "new", "apr"), "NVIDIA H200 / 5", 130002)
	if filepath.Base(path) != "gemm-nvidia-h200---5-130002.json" {
		t.Errorf("path %s", path)
	}
	if c, err := readChoices(path, "d", 1); err != nil || len(c) != 0 {
		t.Fatalf("without a file: %v %v", c, err)
	}
	first := choices{"gemm/nt/1x2x3/bf16": {"66/tile=128x256", 0.5}, "gemm/nn/1x2x3/bf16": {"6", 0}}
	if err := first.write(path, "d", 1); err != nil {
		t.Fatal(err)
	}
	second := choices{"gemm/tn/1x2x3/bf16": {"7/stages=3", 1.25}, "gemm/nn/1x2x3/bf16": {"8", 1}}
	if err := second.write(path, "d", 1); err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(first)
	maps.Copy(want, second)
	got, err := readChoices(path, "d", 1)
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("read %v, %v, want %v", got, err, want)
	}
}

func TestBadChoicesFile(t *testing.T) {
	const good = `{"device":"d","format":"apr-gemm-1","library":1,"plans":{"k":{"algo":"6","ms":1}}}`
	for name, text := range map[string]string{
		"empty": "", "half": good[:40], "list": "[]", "other device": strings.Replace(good, `"d"`, `"e"`, 1),
		"other library": strings.Replace(good, `:1,"plans"`, `:2,"plans"`, 1),
		"other format":  strings.Replace(good, "gemm-1", "gemm-2", 1), "no plans": strings.Replace(good, `"plans"`, `"plan"`, 1),
		"plans of another kind": `{"device":"d","format":"apr-gemm-1","library":1,"plans":[]}`,
		"plan without algo":     strings.Replace(good, `"algo"`, `"a"`, 1), "algo a number": strings.Replace(good, `"6"`, `6`, 1),
		"binary": "\x00\xff\x7fELF",
	} {
		path := filepath.Join(t.TempDir(), "gemm.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := readChoices(path, "d", 1); err == nil || len(c) != 0 {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if err := (choices{"k": {"7", 2}}).write(path, "d", 1); err != nil {
			t.Errorf("%s: not replaced: %v", name, err)
		}
		if c, err := readChoices(path, "d", 1); err != nil || c["k"].Algo != "7" {
			t.Errorf("%s: after replacing: %v, %v", name, c, err)
		}
	}
}

func TestRemembered(t *testing.T) {
	s := dense(NT, 8, 16, 32, tensor.BF16, tensor.BF16, BF16)
	c := &candidates{shape: s, names: []string{"6", "7", "8"}, ms: make([]float64, 3)}
	for _, tc := range []struct {
		name string
		file choices
		want choice
	}{
		{"no file", choices{}, choice{0, "heuristic"}},
		{"known", choices{s.Key(): {"8", 1}}, choice{2, "file"}},
		{"the library no longer proposes it", choices{s.Key(): {"9", 1}}, choice{0, "heuristic"}},
		{"another shape", choices{s.Key() + "/add": {"8", 1}}, choice{0, "heuristic"}},
	} {
		if got := c.remembered(tc.file); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// Random operands must look like normal values in both types that they are read as.
func TestNormalValues(t *testing.T) {
	v := make([]uint16, 1<<16)
	normalBF16(v)
	sum, square := 0.0, 0.0
	for _, b := range v {
		x := float64(tensor.BF16ToF32(b))
		sum += x
		square += x * x
	}
	n := float64(len(v))
	if mean, sd := sum/n, square/n; !(mean*mean < 1e-3) || !(sd > 0.95 && sd < 1.05) {
		t.Errorf("mean %v, variance %v", mean, sd)
	}
}
