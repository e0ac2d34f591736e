package modelfile_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/aprfile"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// saved writes a random model of configuration c as a Hugging Face folder and as an .apr file.
func saved(t *testing.T, c arch.Config, d tensor.DType) (w weights, folder, apr string) {
	t.Helper()
	w = randomWeights(c)
	dir := t.TempDir()
	folder, apr = filepath.Join(dir, "hf"), filepath.Join(dir, "m.apr")
	_, err := modelfile.SaveHF(folder, c, nil, w.sources(c, d), d, false)
	must(t, err)
	must(t, modelfile.SaveAPR(apr, c, nil, w.sources(c, d), nil, "", false))
	raw, err := aprfile.Open(apr)
	must(t, err)
	defer raw.Close()
	if form, err := raw.Head(); err != nil || form.Tied() != c.Tied {
		t.Errorf("head %v (%v), want tied: %v", form, err, c.Tied)
	}
	return w, folder, apr
}

// Every format gives back the weights that were written, bit for bit, and the configuration.
func TestSaveAndOpen(t *testing.T) {
	for name, c := range shapes {
		t.Run(name, func(t *testing.T) {
			w, folder, apr := saved(t, c, tensor.F32)
			for _, path := range []string{folder, filepath.Join(folder, "model.safetensors"), apr} {
				f := open(t, path)
				must(t, f.CheckTensors())
				if !f.Config.Equal(c) {
					t.Errorf("%s: configuration %#v, want %#v", path, f.Config, c)
				}
				for name, want := range w {
					got, err := f.ReadFloat32(name)
					must(t, err)
					if !slices.Equal(got, want) {
						t.Errorf("%s: %s differs", path, name)
					}
				}
			}
		})
	}
}

// Weights have one identity in every format, and another when a single value changes.
func TestWeightsSHA256(t *testing.T) {
	for name, c := range shapes {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			contracttest.Cases(t, 1)
			w, folder, apr := saved(t, c, d)
			a, err := open(t, folder).WeightsSHA256()
			must(t, err)
			b, err := open(t, apr).WeightsSHA256()
			must(t, err)
			if a != b || len(a) != 64 {
				t.Errorf("%s, %s: folder %s, .apr %s", name, d, a, b)
			}
			w["model.norm.weight"][c.Hidden-1] += 0.5
			_, err = modelfile.SaveHF(folder, c, nil, w.sources(c, d), d, true)
			must(t, err)
			if other, err := open(t, folder).WeightsSHA256(); err != nil || other == a {
				t.Errorf("%s, %s: another weight gives the same hash (%v)", name, d, err)
			}
		}
	}
}

// The configuration and the tokenizer travel in an .apr file.
func TestAPRCarriesConfigurationAndTokenizer(t *testing.T) {
	f := open(t, "../testdata/models/gosrc")
	tok, err := f.Tokenizer()
	must(t, err)
	var sources []tensor.Source
	for _, st := range f.File.Tensors() {
		sources = append(sources, st.Source())
	}
	path := filepath.Join(t.TempDir(), "m.apr")
	must(t, modelfile.SaveAPR(path, f.Config, tok, sources, map[string]any{"alpha": 0.5}, "apr/test", false))

	g := open(t, path)
	must(t, g.CheckTensors())
	if !g.Config.Equal(f.Config) || f.Config.BOS < 0 || tok.BOS() >= 0 { // the model names a first token, its tokenizer none
		t.Errorf("configuration %#v, want %#v; tokenizer's first token %d", g.Config, f.Config, tok.BOS())
	}
	got, err := g.Tokenizer()
	must(t, err)
	if a, b := got.Data(), tok.Data(); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("tokenizer %.300v, want %.300v", a, b)
	}
	raw, err := aprfile.Open(path)
	must(t, err)
	defer raw.Close()
	if v, ok := raw.Metadata().Value("distillation"); !ok || v.Kind() == 0 {
		t.Error("how the student came to be is not in the file")
	}
	for name, ask := range map[string]*modelfile.Files{"folder": open(t, filepath.Join(goldens, "qwen2", "tied_gqa", "student"))} {
		if _, err := ask.Tokenizer(); err == nil {
			t.Errorf("%s without tokenizer has one", name)
		}
	}
	bare := filepath.Join(t.TempDir(), "bare.apr")
	must(t, modelfile.SaveAPR(bare, f.Config, nil, sources, nil, "", false))
	if _, err := open(t, bare).Tokenizer(); fault.KindOf(err) != fault.Load || !strings.Contains(err.Error(), "E-MODEL-010") {
		t.Errorf(".apr without tokenizer: %v", err)
	}
}

func TestAPRConfigRefusals(t *testing.T) {
	c := shapes["tied"]
	set := func(key string, v any) func(map[string]any) {
		return func(m map[string]any) { m[key] = v }
	}
	without := func(key string) func(map[string]any) {
		return func(m map[string]any) { delete(m, key) }
	}
	for _, x := range []struct {
		name   string
		change func(map[string]any)
		kind   fault.Kind
		want   string // after the path
	}{
		{"no size", without("hidden_size"), fault.Load, `metadata "hidden_size": is missing; a model without it can be inspected, not used [E-CONFIG-013]`},
		{"no theta", without("rope_theta"), fault.Load, `metadata "rope_theta": is missing; a model without it can be inspected, not used [E-CONFIG-013]`},
		{"no heads", without("num_heads"), fault.Load, `metadata "num_heads": is missing; a model without it can be inspected, not used [E-CONFIG-013]`},
		{"other architecture", set("architecture", "bert"), fault.Format, `model_type "bert" is not supported; supported: gemma2, gemma3_text, gemma4_text, gpt_oss, granite, granitemoehybrid, llama, ministral3, mistral, olmo2, olmo3, phi3, qwen2, qwen3, qwen3_5_text, qwen3_moe, smollm3 [E-CONFIG-021]`},
		{"architecture a number", set("architecture", 7), fault.Format, `metadata key "architecture": expected a string, found 7 [E-APR-017]`},
		{"adjacent pairs", set("rope_type", 0), fault.Format, `metadata "rope_type": rotary embedding of type 0; 2 is needed, split halves [E-CONFIG-012]`},
		{"text for a size", set("num_layers", "2"), fault.Format, `metadata key "num_layers": expected a non-negative integer, found the string "2" [E-APR-017]`},
		{"fraction of a size", set("num_layers", 1.5), fault.Format, `metadata key "num_layers": expected a non-negative integer, found 1.5 [E-APR-017]`},
		{"negative size", set("num_layers", -1), fault.Format, `metadata key "num_layers": expected a non-negative integer, found -1 [E-APR-017]`},
		{"zero layers", set("num_layers", 0), fault.Format, `key "num_hidden_layers": 0 is not between 1 and 1024 [E-JSON-007]`},
		{"1025 layers", set("num_layers", 1025), fault.Format, `key "num_hidden_layers": 1025 is not between 1 and 1024 [E-JSON-007]`},
		{"hidden over 2^17", set("hidden_size", 1<<17+1), fault.Invalid, "hidden_size is 131073, not between 1 and 131072 [E-CONFIG-010]"},
		{"key-value heads", set("num_kv_heads", 3), fault.Invalid, `layer 0: 3 key-value heads do not divide 2 heads [E-CONFIG-010]`},
		{"theta", set("rope_theta", -1.0), fault.Invalid, `rotary embedding 0: rope_theta is not finite and positive [E-CONFIG-010]`},
		{"epsilon", set("rms_norm_eps", 0.0), fault.Invalid, "rms_norm_eps 0 is not finite and positive [E-CONFIG-010]"},
		{"end outside the vocabulary", set("eos_token_id", 1<<21), fault.Invalid, `bos_token_id or eos_token_id 2097152 is outside the vocabulary of 40 [E-CONFIG-010]`},
	} {
		t.Run(x.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			meta := modelfile.APRMetadata(c, nil, nil)
			x.change(meta)
			path := filepath.Join(t.TempDir(), "m.apr")
			one := tensor.BytesSource(tensor.Info{Name: "model.norm.weight", DType: tensor.F32, Shape: []int{1}, Size: 4}, make([]byte, 4))
			must(t, aprfile.Write(path, []tensor.Source{one}, aprfile.Options{Metadata: meta, Writer: "test"}))
			_, err := modelfile.Open(path)
			if err == nil {
				t.Fatal("accepted")
			}
			if err.Error() != path+": "+x.want || fault.KindOf(err) != x.kind {
				t.Errorf("got  %s (%v)\nwant %s (%v)", strings.TrimPrefix(err.Error(), path+": "), fault.KindOf(err), x.want, x.kind)
			}
		})
	}
}

// A folder is refused when its tensors are not those of its configuration; what is harmless is not.
func TestCheckTensors(t *testing.T) {
	c := shapes["tied"]
	_, folder, _ := saved(t, c, tensor.F32)
	whole := map[string]tensor.Source{}
	for _, st := range open(t, folder).File.Tensors() {
		whole[st.Name] = st.Source()
	}
	vector := func(name string, d tensor.DType, n int) tensor.Source {
		size := d.RowBytes(n)
		return tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: []int{n}, Size: size}, make([]byte, size))
	}
	const bias = "model.layers.1.self_attn.q_proj.bias"
	for name, x := range map[string]struct {
		change func(map[string]tensor.Source)
		want   string // empty: accepted
	}{
		"complete":      {func(map[string]tensor.Source) {}, ""},
		"missing":       {func(m map[string]tensor.Source) { delete(m, bias) }, `DIR: tensor "model.layers.1.self_attn.q_proj.bias": is missing; the configuration needs it with shape [16] [E-MODEL-001]`},
		"shape":         {func(m map[string]tensor.Source) { m[bias] = vector(bias, tensor.F32, 8) }, `DIR: tensor "model.layers.1.self_attn.q_proj.bias": has shape [8]; the configuration needs [16] [E-MODEL-002]`},
		"type":          {func(m map[string]tensor.Source) { m[bias] = vector(bias, tensor.I32, 16) }, `DIR: tensor "model.layers.1.self_attn.q_proj.bias": has type i32, which no weight can have [E-MODEL-003]`},
		"unknown":       {func(m map[string]tensor.Source) { m["x"] = vector("x", tensor.F32, 1) }, `DIR: tensor "x": is not part of a qwen2 model of this configuration [E-MODEL-004]`},
		"a third layer": {func(m map[string]tensor.Source) { m["y"] = vector("model.layers.2.mlp.up_proj.weight", tensor.F32, 1) }, `DIR: tensor "model.layers.2.mlp.up_proj.weight": is not part of a qwen2 model of this configuration [E-MODEL-004]`},
		"tied head":     {func(m map[string]tensor.Source) { m["lm_head.weight"] = vector("lm_head.weight", tensor.F32, 1) }, ""},
		"rotary table": {func(m map[string]tensor.Source) {
			m["r"] = vector("model.layers.0.self_attn.rotary_emb.inv_freq", tensor.F32, 4)
		}, ""},
		"optimiser state": {func(m map[string]tensor.Source) { m["o"] = vector("__training__.step", tensor.F32, 1) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := maps.Clone(whole)
			x.change(m)
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(hfJSON(t, c, tensor.F32)), 0o600))
			must(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), slices.Collect(maps.Values(m)), safetensors.Options{}))
			err := open(t, dir).CheckTensors()
			if x.want == "" {
				must(t, err)
				return
			}
			contracttest.Cases(t, 1)
			if err == nil {
				t.Fatal("accepted")
			}
			if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != x.want || fault.KindOf(err) != fault.Load {
				t.Errorf("got  %s (%v)\nwant %s", got, fault.KindOf(err), x.want)
			}
		})
	}
}

// In an .apr file the embedding serves as head when there is no head, whatever the metadata say.
func TestHeadOfAPR(t *testing.T) {
	for name, c := range shapes {
		for _, says := range []bool{true, false} {
			sources := randomWeights(c).sources(c, tensor.F32) // with a head of its own, or with none
			path := filepath.Join(t.TempDir(), "m.apr")
			meta := modelfile.APRMetadata(c, nil, map[string]any{"tied_embeddings": says})
			must(t, aprfile.Write(path, sources, aprfile.Options{Metadata: meta, Writer: "test"}))
			f := open(t, path)
			if f.Config.Tied != c.Tied {
				t.Errorf("%s, metadata say %v: tied %v", name, says, f.Config.Tied)
			}
			must(t, f.CheckTensors())
		}
	}
}

// An existing file of a folder is refused before anything is written.
func TestSaveHFRefusesExistingFiles(t *testing.T) {
	c := shapes["tied"]
	sources := randomWeights(c).sources(c, tensor.F32)
	for _, name := range []string{"config.json", "generation_config.json", "model.safetensors"} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600))
		_, err := modelfile.SaveHF(dir, c, nil, sources, tensor.F32, false)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("error %v, want a refusal to replace %s", err, name)
		}
		entries, err := os.ReadDir(dir)
		must(t, err)
		if text, err := os.ReadFile(filepath.Join(dir, name)); len(entries) != 1 || string(text) != "mine" {
			t.Errorf("%s: %d files, the old one holds %.9q (%v)", name, len(entries), text, err)
		}
	}
}
