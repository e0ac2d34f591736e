package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// planned is what a test reads of apr plan --json, or of the failure of apr distill.
type planned struct {
	Verdict string
	Largest *int  `json:"largest_batch_size"`
	IsBound *bool `json:"largest_batch_size_is_bound"`
	Error   *struct{ Hint string }
}

// TestLargestBatchFits runs apr plan: the batch size that it calls the largest fits, and one row more does not. It is
// the same one whatever --batch-size was asked for, and a refused run names it too.
func TestLargestBatchFits(t *testing.T) {
	model, err := filepath.Abs("../../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, data := filepath.Join(dir, "config.json"), filepath.Join(dir, "d.txt")
	for path, text := range map[string]string{
		config: `{"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
 "num_key_value_heads": 1, "vocab_size": 4096, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
 "tie_word_embeddings": true, "eos_token_id": 4093}`,
		data: strings.Repeat("package main\n", 1000),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	length := 64
	plan := func(teacher, backend, memory string, batch int, more ...string) (planned, int) {
		args := append([]string{"plan", teacher, "--student-config", config, "-d", data, "--backend", backend, "--memory", memory, "--no-probe",
			"--steps", "10",
			"--seq-len", fmt.Sprint(length), "--batch-size", fmt.Sprint(batch), "--json",
			"-o", filepath.Join(dir, "run")}, more...)
		var out strings.Builder
		code := run(args, strings.NewReader(""), &out, io.Discard, nil)
		var p planned
		if err := json.Unmarshal([]byte(out.String()), &p); err != nil {
			t.Fatalf("%v: exit %d, %q", args, code, out.String())
		}
		return p, code
	}
	gguf := model + "-q4_k_m.gguf"
	for _, tt := range []struct{ teacher, backend, memory string }{
		{model, "cpu", "0.03"}, {model, "cpu", "0.1"}, {model, "cpu", "0.5"}, {model, "cpu", "64"},
		{model, "cuda", "0.8"}, {model, "cuda", "1.2"}, {gguf, "cuda", "0.8"}, {gguf, "cuda", "1.2"}, {gguf, "cuda", "100"},
	} {
		t.Run(fmt.Sprintf("%s %s GiB %s", tt.backend, tt.memory, filepath.Base(tt.teacher)), func(t *testing.T) {
			contracttest.Cases(t, 1)
			if length = 64; tt.memory >= "1" { // longer rows: fewer fit, and a dry run visits each
				length = 512
			}
			begin := time.Now()
			first, _ := plan(tt.teacher, tt.backend, tt.memory, 1)
			took := time.Since(begin)
			if first.Largest == nil || first.IsBound == nil || (*first.Largest == 0) != (first.Verdict != "ready") {
				t.Fatalf("%+v", first)
			}
			n := *first.Largest
			t.Logf("largest %d (bound: %v) in %v", n, *first.IsBound, took)
			for _, asked := range []int{3, 16, 300} {
				if p, _ := plan(tt.teacher, tt.backend, tt.memory, asked); p.Largest == nil || *p.Largest != n || *p.IsBound != *first.IsBound {
					t.Errorf("asked with %d: %+v, with 1: %d", asked, p, n)
				}
			}
			if n > 0 {
				if p, code := plan(tt.teacher, tt.backend, tt.memory, n); code != 0 || p.Verdict != "ready" {
					t.Errorf("%d rows: exit %d, %s", n, code, p.Verdict)
				}
			}
			if *first.IsBound {
				return
			}
			p, code := plan(tt.teacher, tt.backend, tt.memory, n+1)
			if code != 23 || p.Verdict != "insufficient_memory" || p.Error == nil {
				t.Fatalf("%d rows: exit %d, %s", n+1, code, p.Verdict)
			}
			if want := fmt.Sprintf("the largest batch size that fits is %d:", n); n > 0 && !strings.Contains(p.Error.Hint, want) {
				t.Errorf("the refusal does not say %q: %s", want, p.Error.Hint)
			}
		})
	}
}
