package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// A configuration that lost what every published model of its family states is said, and is not converted: the output
// would state what was only assumed.
func TestLostKeysAreNotConverted(t *testing.T) {
	root, err := filepath.Abs("../../testdata/golden/families")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	unscaled := func(theta float64, positions int) map[string]any {
		return map[string]any{"rope_theta": theta, "rope_parameters": nil, "rope_scaling": nil,
			"max_position_embeddings": positions}
	}
	for _, tt := range []struct {
		family string
		keys   map[string]any // nil removes one
		says   string
		stated bool // the configuration states what no published model has: a warning
	}{
		{"granite", map[string]any{"embedding_multiplier": nil}, "has no embedding_multiplier, as every published " +
			"model of its family has: 1 is used", false},
		{"granite", map[string]any{"logits_scaling": nil}, "has no logits_scaling", false},
		{"granite", map[string]any{"residual_multiplier": nil}, "has no residual_multiplier", false},
		{"granite", map[string]any{"attention_multiplier": nil}, "has no attention_multiplier", false},
		{"granite", map[string]any{"logits_scaling": 1.0}, "has no logits_scaling", true},
		{"gemma4_text", map[string]any{"final_logit_softcapping": nil},
			"has no final_logit_softcapping, as every published model of its family has: none is used", false},
		{"ministral3", unscaled(1e6, 512), "has no rope_scaling", false},
		{"gpt_oss", unscaled(150000, 512), "has no rope_scaling", false},
		{"llama", unscaled(5e5, 131072), "has no rope_scaling", false},
		{"llama", unscaled(5e5, 8192), "", false},
		{"llama", map[string]any{"rope_parameters": nil, "rope_theta": nil, "rope_scaling": nil,
			"max_position_embeddings": 8192}, "has no rope_theta", false},
		{"qwen3", map[string]any{"rope_parameters": nil, "rope_theta": nil}, "has no rope_theta", false},
	} {
		contracttest.Cases(t, 1)
		name := fmt.Sprintf("%s %v", tt.family, tt.keys)
		familyFolder(t, tok, filepath.Join(root, tt.family, "config.json"), "changed")
		setKeys(t, "changed", tt.keys)
		code, v := call(t, "validate", "changed")
		if said := strings.Contains(fmt.Sprint(v["checks"]), "published model of its family has"); code != 0 ||
			said != (tt.says != "") || !strings.Contains(fmt.Sprint(v["checks"]), tt.says) {
			t.Errorf("%s: validate: exit %d: %v", name, code, v["checks"])
		}
		for _, out := range []string{"out.apr", "out.gguf", "out"} {
			refused := tt.says != "" && !tt.stated
			code, v := call(t, "convert", "changed", "-o", out)
			if refused != (code == 5) || refused && (errorID(v) != "E-MODEL-052" || !strings.Contains(fmt.Sprint(v["error"]),
				tt.says)) {
				t.Errorf("%s: convert -o %s: exit %d: %v", name, out, code, v["error"])
			}
			if refused {
				leftBehind(t, out)
				if code, v = call(t, "convert", "changed", "-o", out, "--allow-odd-weights"); code != 0 ||
					!strings.Contains(fmt.Sprint(v["warnings"]), tt.says) {
					t.Errorf("%s: convert --allow-odd-weights -o %s: exit %d: %v %v", name, out, code, v["error"], v["warnings"])
				}
			}
			if code, v := call(t, "validate", out); tt.says != "" && !strings.Contains(tt.says, "theta") &&
				!strings.Contains(fmt.Sprint(v["checks"]), "published model of its family has") {
				t.Errorf("%s: %s says nothing any more: exit %d: %v", name, out, code, v["checks"])
			}
			if err := os.RemoveAll(out); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The same of a GGUF file: keys that are there under no name that is read.
func TestLostKeysOfGGUFAreNotConverted(t *testing.T) {
	root, err := filepath.Abs("../../testdata/golden/families")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for _, tt := range []struct{ family, key string }{
		{"granite", "granite.embedding_scale"}, {"granite", "granite.rope.freq_base"}, {"qwen3", "qwen3.rope.freq_base"},
		{"ministral3", "mistral3.rope.freq_base"}, {"gemma3_text", "gemma3.rope.freq_base"}, {"gemma4_text",
			"gemma4.final_logit_softcapping"},
		{"llama", "llama.rope.freq_base"}, {"ministral3", "mistral3.rope.scaling.type"},
	} {
		contracttest.Cases(t, 1)
		familyFolder(t, tok, filepath.Join(root, tt.family, "config.json"), "sound")
		must(t, "convert", "sound", "-o", "sound.gguf", "--force")
		if code, v := call(t, "validate", "sound.gguf"); code != 0 || strings.Contains(fmt.Sprint(v["checks"]),
			"published model of its family") {
			t.Errorf("%s: exit %d: %v", tt.family, code, v["checks"])
		}
		file, err := os.ReadFile("sound.gguf")
		if err != nil {
			t.Fatal(err)
		}
		file = unnamed(t, file, tt.key)
		if strings.HasSuffix(tt.key, "scaling.type") { // with all that belongs to it
			for _, other := range []string{"rope.scaling.factor", "attention.temperature_scale"} {
				file = unnamed(t, file, "mistral3."+other)
			}
		}
		if tt.family == "llama" { // a Llama 2 states no base
			at := bytes.Index(file, []byte("llama.context_length")) + len("llama.context_length") + 4
			copy(file[at:], []byte{0, 0, 2, 0})
		}
		if err := os.WriteFile("lost.gguf", file, 0o600); err != nil {
			t.Fatal(err)
		}
		code, v := call(t, "convert", "lost.gguf", "-o", "out.apr", "--force")
		if code != 5 || errorID(v) != "E-MODEL-052" || !strings.Contains(fmt.Sprint(v["error"]), "has no "+tt.key+",") {
			t.Errorf("%s: exit %d: %v", tt.key, code, v["error"])
		}
	}
}

// familyFolder writes a model of random values in the shape of a golden of the families, with 4,096 tokens.
func familyFolder(t *testing.T, tok *tokenizer.Tokenizer, config, dir string) {
	t.Helper()
	text := strings.Replace(string(read(t, config)), `"vocab_size": 160`, `"vocab_size": 4096`, 1)
	text = strings.Replace(text, `"vocab_size_per_layer_input": 160`, `"vocab_size_per_layer_input": 4096`, 1)
	c, err := arch.Parse(config, text, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.BOS, c.EOS, c.Pad = -1, []int{int(tok.EOS())}, -1
	var out []tensor.Source
	for name, values := range randmodel.Weights(c, tok, false) {
		raw := make([]byte, 2*len(values))
		tensor.Narrow(raw, values, tensor.BF16)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.BF16, Shape: arch.Shapes(c)[name]}, raw))
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := modelfile.SaveHF(dir, c, tok, out, tensor.BF16, false); err != nil {
		t.Fatal(err)
	}
}

// unnamed changes a key of a GGUF file's metadata to one of the same length that nobody reads.
func unnamed(t *testing.T, file []byte, key string) []byte {
	t.Helper()
	name := append([]byte{byte(len(key)), 0, 0, 0, 0, 0, 0, 0}, key...)
	if bytes.Count(file, name) != 1 {
		t.Fatalf("%d keys %s", bytes.Count(file, name), key)
	}
	return bytes.Replace(file, name, append(bytes.Clone(name[:8]), strings.Repeat("x", len(key))...), 1)
}

// Values of one half type under the name of the other are refused by what reads all of a model, with a code.
func TestSwappedHalfTypesAreRefused(t *testing.T) {
	goModels(t)
	for _, tt := range []struct {
		stored, labelled tensor.DType
		says             string
	}{{tensor.F16, tensor.BF16, "the values are F16, labelled BF16"}, {tensor.BF16, tensor.F16,
		"the values are BF16, labelled F16"}} {
		if err := os.RemoveAll("swapped"); err != nil {
			t.Fatal(err)
		}
		rewritten(t, "swapped", func(*arch.Config) {}, func(string, []float32) {})
		f, err := modelfile.Open("teacher")
		if err != nil {
			t.Fatal(err)
		}
		var out []tensor.Source
		for name, shape := range arch.Shapes(f.Config) {
			values, err := f.ReadFloat32(name)
			if err != nil {
				t.Fatal(err)
			}
			raw := make([]byte, 2*len(values))
			tensor.Narrow(raw, values, tt.stored)
			out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tt.labelled, Shape: shape}, raw))
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := safetensors.Write("swapped/model.safetensors", out, safetensors.Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		for _, args := range []string{distilX, "convert X -o out.gguf", "quantize X -s q8_0 -o out.gguf",
			"import X -o out.apr"} {
			contracttest.Cases(t, 1)
			code, text := forPeople(t, strings.ReplaceAll(args, "X", "swapped"))
			if code != 5 || !strings.Contains(text, tt.says) || !strings.Contains(text, "E-MODEL-050") {
				t.Errorf("apr %s: exit %d: %s", args, code, text)
			}
		}
	}
}

// A configuration without an end of text is said, whatever the tokenizer knows.
func TestLostEndOfTextIsSaid(t *testing.T) {
	goModels(t)
	must(t, "convert", "teacher", "-o", "sound.gguf")
	if err := os.CopyFS("changed", os.DirFS("teacher")); err != nil {
		t.Fatal(err)
	}
	setKeys(t, "changed", map[string]any{"eos_token_id": nil})
	os.Remove("changed/generation_config.json")
	file, err := os.ReadFile("sound.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("changed.gguf", unnamed(t, file, "tokenizer.ggml.eos_token_id"), 0o600); err != nil {
		t.Fatal(err)
	}
	for model, says := range map[string]string{
		"changed":      "config.json: has no eos_token_id, as every published model has: id 4093, of the tokenizer, is used",
		"changed.gguf": "has no tokenizer.ggml.eos_token_id, as every published model has: texts have no end",
		"teacher":      "", "sound.gguf": "",
	} {
		contracttest.Cases(t, 1)
		code, text := forPeople(t, strings.ReplaceAll(distilX, "X", model))
		if code != 0 || !strings.Contains(text, says) || strings.Contains(text,
			"as every published model has") != (says != "") {
			t.Errorf("distill %s: exit %d: %s", model, code, text)
		}
		if code, v := call(t, "convert", model, "-o", "out.apr", "--force"); code != 0 ||
			!strings.Contains(fmt.Sprint(v["warnings"]), says) {
			t.Errorf("convert %s: exit %d: %v", model, code, v["warnings"])
		}
	}
}
