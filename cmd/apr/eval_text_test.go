package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/near"
)

// numberAt returns a member of a JSON object; path descends by name and index.
func numberAt(t *testing.T, v any, path ...any) float64 {
	t.Helper()
	for _, key := range path {
		switch k := key.(type) {
		case string:
			v = v.(map[string]any)[k]
		case int:
			v = v.([]any)[k]
		}
	}
	x, ok := v.(float64)
	if !ok {
		t.Fatalf("%v is %v, no number", path, v)
	}
	return x
}

// What apr eval prints of the test model is what transformers computes in float64; see testdata/models/README.md.
func TestEvalReference(t *testing.T) {
	const folder = "../../testdata/models/gosrc"
	text, err := os.ReadFile(folder + "/reference.json")
	var want map[string]any
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	code, got := call(t, "eval", folder, "--data", "../../examples/gosrc/data/gosrc-val.jsonl.zst")
	if code != 0 {
		t.Fatalf("exit %d: %v", code, got["error"])
	}
	near.CheckRel(t, "nats/token, bits/byte",
		[]float64{numberAt(t, got, "nats_per_token"), numberAt(t, got, "bits_per_byte")},
		[]float64{numberAt(t, want, "nats_per_token"), numberAt(t, want, "bits_per_byte")}, 1e-5)
	near.Check(t, "tokens and bytes of the data",
		[]float64{numberAt(t, got, "data_tokens"), numberAt(t, got, "data_bytes")},
		[]float64{numberAt(t, want, "val_tokens"), numberAt(t, want, "val_bytes")}, 0)
	contracttest.Cases(t, int(numberAt(t, got, "tokens")))
}

// The same model on the same text has the same bits per byte in apr eval, in the table and the record of a distillation, and in
// its report; the windows leave ids over, and the documents end in end-of-text.
func TestOneBitsPerByte(t *testing.T) {
	dir := smallRun(t)
	var text strings.Builder
	for i := range 12 {
		fmt.Fprintf(&text, "{\"text\": \"package p%d // held out\\n\\nfunc f() int { return %d }\\n\"}\n", i, i*i)
	}
	data := filepath.Join(dir, "held.jsonl")
	if err := os.WriteFile(data, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	teacher := filepath.Join(dir, "teacher")
	code, run := call(t, "distill", teacher, "--student-config", filepath.Join(dir, "student.json"), "-d", filepath.Join(dir, "train.jsonl"), "--eval-data", data,
		"--seq-len", "32", "--batch-size", "2", "--steps", "1", "--control", "none", "-o", filepath.Join(dir, "scored"), "--backend", "cpu")
	if code != 0 {
		t.Fatalf("distill: exit %d: %v", code, run["error"])
	}
	code, scored := call(t, "eval", teacher, "--data", data, "--seq-len", "32")
	if code != 0 {
		t.Fatalf("eval: exit %d: %v", code, scored["error"])
	}
	if a, b := numberAt(t, scored, "tokens"), numberAt(t, scored, "data_tokens"); !(a < b-1) {
		t.Fatalf("%g of %g ids are scored: the windows leave nothing over", a, b)
	}
	near.CheckRel(t, "bits/byte", []float64{numberAt(t, run, "evaluations", 0, "bits_per_byte")}, []float64{numberAt(t, scored, "bits_per_byte")}, 1e-5)
	code, v := call(t, "verify", filepath.Join(dir, "scored"))
	if code != 0 || v["passed"] != true {
		t.Errorf("verify: exit %d, %v", code, v["error"])
	}

	// A part of the data is data too: its first ids, and their bytes.
	code, part := call(t, "eval", teacher, "--data", data, "--seq-len", "32", "--max-tokens", "64")
	if code != 0 {
		t.Fatalf("eval --max-tokens: exit %d: %v", code, part["error"])
	}
	ids, bytes := numberAt(t, part, "data_tokens"), numberAt(t, part, "data_bytes")
	if ids != 65 || !(bytes > 65 && bytes < numberAt(t, scored, "data_bytes")) {
		t.Errorf("64 targets are of %g ids and %g bytes", ids, bytes)
	}
	near.CheckRel(t, "bits/byte of a part", []float64{numberAt(t, part, "bits_per_byte")}, []float64{numberAt(t, part, "nats_per_token") * ids / bytes / 0.6931471805599453}, 1e-12)
}
