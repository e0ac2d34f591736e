//go:build gpu || emulate

package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	runlog "apr/run/log"
)

// heldOut is a text of two documents.
const heldOut = `{"text":"package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfor i := range 10 {\n\t\tfmt.Println(i)\n\t}\n}\n"}
{"text":"package main\n\nfunc add(a, b int) int {\n\treturn a + b\n}\n\nfunc sub(a, b int) int {\n\treturn a - b\n}\n"}
`

// TestCUDAQuantizeAware trains a student in blocks on a GPU by the command: a run that stops and goes on ends with the
// same bytes; the exported file, the run's own and the folder of its values have the same scores to the bit, and those
// of the run's last evaluation, which adds them up in another order.
func TestCUDAQuantizeAware(t *testing.T) {
	openEmulator(t)
	teacher, err := filepath.Abs(inBlocksTeacher)
	if err != nil {
		t.Fatal(err)
	}
	data, err := filepath.Abs("../../examples/gosrc/data/gosrc-val.jsonl.zst")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("held.jsonl", []byte(heldOut), 0o600); err != nil {
		t.Fatal(err)
	}
	apr := func(environ string, args ...string) map[string]any {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(append(args, "--no-progress", "--json"), strings.NewReader(""), &out, &errs, []string{"HOME=" + home, "XDG_CACHE_HOME=" + home, environ}); code != 0 {
			t.Fatalf("apr %s: exit %d: %s", strings.Join(args, " "), code, errs.String())
		}
		var v map[string]any
		if err := json.Unmarshal(out.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	distill := func(environ, run string) map[string]any {
		return apr(environ, "distill", teacher, "--quantize-aware", inBlocksScheme, "-d", data, "--steps", "5", "--batch-size", "2", "--seq-len", "16", "--eval-data", "held.jsonl",
			"--eval-every", "0", "--quantize-search-every", "2", "--samples", "0", "--control", "none", "--data-cache", "off", "--backend", "cuda", "-o", run)
	}
	whole := distill("APR_DISTILL_LOG_EVERY=1", "whole")
	distill("APR_DISTILL_MAX_STEPS=3", "half")
	apr("APR_DISTILL_LOG_EVERY=1", "distill", "--resume=half")
	contracttest.Cases(t, 1)
	if want, got := read(t, "whole/student.apr"), read(t, "half/student.apr"); !bytes.Equal(want, got) {
		t.Error("a run that went on ended with other blocks")
	}
	r, err := runlog.Read("whole")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Events {
		if detail, _ := e.Detail.(map[string]any); e.Name == "loads after the first step" && detail["loads"] != 0.0 {
			t.Errorf("%s: %v", e.Name, e.Detail)
		}
	}
	apr("APR_LOG=info", "export", "whole/student.apr", "-o", "student.gguf")
	var last map[string]any
	for _, e := range whole["evaluations"].([]any) {
		if s := e.(map[string]any); s["name"] == "distilled student" {
			last = s
		}
	}
	var first map[string]any
	for _, file := range []string{"student.gguf", "whole/student.apr", "whole/student"} {
		contracttest.Cases(t, 1)
		s := apr("APR_LOG=info", "eval", file, "--data", "held.jsonl", "--seq-len", "16", "--teacher", teacher, "--backend", "cuda")
		if first == nil {
			first = s
		}
		for _, key := range []string{"nats_per_token", "kl"} {
			got, want := s[key].(float64), last[key].(float64)
			if s[key] != first[key] || !(math.Abs(got-want) <= 1e-7) {
				t.Errorf("%s of %s is %v, of student.gguf %v, at the end of the run it was %v", key, file, got, first[key], want)
			}
		}
	}
}
