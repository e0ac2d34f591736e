package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"apr/adapter"
	"apr/arch"
	"apr/internal/contracttest"
	"apr/modelfile"
)

// An adapter that no training leaves is refused; one that adds nothing, that was copied, or whose configuration leaves
// out what its file has, is told by every command that merges it and by the run that goes on from it.
func TestDoubtfulAdapters(t *testing.T) {
	goModels(t)
	f, err := modelfile.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	up, err := f.ReadFloat32("model.layers.0.mlp.up_proj.weight")
	if err != nil {
		t.Fatal(err)
	}
	const config = "lora/adapter_config.json"
	set := func(key string, v any) func(t *testing.T, a *adapter.Adapter) {
		return func(t *testing.T, _ *adapter.Adapter) {
			var c map[string]any
			if err := json.Unmarshal(read(t, config), &c); err != nil {
				t.Fatal(err)
			}
			c[key] = v
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(config, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(a *adapter.Adapter)               // before it is written
		edit   func(t *testing.T, a *adapter.Adapter) // of what was written
		code   int
		says   string
	}{
		{name: "sound", says: ""},
		{name: "constant", change: func(a *adapter.Adapter) {
			for i := range a.Modules[3].A {
				a.Modules[3].A[i] = 0.01
			}
		}, code: 5, says: "values of A are 0.01, which those of no trained adapter are"},
		{name: "of zeros", change: func(a *adapter.Adapter) { clear(a.Modules[3].A) }, code: 5,
			says: "values of A are 0, which"},
		{name: "adds nothing", change: func(a *adapter.Adapter) {
			for _, m := range a.Modules {
				clear(m.B)
			}
		}, says: "the adapter adds nothing: B is zero in all 12 matrices"},
		{name: "adds little", change: func(a *adapter.Adapter) { clear(a.Modules[2].B) },
			says: "adds nothing to 1 of 12 matrices"},
		{name: "a module twice", change: func(a *adapter.Adapter) {
			copy(a.Modules[4].A, a.Modules[2].A)
			copy(a.Modules[4].B, a.Modules[2].B)
		}, says: "A and B of model.layers.2.self_attn.q_proj.weight are those of model.layers.1.self_attn.q_proj.weight"},
		{name: "rows of the base", change: func(a *adapter.Adapter) {
			for i := range a.Modules[1].A {
				a.Modules[1].A[i] = 3 * up[i]
			}
		}, says: "the rows of A of model.layers.0.mlp.up_proj.weight are the base's own matrix"},
		{name: "a magnitude of 1e30", change: func(a *adapter.Adapter) { a.Modules[5].A[7] = 1e30 }, code: 5,
			says: "a value of magnitude 1e+30: no trained model has such a weight"},
		{name: "a hole", change: func(a *adapter.Adapter) { clear(a.Modules[5].A[300 : 300+1024]) },
			says: "4096 bytes are zero, from offset"},
		{name: "A twice", change: func(a *adapter.Adapter) { copy(a.Modules[4].A, a.Modules[2].A) },
			says: `layers.2.self_attn.q_proj.lora_A.weight" has the same bytes as "base_model.model.model.layers.1.`},
		{name: "a layer gone", change: func(a *adapter.Adapter) { a.Modules = a.Modules[:10] },
			edit: set("target_modules", []string{"q_proj", "up_proj"}),
			says: "has no adapter of 2 of the 12 matrices that adapter_config.json names, model.layers.5.self_attn.q_proj.weight among them"},
		{name: "a target gone", change: func(a *adapter.Adapter) {
			a.Modules = slices.DeleteFunc(a.Modules, func(m adapter.Module) bool { return m.Slot.Role == arch.Q })
		}, edit: set("target_modules", []string{"q_proj", "up_proj"}),
			says: "has no adapter of 6 of the 12 matrices that adapter_config.json names"},
		{name: "excluded by name", edit: set("exclude_modules", []string{"layers.5.mlp.up_proj"}),
			says: "exclude_modules of adapter_config.json leaves out model.layers.5.mlp.up_proj"},
		{name: "excluded by pattern", edit: set("exclude_modules", `.*layers\.5\..*up_proj`),
			says: "exclude_modules of adapter_config.json leaves out model.layers.5.mlp.up_proj"},
		{name: "not a target", edit: set("target_modules", []string{"q_proj"}),
			says: "target_modules of adapter_config.json leaves out model.layers.0.mlp.up_proj"},
		{name: "some layers", edit: set("layers_to_transform", []int{0, 1, 2, 3, 4}),
			says: "layers_to_transform of adapter_config.json leaves out model.layers.5.mlp.up_proj"},
		{name: "a pattern that is not read", edit: set("exclude_modules", `(?!q)up_proj`), code: 9,
			says: `key "exclude_modules": names modules in a way that is not read`},
		{name: "an unknown key", edit: set("multiplies_by", 2), code: 9,
			says: `key "multiplies_by": is a key that is not known, and may change what the adapter computes`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := smallAdapter(t, f)
			if tt.change != nil {
				tt.change(a)
			}
			if _, err := a.SavePEFT("lora", true); err != nil {
				t.Fatal(err)
			}
			if tt.edit != nil {
				tt.edit(t, a)
			}
			for _, args := range []string{
				"export teacher --adapter lora --format hf -o merged --force", "run teacher func -n 1 --cpu --adapter lora",
				strings.Replace(distilX, "distill X --student-config student.json",
					"distill --alpha 0 --student teacher --lora --adapter lora", 1),
			} {
				contracttest.Cases(t, 1)
				code, text := forPeople(t, args)
				if code != tt.code || !strings.Contains(text, tt.says) || tt.says == "" && strings.Contains(text, "adapter adds") {
					t.Errorf("apr %s: exit %d: %s", args, code, text)
				}
			}
			if tt.code != 0 {
				return
			}
			if all := strings.Join(warned(t), "\n"); !strings.Contains(all, tt.says) || tt.says == "" && strings.Contains(all,
				"lora") {
				t.Errorf("events: %s", all)
			}
		})
	}
}

// smallAdapter is an adapter of q and up of a model, of random values.
func smallAdapter(t *testing.T, f *modelfile.Files) *adapter.Adapter {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	a, err := adapter.New(f.Config, []string{"q", "up"}, 8, 16, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.Modules {
		m := &a.Modules[i]
		m.A, m.B = make([]float32, m.Rank*m.Slot.Shape[1]), make([]float32, m.Rank*m.Slot.Shape[0])
		for _, v := range [][]float32{m.A, m.B} {
			for j := range v {
				v[j] = float32(rng.NormFloat64()) / 100
			}
		}
	}
	return a
}

// The files of a tokenizer that lie in an adapter's folder are not used; those that say otherwise than the base are
// told.
func TestTokenizerBesideAdapter(t *testing.T) {
	goModels(t)
	f, err := modelfile.Open("teacher")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a := smallAdapter(t, f)
	for _, tt := range []struct {
		name, file string
		change     func(text string) string
		says       string
	}{
		{name: "the base's"},
		{"another template", "chat_template.jinja", func(string) string { return "{{ messages }}" },
			"lora/chat_template.jinja: contradicts the base's tokenizer, which counts: its chat template is another one"},
		{"another end", "tokenizer_config.json", func(text string) string {
			return strings.Replace(text, `"eos_token"`, `"eos_token": "func", "was"`, 1)
		}, `lora/tokenizer_config.json: contradicts the base's tokenizer, which counts: its eos_token is "func", and "`},
		{"another vocabulary", "tokenizer.json", func(text string) string {
			return strings.NewReplacer(`"fun","c"`, `"cn","uf"`, `"func"`, `"cnuf"`).Replace(text)
		}, "lora/tokenizer.json: contradicts the base's tokenizer, which counts: "},
		{"a token more", "added_tokens.json", func(string) string { return `{"<|tool|>": 4096}` },
			`the first "<|tool|>", which has the id 4096 and is no token there`},
	} {
		contracttest.Cases(t, 1)
		if err := os.RemoveAll("lora"); err != nil {
			t.Fatal(err)
		}
		if _, err := a.SavePEFT("lora", true); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"tokenizer.json", "tokenizer_config.json", tt.file} {
			text, _ := os.ReadFile("teacher/" + file) // not all are there
			if file == tt.file && tt.change != nil {
				text = []byte(tt.change(string(text)))
			}
			if file == "" {
				continue
			}
			if err := os.WriteFile("lora/"+file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, text := forPeople(t, "export teacher --adapter lora --format hf -o merged --force")
		if code != 0 || !strings.Contains(text, tt.says) || strings.Contains(text, "contradicts") != (tt.says != "") {
			t.Errorf("%s: exit %d: %s", tt.name, code, text)
		}
	}
	distilLora := strings.Replace(distilX, "distill X --student-config student.json",
		"distill --alpha 0 --student teacher --lora --adapter lora", 1)
	if code, text := forPeople(t, distilLora); code != 0 || !strings.Contains(strings.Join(warned(t), "\n"), "<|tool|>") {
		t.Errorf("distill: exit %d: %s", code, text)
	}
}
