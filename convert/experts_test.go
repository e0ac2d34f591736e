package convert

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

const expertGate = "model.layers.0.mlp.experts.gate_proj.weight"

// expertsFile writes a small mixture of experts with some values of slots changed, as an .apr file.
func expertsFile(t *testing.T, change map[string]map[int]float32) string {
	t.Helper()
	c, err := arch.Parse("config.json", `{"model_type":"qwen3_moe","hidden_size":128,"intermediate_size":64,`+
		`"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"num_experts":4,`+
		`"num_experts_per_tok":2,"moe_intermediate_size":128,"norm_topk_prob":true,"vocab_size":4160,`+
		`"max_position_embeddings":64,"bos_token_id":4093,"eos_token_id":4093}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	sources := randomSlots(c)
	for i, s := range sources {
		var raw bytes.Buffer
		if err := s.Payload(&raw); err != nil {
			t.Fatal(err)
		}
		for at, x := range change[s.Name] {
			tensor.Narrow(raw.Bytes()[2*at:], []float32{x}, tensor.BF16)
		}
		sources[i] = tensor.BytesSource(s.Info, raw.Bytes())
	}
	path := filepath.Join(t.TempDir(), "m.apr")
	if err := aprfile.Write(path, sources, aprfile.Options{Metadata: modelfile.APRMetadata(c, tok, nil)}); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestValidateNamesExperts: a finding about values of one expert names that expert. A finding about values of several
// experts names none.
func TestValidateNamesExperts(t *testing.T) {
	const of = 128 * 128 // values of an expert
	type values = map[int]float32
	for _, tt := range []struct {
		name   string
		change values
		check  string
		want   string // how the message begins
	}{
		{"NaN", values{2 * of: nan, 3*of - 1: inf}, "content.finite",
			"1 of 65536 values are NaN, 1 infinite, all in expert 2"},
		{"NaN of two", values{2 * of: nan, 3 * of: nan}, "content.finite", "2 of 65536 values are NaN, 0 infinite"},
		{"too large", values{of + 77: -1 << 40}, "content.range", "a value of magnitude 1.1e+12 in expert 1: no trained"},
		{"large", values{5: 1 << 17, 4*of - 1: 1 << 18}, "content.range",
			"a value of magnitude 2.62e+05 in expert 3: larger"},
		{"outlier above", values{3*of + 9: 200}, "quality.outliers", "a value in expert 3 is "},
		{"outlier below", values{9: -200}, "quality.outliers", "a value in expert 0 is "},
	} {
		contracttest.Cases(t, 1)
		file := expertsFile(t, map[string]map[int]float32{expertGate: tt.change})
		v, err := Validate(context.Background(), open(t, file), ValidateOptions{Quality: true}, nil)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		found := slices.DeleteFunc(slices.Clone(v.Checks), func(c Check) bool {
			return c.ID != tt.check || c.Tensor != expertGate
		})
		if len(found) != 1 || !strings.HasPrefix(found[0].Message, tt.want) {
			t.Errorf("%s: %+v of %+v", tt.name, found, v.Checks)
		}
		if tt.name == "NaN of two" && strings.Contains(found[0].Message, "expert") {
			t.Errorf("%s: %+v", tt.name, found)
		}
	}
}

// TestValidateNamesExpertOfHole: a hole of a download within one expert of a file that stacks them, and one that
// crosses into the next.
func TestValidateNamesExpertOfHole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if _, err := Write(context.Background(), open(t, expertsFile(t, nil)), path, Options{Scheme: F32}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	st, _ := f.Tensor("blk.1.ffn_up_exps.weight")
	raw := make([]byte, st.Size)
	if n, err := st.ReadAt(raw, 0); n < len(raw) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at, each := bytes.Index(whole, raw), len(raw)/4
	for _, tt := range []struct {
		name     string
		from, to int // in halves of an expert
		status   Status
		want     string
	}{
		{"half an expert", 4, 5, Warning, `tensor "blk.1.ffn_up_exps.weight": expert 2: 327`},
		{"an expert", 4, 6, Failed, `tensor "blk.1.ffn_up_exps.weight": expert 2: 655`},
		{"across two", 3, 5, Failed, `tensor "blk.1.ffn_up_exps.weight": 655`},
	} {
		contracttest.Cases(t, 1)
		file := slices.Clone(whole)
		clear(file[at+tt.from*each/2 : at+tt.to*each/2])
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := Validate(context.Background(), open(t, path), ValidateOptions{}, nil)
		if err != nil || !slices.ContainsFunc(v.Checks, func(c Check) bool {
			return c.ID == "content.holes" && c.Status == tt.status && strings.Contains(c.Message, tt.want)
		}) {
			t.Errorf("%s: %v: %+v", tt.name, err, v)
		}
	}
}
