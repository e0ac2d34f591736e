package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
)

// users are commands that compute with a model, X, or write it anew.
var users = []string{
	"eval X --text somewhere_else --backend cpu", "eval S --teacher X --text somewhere_else --backend cpu", "run X func -n 1 --cpu",
	"convert X -o out.apr", "convert X -o folder", "quantize X -s q4k -o out.apr", "prune X --layers 0-0 -o out.apr", "export X --format gguf -o out.gguf", "import X -o out.apr",
	"distill X --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu -o taught",
	"distill S --student X -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu -o taught",
	"check X --no-gpu", "bench X --max-tokens 2 --iterations 1 --warmup 0 --backend cpu",
}

// refusedByUsers requires all users to refuse model with exit 4 (apr check: 5, for a stage that failed) and the texts, and to write nothing.
func refusedByUsers(t *testing.T, model string, texts ...string) {
	t.Helper()
	for _, args := range users {
		contracttest.Cases(t, 1)
		code, v := call(t, strings.Fields(strings.NewReplacer("X", model, "S", "teacher").Replace(args))...)
		want := 4
		if strings.HasPrefix(args, "check") {
			want = 5
		}
		for _, text := range texts {
			if message := errorText(v); code != want || !strings.Contains(message, text) {
				t.Errorf("apr %s (%s): exit %d: %s; want %d and %s", args, model, code, message, want, text)
			}
		}
		for _, output := range []string{"out.apr", "out.gguf", "folder", "taught"} {
			leftBehind(t, output)
		}
	}
}

// One bit of the number of layers of a GGUF file is flipped, and the tensors of two layers would be left unused without a word.
func TestLayersBehindAreRefused(t *testing.T) {
	file, err := os.ReadFile("../../testdata/models/gosrc-q4_k_m.gguf")
	if err != nil {
		t.Fatal(err)
	}
	smallRun(t)
	key := []byte("qwen2.block_count")
	at := bytes.Index(file, key) + len(key) + 4 // behind the type
	if file[at] != 6 {
		t.Fatalf("%d layers", file[at])
	}
	file[at] ^= 2
	if err := os.WriteFile("M.gguf", file, 0o600); err != nil {
		t.Fatal(err)
	}
	said := []string{`key "qwen2.block_count": is 4, and the file has 24 tensors of layers behind the last, the first "blk.4.attn_k.bias"`, "E-MODEL-017"}
	refusedByUsers(t, "M.gguf", said...)
	if code, v := call(t, "validate", "M.gguf"); code != 5 || !strings.Contains(fmt.Sprint(v["checks"]), said[0]) {
		t.Errorf("validate: exit %d: %v", code, v["checks"])
	}
}

// withTwin copies the teacher to a folder, with a second tensor of one of its names, changed or not.
func withTwin(t *testing.T, to, name, twin string, change func([]byte)) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS("teacher")); err != nil {
		t.Fatal(err)
	}
	f, err := modelfile.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var sources []tensor.Source
	for _, st := range f.Stored.Tensors() {
		sources = append(sources, st.Source())
		if st.Name == name {
			raw, err := io.ReadAll(io.NewSectionReader(st, 0, st.Size))
			if err != nil {
				t.Fatal(err)
			}
			change(raw)
			info := st.Info
			info.Name = twin
			sources = append(sources, tensor.BytesSource(info, raw))
		}
	}
	if err := safetensors.Write(filepath.Join(to, "model.safetensors"), sources, safetensors.Options{Force: true}); err != nil {
		t.Fatal(err)
	}
}

// Of two tensors that mean the same one and differ none is taken; of two equal ones either is.
func TestTwoTensorsOfOneName(t *testing.T) {
	smallRun(t)
	const name, twin = "model.layers.2.mlp.gate_proj.weight", "model.language_model.layers.2.mlp.gate_proj.weight"
	withTwin(t, "M", name, twin, func(raw []byte) { raw[len(raw)/2] ^= 1 })
	refusedByUsers(t, "M", fmt.Sprintf("tensor %q: is another tensor than %q", name, twin), "E-MODEL-018")
	if code, v := call(t, "validate", "M"); code != 5 || !strings.Contains(fmt.Sprint(v["checks"]), twin) {
		t.Errorf("validate: exit %d: %v", code, v["checks"])
	}
	withTwin(t, "E", name, twin, func([]byte) {})
	if code, v := call(t, "convert", "E", "-o", "equal.apr"); code != 0 {
		t.Errorf("equal: exit %d: %s", code, errorText(v))
	}
}

// A tokenizer that lost most of its merges is refused, one that lost a tenth, or fifty, is doubtful.
func TestLostMerges(t *testing.T) {
	smallRun(t)
	change := func(to string, of func([]any) []any) int {
		if err := os.CopyFS(to, os.DirFS("teacher")); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(to, "tokenizer.json")
		text, err := os.ReadFile(path)
		var all map[string]any
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		model := all["model"].(map[string]any)
		merges := model["merges"].([]any)
		changed := of(merges)
		model["merges"] = changed
		if text, err = json.Marshal(all); err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(merges) - len(changed)
	}
	lose := func(to string, part float64) int {
		return change(to, func(merges []any) []any { return merges[:int(float64(len(merges))*part)] })
	}
	lost := lose("M", 0.25)
	refusedByUsers(t, "M", fmt.Sprintf("merges: %d of the 3837 tokens of more than one character are made by none of the ", lost), "E-TOK-023")
	if code, v := call(t, "tokenize", "encode-corpus", "--corpus", "train.jsonl", "--tokenizer", "M", "-o", "shards"); code != 4 {
		t.Errorf("encode-corpus: exit %d: %s", code, errorText(v))
	}
	said := "50 of the 3837 tokens"
	if lost := lose("F", 3787.5/3837); lost != 50 {
		t.Fatal(lost)
	}
	if code, v := call(t, "validate", "F"); code != 0 || !strings.Contains(fmt.Sprint(v["checks"]), said+" of more than one character are made by none of the 3787 merges: is the tokenizer whole?") {
		t.Errorf("validate F: exit %d: %v", code, v["checks"])
	}
	if code, v := call(t, "validate", "teacher"); code != 0 || strings.Contains(fmt.Sprint(v["checks"]), "is the tokenizer whole?") {
		t.Errorf("validate teacher: exit %d: %v", code, v["checks"])
	}
	change("R", func(merges []any) []any { slices.Reverse(merges); return merges })
	if code, v := call(t, "validate", "R"); code != 0 || !strings.Contains(fmt.Sprint(v["checks"]), "merges make a token of a lower id than the merge before") {
		t.Errorf("validate R: exit %d: %v", code, v["checks"])
	}
	said = fmt.Sprintf("%d of the 3837 tokens", lose("D", 0.9))
	for _, args := range []string{
		"eval D --text somewhere_else --backend cpu", "convert D -o D.apr", "run D func -n 1 --cpu", "check D --no-gpu",
		"distill D --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --control none --backend cpu -o taught",
	} {
		contracttest.Cases(t, 1)
		var out, errs bytes.Buffer
		code := run(strings.Fields(args), strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
		if code != 0 || strings.Count(errs.String(), said) != 1 {
			t.Errorf("apr %s: exit %d: %s; want %q", args, code, errs.String(), said)
		}
	}
	for model, want := range map[string]int{"M": 5, "D": 0} {
		if code, v := call(t, "validate", model); code != want || !strings.Contains(fmt.Sprint(v["checks"]), "tokenizer.merges") || fmt.Sprint(v["score"]) == "100" {
			t.Errorf("validate %s: exit %d: %v", model, code, v["checks"])
		}
	}
}

// An adapter beside a model is not applied, which every command that takes the model says once; without a model it says
// what is missing.
func TestAdapterBesideModel(t *testing.T) {
	smallRun(t)
	if err := os.CopyFS("A", os.DirFS("teacher")); err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"peft_type": "LORA", "r": 8}`)
	if err := errors.Join(os.WriteFile("A/adapter_config.json", config, 0o600), os.WriteFile("A/adapter_model.safetensors", config, 0o600), os.Mkdir("only", 0o700),
		os.WriteFile("only/adapter_config.json", config, 0o600), os.WriteFile("only/adapter_model.safetensors", config, 0o600)); err != nil {
		t.Fatal(err)
	}
	const said = "adapter_config.json: a LoRA adapter lies beside the model and is not applied: merge it into the weights first"
	for _, args := range []string{
		"distill A --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --control none --backend cpu -o taught",
		"distill teacher --student A --allow-same-model -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --control none --backend cpu -o taught-too",
		"eval A --text somewhere_else --backend cpu", "convert A -o A.apr", "run A func -n 1 --cpu", "check A --no-gpu", "inspect A", "validate A",
	} {
		contracttest.Cases(t, 1)
		var out, errs bytes.Buffer
		code := run(strings.Fields(args), strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
		if code != 0 || strings.Count(out.String()+errs.String(), said) != 1 {
			t.Errorf("apr %s: exit %d: %s%s", args, code, out.String(), errs.String())
		}
	}
	if code, v := call(t, "inspect", "only"); code != 3 || !strings.Contains(fmt.Sprint(v), "adapter_config.json is a LoRA adapter without the model that it belongs to") {
		t.Errorf("exit %d: %v", code, v)
	}
}

// A small file that is there and empty is one that was not fetched.
func TestEmptySmallFiles(t *testing.T) {
	smallRun(t)
	for _, name := range []string{"tokenizer_config.json", "generation_config.json"} {
		for _, text := range []string{"", " \n", "[]", "null"} {
			if err := os.RemoveAll("M"); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS("M", os.DirFS("teacher")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join("M", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range []string{"distill M --student-config student.json -d train.jsonl --steps 1 --batch-size 2 --seq-len 16 --backend cpu -o taught", "convert M -o out.apr"} {
				contracttest.Cases(t, 1)
				if code, v := call(t, strings.Fields(args)...); code != 4 || !strings.Contains(errorText(v), name) {
					t.Errorf("%s is %q: apr %s: exit %d: %s", name, text, args, code, errorText(v))
				}
				leftBehind(t, "taught")
				leftBehind(t, "out.apr")
			}
		}
	}
}
