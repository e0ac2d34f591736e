package main

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/modelfile"
)

const familyGoldens = "../../testdata/golden"

// computedFamilies returns the goldens of all families that are computed.
func computedFamilies(t *testing.T) (dirs []string) {
	t.Helper()
	for _, kind := range []string{"families", "variants"} {
		all, err := filepath.Glob(filepath.Join(familyGoldens, kind, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range all {
			c, err := modelfile.ReadConfig(filepath.Join(dir, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			if c.NotComputed() == "" {
				dirs = append(dirs, dir)
			}
		}
	}
	if len(dirs) != 27 {
		t.Fatalf("%d goldens, want 27", len(dirs))
	}
	return dirs
}

// idShards writes ids as a dataset of one shard.
func idShards(t *testing.T, ids []int32) string {
	t.Helper()
	dir := t.TempDir()
	var raw []byte
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
	}
	if err := os.WriteFile(filepath.Join(dir, "a.bin"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// firstStep is the first line of a run's steps.jsonl.
func firstStep(t *testing.T, run string) (s struct {
	Loss     float64 `json:"loss"`
	GradNorm float64 `json:"grad_norm"`
}) {
	t.Helper()
	f, err := os.Open(filepath.Join(run, "steps.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := json.NewDecoder(f).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// One plain step of every family, through distill, has the loss and the gradient norm of transformers in float64.
func TestFamiliesStep(t *testing.T) {
	const lossTol, normTol = 2e-7, 2e-5 // 3e-8 and 7e-6 of gemma4_ple are the largest seen
	for _, dir := range computedFamilies(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			var golden struct {
				Unmasked struct {
					CE       float64 `json:"ce"`
					GradNorm float64 `json:"grad_norm"`
				} `json:"unmasked"`
			}
			raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
			if err == nil {
				err = json.Unmarshal(raw, &golden)
			}
			if err != nil {
				t.Fatal(err)
			}
			f, err := safetensors.Open(filepath.Join(dir, "golden.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			in, _ := f.Tensor("input_ids")
			stored := make([]byte, in.Size)
			if _, err := in.ReadAt(stored, 0); err != nil {
				t.Fatal(err)
			}
			ids := make([]int32, in.Elements())
			for i := range ids {
				ids[i] = int32(binary.LittleEndian.Uint32(stored[4*i:]))
			}
			run := filepath.Join(t.TempDir(), "run")
			if code, v := call(t, "distill", dir, "--student", dir, "--allow-same-model", "--dataset", idShards(t, ids), "--alpha", "0", "--steps", "1",
				"--batch-size", "2", "--seq-len", "28", "--no-shuffle", "--val-fraction", "0", "--backend", "cpu", "--probe", "off", "-o", run); code != 0 {
				t.Fatalf("exit %d: %v", code, v)
			}
			s, want := firstStep(t, run), golden.Unmasked
			if d := math.Abs(s.Loss/want.CE - 1); !(d <= lossTol) {
				t.Errorf("loss %.9g, want %.9g", s.Loss, want.CE)
			}
			if d := math.Abs(s.GradNorm/want.GradNorm - 1); !(d <= normTol) {
				t.Errorf("gradient norm %.9g, want %.9g", s.GradNorm, want.GradNorm)
			}
		})
	}
}

// Runs whose teacher and student are of different families hold against float64, as apr verify recomputes them: with
// documents kept apart and without, whatever is computed again, and resumed.
func TestFamiliesVerify(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	ids := make([]int32, 1200)
	for i := range ids {
		if ids[i] = 3 + rng.Int32N(150); rng.IntN(9) == 0 {
			ids[i] = 2 // ends a document
		}
	}
	data := idShards(t, ids)
	for _, tt := range []struct {
		name, teacher, student string
		more                   []string
	}{
		{"caps", "families/gemma2", "variants/gemma2_capped", nil},
		{"documents", "families/llama", "variants/gemma4_ple", []string{"--document-mask"}},
		{"documents of windows", "families/gemma3_text", "variants/mistral_window", []string{"--document-mask", "--recompute", "norms"}},
		{"computed again", "families/olmo3", "variants/gemma4_kv", []string{"--recompute", "blocks"}},
		{"rows", "families/granite", "families/olmo2", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			run := filepath.Join(t.TempDir(), "run")
			args := append([]string{"distill", filepath.Join(familyGoldens, tt.teacher), "--student", filepath.Join(familyGoldens, tt.student), "--dataset", data,
				"--alpha", "0.6", "--temperature", "2", "--steps", "4", "--batch-size", "2", "--seq-len", "24", "--val-fraction", "0.2", "--checkpoint-every", "2",
				"--backend", "cpu", "--probe", "off", "-o", run}, tt.more...)
			if code, v := call(t, args...); code != 0 {
				t.Fatalf("exit %d: %v", code, v)
			}
			if code, v := call(t, "verify", run); code != 0 {
				t.Errorf("verify: exit %d: %v", code, v)
			}
		})
	}
}
