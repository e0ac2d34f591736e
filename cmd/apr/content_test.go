package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// goModels changes to a folder with a trained model, "teacher", the configuration of a student, and text that the model
// knows.
func goModels(t *testing.T) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.CopyFS("teacher", os.DirFS(filepath.Join(root, "testdata/models/gosrc"))); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(root, "examples/gosrc/student-config.json"))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(root, "examples/gosrc/data/gosrc-val.jsonl.zst"))
	if err != nil {
		t.Fatal(err)
	}
	// The beginnings of documents, for runs whose scores do not matter: held-out text is scored whole, by every model.
	var text []byte
	data := []string{filepath.Join(root, "examples/gosrc/data/gosrc-val.jsonl.zst")}
	_, err = corpus.Read(t.Context(), data, corpus.ReadOptions{}, func(d corpus.Document) error {
		line, err := json.Marshal(map[string]string{"text": strings.ToValidUTF8(d.Text[:min(len(d.Text), 1500)], "")})
		text = append(append(text, line...), '\n')
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"student.json": config, "text.jsonl": text, "text.jsonl.zst": whole} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// distilX is a run of a step on what the teacher X knows; its held-out text is short.
const distilX = "distill X --student-config student.json -d text.jsonl --steps 1 --batch-size 1 --seq-len 32 " +
	"--control none --samples 0 --eval-every 0 --val-fraction 0.1 --backend cpu --data-cache off --force -o taught"

// forPeople runs a command and returns its exit status and what it wrote for people.
func forPeople(t *testing.T, args string) (int, string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(strings.Fields(args), strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
	return code, out.String() + strings.ReplaceAll(errs.String(), `\"`, `"`)
}

// warned returns the reasons of the warnings in the events of the run "taught".
func warned(t *testing.T) (all []string) {
	t.Helper()
	r, err := runlog.Read("taught")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Events {
		if e.Kind == "warning" {
			all = append(all, e.Name+": "+e.Reason)
		}
	}
	return all
}

// What `apr validate` refuses is refused by every command that makes something of the weights, with the tensor, exit 5,
// and nothing is left; --allow-odd-weights warns instead. A sound model passes without a warning.
func TestOddWeightsAreRefused(t *testing.T) {
	goModels(t)
	commands := map[string]string{
		distilX: "taught", "import X -o out.apr": "out.apr", "convert X -o out.gguf": "out.gguf", "convert X -o folder": "folder",
		"quantize X -s q8_0 -o out.gguf": "out.gguf", "export X --format hf -o exported": "exported",
		"distill X -d text.jsonl --stage precompute --cache-kind hidden --seq-len 32 --backend cpu -o rows": "rows",
	}
	for args, output := range commands {
		contracttest.Cases(t, 1)
		code, text := forPeople(t, strings.ReplaceAll(args, "X", "teacher"))
		if code != 0 || strings.Contains(text, "WARN") || strings.Contains(text, "warning") {
			t.Errorf("apr %s: exit %d: %s", args, code, text)
		}
		if err := os.RemoveAll(output); err != nil {
			t.Fatal(err)
		}
	}
	const up = "model.layers.3.mlp.up_proj.weight"
	for name, odd := range map[string]struct {
		change    func(name string, v []float32)
		says      string
		validated string // as apr validate says it, if that differs
	}{
		"twice": {func(name string, v []float32) {
			if strings.HasPrefix(name, "model.layers.2.mlp.up") || name == up {
				for i := range v {
					v[i] = float32(i%251-125) / 4096
				}
			}
		}, `has the same bytes as "model.layers.2.mlp.up_proj.weight"`, ""},
		"constant": {func(name string, v []float32) {
			for i := range v {
				if name == up {
					v[i] = 0.01
				}
			}
		}, "bytes repeat 0x", "values are the same"},
		"large": {func(name string, v []float32) {
			if name == up {
				v[5] = 1e30
			}
		}, "no trained model has such a weight", ""},
	} {
		rewritten(t, name, func(*arch.Config) {}, odd.change)
		for args, output := range commands {
			contracttest.Cases(t, 1)
			args = strings.ReplaceAll(args, "X", name)
			if code, text := forPeople(t, args); code != 5 || !strings.Contains(text, odd.says) && !strings.Contains(text, "1.00025555e+30 cannot be quantised") || !strings.Contains(text, up) {
				t.Errorf("apr %s: exit %d: %s", args, code, text)
			}
			leftBehind(t, output)
			if name == "large" && strings.Contains(args, "q8_0") {
				continue // it does not fit the type
			}
			code, text := forPeople(t, args+" --allow-odd-weights")
			if code != 0 || !strings.Contains(text, "WARN") || !strings.Contains(text, odd.says) {
				t.Errorf("apr %s --allow-odd-weights: exit %d: %s", args, code, text)
			}
			if output == "taught" {
				if all := warned(t); !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, odd.says) }) {
					t.Errorf("%s: no event: %q", name, all)
				}
			}
			if err := os.RemoveAll(output); err != nil {
				t.Fatal(err)
			}
		}
		says := cmp.Or(odd.validated, odd.says)
		if code, v := call(t, "validate", name); code != 5 || !strings.Contains(fmt.Sprint(v["checks"]), says) {
			t.Errorf("validate %s: exit %d: %v", name, code, v["checks"])
		}
	}
}

// A teacher whose loss is beyond what a perplexity can be leaves records that are JSON: null, and no word of Go's.
func TestPerplexityBeyondFloat(t *testing.T) {
	goModels(t)
	rewritten(t, "loud", func(*arch.Config) {}, func(name string, v []float32) {
		for i := range v {
			if name == "lm_head.weight" {
				v[i] *= 1e6
			}
		}
	})
	if code, text := forPeople(t, strings.ReplaceAll(distilX, "X", "loud")); code != 0 || !strings.Contains(text, "the same probability") {
		t.Fatalf("exit %d: %s", code, text)
	}
	for _, name := range []string{"events.jsonl", "receipt.json", "steps.jsonl"} {
		b, err := os.ReadFile(filepath.Join("taught", name))
		if err != nil {
			t.Fatal(err)
		}
		lines := [][]byte{b}
		if strings.HasSuffix(name, "l") {
			lines = bytes.Split(bytes.TrimSpace(b), []byte("\n"))
		}
		for _, line := range lines {
			contracttest.Cases(t, 1)
			if !json.Valid(line) {
				t.Errorf("%s: %s", name, line)
			}
		}
		if name == "receipt.json" && !bytes.Contains(b, []byte(`"perplexity": null`)) && !bytes.Contains(b, []byte(`"perplexity":null`)) {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// setKeys changes keys of a model's config.json; nil removes one.
func setKeys(t *testing.T, dir string, keys map[string]any) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	for key, v := range keys {
		if c[key] = v; v == nil {
			delete(c, key)
		}
	}
	if b, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// lostEnd is said of the chat template of a folder that loseEnd changed.
const lostEnd = ` of the chat template: "<|im_dnd|>" ends the assistant's turn and is no special token of the ` +
	`vocabulary: a student learns it as letters, and nothing ends its answers; the nearest that is one is "<|im_end|>"`

// loseEnd turns a bit over in the mark that ends a turn.
func loseEnd(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "tokenizer_config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(b, []byte("<|im_end|>"), []byte("<|im_dnd|>")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// generateX is a short job of --stage generate, but for the teacher.
const generateX = "distill --stage generate -d prompts.jsonl -o made.jsonl --max-tokens 2 --backend cpu --force " +
	"--teacher "

// validate, inspect, distill and, in conversations, run warn of a model's chat template whose end of an answer is no
// token, and name the file. distill and run warn of the file of --chat-template alike.
func TestUnendedTemplateIsSaid(t *testing.T) {
	goModels(t)
	if err := os.CopyFS("lost", os.DirFS("teacher")); err != nil {
		t.Fatal(err)
	}
	loseEnd(t, "lost")
	other := strings.ReplaceAll(tokenizer.ChatML, "<|im_end|>", "<|im_dnd|>")
	if err := os.WriteFile("other.jinja", []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	var talks []byte
	for i := range 40 {
		talks = fmt.Appendf(talks, `{"messages": [{"role": "user", "content": "f%d"}, `+
			`{"role": "assistant", "content": "func f%d() {}"}]}`+"\n", i, i)
	}
	if err := os.WriteFile("talks.jsonl", talks, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("prompts.jsonl", []byte(`{"prompt": "f"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, file string }{
		{"validate lost", "tokenizer_config.json: line 2"}, {"inspect lost", "tokenizer_config.json: line 2"},
		{strings.Replace(distilX, "X", "lost", 1), "tokenizer_config.json: line 2"},
		{strings.NewReplacer("X", "teacher", "text.jsonl", "talks.jsonl").Replace(distilX) + " --chat-template other.jinja",
			"--chat-template other.jinja: line 1"},
		{"validate teacher", ""}, {"inspect teacher", ""},
		{"run lost func -n 1 --chat", "tokenizer_config.json: line 2"}, {"run lost func -n 1", ""},
		{"run teacher func -n 1 --chat --chat-template other.jinja", "--chat-template other.jinja: line 1"},
		{"run teacher func -n 1 --chat", ""},
		{generateX + "lost", "tokenizer_config.json: line 2"}, {generateX + "lost --chat-template none", ""},
		{generateX + "teacher --chat-template other.jinja", "--chat-template other.jinja: line 1"},
		{generateX + "teacher", ""},
	} {
		contracttest.Cases(t, 1)
		code, text := forPeople(t, strings.Replace(tt.args, "text.jsonl", "text.jsonl.zst", 1))
		if said := strings.Contains(text, tt.file+lostEnd); code != 0 || said != (tt.file != "") {
			t.Errorf("%s: exit %d: %s", tt.args, code, text)
		}
		if n := strings.Count(text, "ends the assistant's turn"); n != min(1, len(tt.file)) {
			t.Errorf("%s says it %d times: %s", tt.args, n, text)
		}
	}
}

// A merge of a GGUF with one bit turned over, whose product is another token of the vocabulary, is told.
func TestFlippedMergeIsSaid(t *testing.T) {
	b, err := os.ReadFile("../../testdata/models/gosrc-q4_k_m.gguf")
	if err != nil {
		t.Fatal(err)
	}
	goModels(t)
	at := bytes.Index(b, []byte("se s"))
	b[at+3] ^= 1
	if err := os.WriteFile("flipped.gguf", b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"validate flipped.gguf", strings.Replace(distilX, "X", "flipped.gguf", 1)} {
		contracttest.Cases(t, 1)
		code, text := forPeople(t, strings.Replace(args, "text.jsonl", "text.jsonl.zst", 1))
		const says = `of "se" and "r" makes "ser", out of order, and none makes "ses", whose turn it is: was a bit of it ` +
			`changed?`
		if code != 0 || strings.Count(text, says) != 1 {
			t.Errorf("%s: exit %d: %s", args, code, text)
		}
	}
}

// A configuration that lost a key or has a number that no model has, biases that are all zero, and files of a tokenizer
// that say something else are a line and an event; so is a teacher that knows no more than the frequencies of tokens,
// whatever made it so.
func TestDoubtfulTeacherIsSaid(t *testing.T) {
	goModels(t)
	folder := func(change func(dir string)) string {
		const dir = "changed"
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS("teacher")); err != nil {
			t.Fatal(err)
		}
		change(dir)
		return dir
	}
	write := func(name, text string) string {
		return folder(func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	keys := func(keys map[string]any) string { return folder(func(dir string) { setKeys(t, dir, keys) }) }
	for _, tt := range []struct {
		name  string
		model func() string
		says  []string
	}{
		{"no rope_theta", func() string { return keys(map[string]any{"rope_parameters": map[string]any{}, "rope_theta": nil}) }, []string{"config.json: has no rope_theta, as every published model of its family has: 10000 is used"}},
		{"no rms_norm_eps", func() string { return keys(map[string]any{"rms_norm_eps": nil}) }, []string{"config.json: has no rms_norm_eps"}},
		{"another eps", func() string { return keys(map[string]any{"rms_norm_eps": 1.0}) }, []string{"rms_norm_eps is 1: published models have", "knows nothing of this text but how often its tokens occur"}},
		{"a small theta", func() string {
			return keys(map[string]any{"rope_parameters": map[string]any{"rope_theta": 1e-3, "rope_type": "default"}})
		}, []string{"rope_theta is 0.001: published models have"}},
		{"other heads", func() string { return keys(map[string]any{"num_attention_heads": 8, "num_key_value_heads": 4}) }, []string{"knows nothing of this text but how often its tokens occur"}},
		{"no biases", func() string {
			if err := os.RemoveAll("changed"); err != nil {
				t.Fatal(err)
			}
			rewritten(t, "changed", func(*arch.Config) {}, func(name string, v []float32) {
				if strings.HasSuffix(name, ".bias") {
					clear(v)
				}
			})
			return "changed"
		}, []string{"all 18 biases of q, k and v are 0"}},
		{"a vocabulary", func() string { return write("vocab.json", `{"package":1}`) }, []string{`vocab.json: contradicts tokenizer.json, which counts: 1 tokens differ, the first "package"`}},
		{"merges", func() string { return write("merges.txt", "a b\n") }, []string{`merges.txt: contradicts tokenizer.json, which counts: merge 0 is "a b"`}},
		{"special tokens", func() string { return write("special_tokens_map.json", `{"eos_token":"<|none|>"}`) }, []string{`special_tokens_map.json: contradicts tokenizer.json`}},
		{"an end that is no token", func() string { return folder(func(dir string) { loseEnd(t, dir) }) },
			[]string{`tokenizer_config.json: line 2` + lostEnd}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			model := tt.model()
			code, text := forPeople(t, strings.NewReplacer("X", model, "text.jsonl", "text.jsonl.zst").Replace(distilX))
			if code != 0 || strings.Count(text, "WARN") != len(tt.says) {
				t.Errorf("exit %d: %s", code, text)
			}
			events := strings.Join(warned(t), "\n")
			for _, says := range tt.says {
				if !strings.Contains(text, says) {
					t.Errorf("%s does not say %q", text, says)
				}
				if !strings.Contains(events, says) && !strings.Contains(events, runlog.TeacherBelowFrequencies) {
					t.Errorf("events %s do not say %q", events, says)
				}
			}
			args := []string{"import", model, "-o", "out.apr", "--force"}
			if strings.Contains(tt.says[0], "has no r") { // what is written would state it
				if code, v := call(t, args...); code != 5 || errorID(v) != "E-MODEL-052" {
					t.Errorf("import: exit %d: %v", code, v["error"])
				}
				args = append(args, "--allow-odd-weights")
			}
			if code, v := call(t, args...); code != 0 || !strings.Contains(tt.says[0], "knows") && !strings.Contains(tt.says[0],
				"biases") && !strings.Contains(fmt.Sprint(v["warnings"]), tt.says[0]) {
				t.Errorf("import: exit %d: %v", code, v["warnings"])
			}
		})
	}
}
