package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/tokenizer"
)

// shardRun calls distill on token shards and returns the exit code, and what it printed.
func shardRun(t *testing.T, teacher, output string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code := run([]string{"distill", teacher, "--student-config", "student.json", "--dataset", "shards", "--val-fraction", "0.3", "--steps", "1", "--batch-size", "2",
		"--seq-len", "16", "--control", "none", "--backend", "cpu", "--force", "-o", output}, strings.NewReader(""), &out, &out, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
	return code, out.String()
}

// The same tokenizer has one hash from a folder, a GGUF and an .apr file; shards of another one, and a manifest that does not fit
// the model's, are refused with both values; shards that do not say how they were made are taken with a warning.
func TestShardsOfAnotherTokenizer(t *testing.T) {
	paths := map[string]string{}
	for name, path := range map[string]string{"folder": "../../testdata/models/gosrc", "gguf": "../../testdata/models/gosrc-q4_k_m.gguf", "apr": "../../examples/gosrc/teacher.apr"} {
		abs, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		paths[name] = abs
	}
	tok, err := tokenizer.Load(paths["folder"])
	if err != nil {
		t.Fatal(err)
	}
	smallRun(t)
	d := tok.Data()
	slices.Reverse(d.Vocabulary[1000:2000])
	other, err := tokenizer.FromData("permuted", d)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("permuted", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"tokenizer.json": other.MarshalTokenizer(), "tokenizer_config.json": other.MarshalConfig(0)} {
		if err := os.WriteFile(filepath.Join("permuted", name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths["permuted"] = "permuted"
	encode := func(name string) {
		if code, v := call(t, "tokenize", "encode-corpus", "--corpus", "train.jsonl", "--tokenizer", paths[name], "-o", "shards", "--force"); code != 0 {
			t.Fatalf("%s: %v", name, v)
		}
	}
	encode("permuted")
	if code, text := shardRun(t, paths["folder"], "r"); code != 5 || !strings.Contains(text, other.IDsSHA256()) || !strings.Contains(text, tok.IDsSHA256()) {
		t.Errorf("shards of another tokenizer: exit %d: %s", code, text)
	}
	for _, name := range []string{"folder", "gguf", "apr"} {
		encode(name)
		if code, text := shardRun(t, paths["folder"], "r"); code != 0 || strings.Contains(text, "nothing says with which tokenizer") {
			t.Errorf("shards made with the tokenizer of the %s: exit %d: %s", name, code, text)
		}
	}
	eos := fmt.Sprintf(`"eos": %d`, func() int32 { id, _ := tok.Special("<|endoftext|>"); return id }())
	vocab := fmt.Sprintf(`"vocab_size": %d`, tok.RealIDs())
	for _, c := range []struct {
		was, is, want string
		code          int
	}{
		{vocab, `"vocab_size": 9999`, "vocab_size is 9999", 5},
		{vocab, `"vocab_size": 10`, "vocab_size is 10", 5},
		{eos, `"eos": 99999999`, "eos is 99999999", 5},
		{eos, `"eos": 9999999999`, "eos is 9999999999", 5},
		{`"eos_policy": "between"`, `"eos_policy": "after"`, `eos_policy "after"`, 5},
		{`"documents": 40`, `"documents": 4000`, "ends of documents for 4000", 5},
		{`"apr.token-shards/1"`, `"apr.token-shards/2"`, `key "schema": is "apr.token-shards/2"`, 4},
		{`"total_tokens": `, `"total_tokens": 1`, `key "total_tokens": is 1`, 4},
		{`"tokens": `, `"tokens": 1`, `shard 1, "shard-00000.bin", has `, 4},
		{"],\n  \"total_tokens\"", "],\n  \"was\"", "", 0},
		{`"tokenizer_sha256"`, `"was"`, "nothing says with which tokenizer the shards were made", 0},
	} {
		encode("folder")
		edit(t, "shards/manifest.json", c.was, c.is)
		if code, text := shardRun(t, paths["folder"], "r"); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit %d, want %d and %q: %s", c.is, code, c.code, c.want, text)
		}
	}
	if events, err := os.ReadFile("r/events.jsonl"); err != nil || !strings.Contains(string(events), "shards of unknown tokenizer") {
		t.Errorf("the event: %v: %s", err, events)
	}
	contracttest.Cases(t, 15)
}

// Ids of another tokenizer, of which nothing tells, leave a teacher that is worse than chance: the run says so, and so does its diagnosis.
func TestTeacherWorseThanUniform(t *testing.T) {
	model, err := filepath.Abs("../../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	smallRun(t)
	if err := os.Mkdir("shards", 0o700); err != nil {
		t.Fatal(err)
	}
	var b []byte
	for i := range 4000 { // ids in no order of any text
		id := (i * 2654435761 >> 7) % 4000
		if i%100 == 99 {
			id = 4093
		}
		b = append(b, byte(id), byte(id>>8), 0, 0)
	}
	if err := os.WriteFile("shards/a.bin", b, 0o600); err != nil {
		t.Fatal(err)
	}
	code, text := shardRun(t, model, "r")
	if code != 0 || !strings.Contains(text, "the same probability") {
		t.Errorf("exit %d: %s", code, text)
	}
	if code, v := call(t, "runs", "diagnose", "r"); code != 0 || !strings.Contains(fmt.Sprint(v), "the teacher knows less of this text") {
		t.Errorf("exit %d: %v", code, v)
	}
	contracttest.Cases(t, 2)
}
