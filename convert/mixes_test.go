package convert

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

var llama = flag.String("llama", "", "program that starts llama.cpp's, as in PROGRAM quantize: rewrite testdata/mixes.txt")

// mixSchemes are our schemes that llama.cpp's quantizer has under the same name.
var mixSchemes = []Scheme{Q4_K_M, Q5_K_M, Q4_0, Q5_0, Q8_0, Q3_K_M, Q2_K}

// mixFamilies are those of families, and one with linear attention.
var mixFamilies = map[string]string{"qwen3_5_text": `"head_dim":64,"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":64,"linear_value_head_dim":64,` +
	`"linear_conv_kernel_dim":4,"full_attention_interval":4,"rope_parameters":{"rope_theta":1e6,"rope_type":"default","partial_rotary_factor":0.25},"attention_bias":false`}

func init() { maps.Copy(mixFamilies, families) }

// Each matrix of a file that is quantised here has the type that llama.cpp's quantizer gives it. testdata/mixes.txt holds for each
// family and scheme the matrices that have another type than most, as llama-quantize (ggml 0.27) wrote them.
func TestMixesOfLlamaCPP(t *testing.T) {
	tok, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/mixes.txt"
	raw, err := os.ReadFile(file)
	if err != nil && *llama == "" {
		t.Fatal(err)
	}
	recorded := strings.Split(string(raw), "\n")
	if *llama != "" {
		recorded = nil
	}
	for _, name := range slices.Sorted(maps.Keys(mixFamilies)) {
		dir := t.TempDir()
		hf := familyFolder(t, dir, name, tok)
		convertTo := func(out string, s Scheme) string {
			path := filepath.Join(dir, out)
			if _, err := Write(context.Background(), open(t, hf), path, Options{Scheme: s}); err != nil {
				t.Fatal(err)
			}
			return path
		}
		for _, s := range mixSchemes {
			contracttest.Cases(t, 1)
			got := exceptions(t, convertTo(string(s)+".gguf", s), base[s])
			if *llama != "" {
				theirs := filepath.Join(dir, "llama.gguf")
				in := convertTo(string(s)+"-f32.gguf", F32)
				if out, err := exec.Command(*llama, "quantize", in, theirs, strings.ToUpper(string(s))).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				recorded = append(recorded, fmt.Sprintf("%s %s:%s", name, s, exceptions(t, theirs, base[s])))
			}
			if line := fmt.Sprintf("%s %s:%s", name, s, got); !slices.Contains(recorded, line) {
				t.Errorf("llama.cpp has no %s", line)
			}
		}
	}
	if *llama != "" {
		if err := os.WriteFile(file, []byte(strings.Join(recorded, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// familyFolder writes a small model of a family.
func familyFolder(t *testing.T, dir, name string, tok *tokenizer.Tokenizer) string {
	t.Helper()
	c, err := arch.Parse("config.json", `{"model_type":"`+name+`","hidden_size":256,"intermediate_size":512,"num_hidden_layers":4,"num_attention_heads":4,`+
		`"num_key_value_heads":2,"vocab_size":4160,"max_position_embeddings":64,"bos_token_id":4093,"eos_token_id":4093,`+mixFamilies[name]+`}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	hf := filepath.Join(dir, "hf")
	if _, err := modelfile.SaveHF(hf, c, tok, randomSlots(c), tensor.BF16, false); err != nil {
		t.Fatal(err)
	}
	return hf
}

// exceptions lists the matrices of a GGUF file that have another type than d.
func exceptions(t *testing.T, path string, d tensor.DType) string {
	t.Helper()
	f := openGGUF(t, path)
	var b strings.Builder
	for _, x := range f.Tensors() {
		if isMatrix(x.Info) && x.DType != d {
			fmt.Fprintf(&b, " %s=%s", x.Name, x.DType)
		}
	}
	f.Close()
	return b.String()
}
