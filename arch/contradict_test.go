package arch

import (
	"fmt"
	"strings"
	"testing"

	"apr/internal/fault"
)

// What a configuration says in two ways, of which versions of transformers read one each, has to be the same; keys that
// transformers does not read for a family cannot change it; code of a model's own is not taken for the family's.
func TestContradictions(t *testing.T) {
	const yarn = `{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64}`
	full := strings.Repeat(`"full_attention",`, 5) + `"full_attention"`
	for _, tt := range []struct {
		name, text string
		want       string // of the error; empty: none
	}{
		{"scaling twice, the same", tiny("llama", `"rope_theta":5e5,"rope_scaling":{"type":"linear","factor":4},"rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":500000}`), ""},
		{"scaling twice", tiny("llama", `"rope_scaling":{"type":"linear","factor":4},"rope_parameters":{"rope_type":"linear","factor":8,"rope_theta":10000}`),
			`key "rope_scaling": {"factor":4,"type":"linear"}, and rope_parameters says {"factor":8,"rope_theta":10000,"rope_type":"linear"}`},
		{"a factor of no type", tiny("qwen3", `"rope_scaling":{"factor":4,"original_max_position_embeddings":64}`), "is 4, and the type of scaling is not said"},
		{"a factor of the default", tiny("llama", `"rope_scaling":{"rope_type":"default","factor":4}`), "is 4, and the type of scaling is not said"},
		{"a factor of 1", tiny("llama", `"rope_scaling":{"rope_type":"default","factor":1}`), ""},
		{"two types", tiny("llama", `"rope_scaling":{"type":"linear","rope_type":"yarn","factor":4,"original_max_position_embeddings":64}`), `is "linear", and rope_type is "yarn"`},
		{"one type by two names", tiny("llama", `"rope_scaling":{"type":"linear","rope_type":"linear","factor":4}`), ""},
		{"scaling and none", tiny("qwen3", `"rope_scaling":`+yarn+`,"rope_parameters":{"rope_type":"default","rope_theta":10000}`), `key "rope_scaling": {"factor":4,`},
		{"null beside scaling", tiny("qwen3", `"rope_scaling":null,"rope_parameters":`+yarn), ""},
		{"default beside scaling", tiny("qwen3", `"rope_scaling":{"rope_type":"default"},"rope_parameters":`+yarn), "rope_parameters says"},
		{"base", tiny("llama", `"rope_theta":10000,"rope_parameters":{"rope_type":"default","rope_theta":500000}`), `key "rope_theta": 10000, and rope_theta of rope_parameters is 500000`},
		{"part", tiny("phi3", `"partial_rotary_factor":0.5,"rope_parameters":{"rope_type":"default","partial_rotary_factor":1}`), `key "partial_rotary_factor": 0.5`},
		{"base of windowed layers", tiny("gemma3_text", `"rope_local_base_freq":20000,"rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_theta":1e4}}`),
			`key "rope_local_base_freq": 20000, and rope_theta of rope_parameters is 10000`},
		{"scaling of full layers", tiny("olmo3", `"rope_scaling":`+yarn+`,"rope_parameters":{"full_attention":{"rope_type":"default"},"sliding_attention":{"rope_type":"default"}}`), "rope_parameters says"},
		{"scaled queries", tiny("ministral3", `"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64,"llama_4_scaling_beta":0.2},"rope_parameters":`+
			`{"rope_type":"yarn","factor":4,"original_max_position_embeddings":64,"llama_4_scaling_beta":0.1}`), "llama_4_scaling_beta is 0.2, and 0.1 in rope_parameters"},

		{"mistral's switch", tiny("mistral", `"use_sliding_window":false`), `key "use_sliding_window": transformers does not read the key for this family, whose layers have a window of 4096`},
		{"mistral's switch without a window", tiny("mistral", `"use_sliding_window":false,"sliding_window":null`), ""},
		{"phi's switch", tiny("phi3", `"use_sliding_window":false,"sliding_window":2047`), "use_sliding_window"},
		{"gemma's switch", tiny("gemma2", `"use_sliding_window":false`), "use_sliding_window"},
		{"mistral's layers", tiny("mistral", `"layer_types":[`+full+`]`), `key "layer_types": layer 0 is of type "full_attention"; transformers does not read the key for this family, and sliding_window is 4096`},
		{"mistral's layers without a window", tiny("mistral", `"sliding_window":null,"layer_types":[`+full+`]`), ""},
		{"ministral's layers", tiny("ministral3", `"layer_types":[`+strings.Replace(full, "full", "sliding", 1)+`]`), `layer 0 is of type "sliding_attention"`},
		{
			"gemma's layers without a window",
			tiny("gemma3_text", `"sliding_window":null,"layer_types":[`+strings.Replace(full, "full", "sliding", 1)+`]`),
			`key "layer_types": layer 0 is of type "sliding_attention", and sliding_window is null`,
		},
		{"olmo's window of 0", tiny("olmo3", `"sliding_window":0`), `key "sliding_window": 0 is no window`},
		{"mistral's window of 0", tiny("mistral", `"sliding_window":0`), `key "sliding_window": 0 is no window`},
		{"qwen3's layers", tiny("qwen3", `"layer_types":[`+strings.Replace(full, "full", "sliding", 1)+`]`), "layer 0 is of type \"sliding_attention\", and use_sliding_window is false"},
		{"qwen3's layers without a window", tiny("qwen3", `"use_sliding_window":true,"sliding_window":null,"layer_types":[`+strings.Replace(full, "full", "sliding", 1)+`]`), "sliding_window is null"},
		{"qwen3's layers of no type", tiny("qwen3", `"use_sliding_window":true,"layer_types":[`+strings.Replace(full, "full", "chunked", 1)+`]`), `"chunked_attention"; supported`},
		{"qwen3's layers too few, without windows", tiny("qwen3", `"layer_types":["full_attention"]`), "1 entries for 6 layers"},
		{"qwen3's layers too few", tiny("qwen3", `"use_sliding_window":true,"layer_types":["full_attention"]`), "1 entries for 6 layers"},
		{"experts and a window", tiny("qwen3_moe", qwenExperts+`,"use_sliding_window":true`), `key "use_sliding_window": true is not supported`},
		{"another window in gemma 2", tiny("gemma2", `"sliding_window":64,"sliding_window_size":32`), `key "sliding_window_size": 32 is not supported; supported: 64`},

		{"remote code", tiny("llama", `"auto_map":{"AutoConfig":"configuration_x.XConfig"}`),
			`key "auto_map": AutoConfig is code of the model's own, "configuration_x.XConfig", which is not run and may compute something else than llama; --allow-config-key auto_map`},
		{"remote code under the family's name", tiny("llama", `"auto_map":{"AutoModelForCausalLM":"modeling_llama.LlamaForCausalLM"}`), "auto_map"},
		{"remote code beside the text", `{"model_type":"gemma3","auto_map":{"AutoModel":"x--y.Z"},"text_config":` + tiny("gemma3_text", "") + `}`, "auto_map"},
		{"phi's early code", tiny("phi3", `"auto_map":{"AutoConfig":"configuration_phi3.Phi3Config","AutoModelForCausalLM":"modeling_phi3.Phi3ForCausalLM","AutoTokenizer":"Xenova/gpt-4o"}`), ""},
		{"phi with other code", tiny("phi3", `"auto_map":{"AutoModelForCausalLM":"modeling_phi3.Phi3LongForCausalLM"}`), "Phi3LongForCausalLM"},
		{"code that is no name", tiny("phi3", `"auto_map":{"AutoModelForCausalLM":["modeling_phi3.Phi3ForCausalLM",null]}`), "auto_map"},

		{"interleaved pairs", tiny("llama", `"rope_interleaved":true`), `key "rope_interleaved" with the value true is not known for llama`},
		{"no interleaved pairs", tiny("llama", `"rope_interleaved":false`), ""},
		{"a window for llama", tiny("llama", `"sliding_window":4096`), `key "sliding_window" with the value 4096`},
		{"unset", tiny("llama", `"sliding_window":null,"anything":null`), ""},
		{"unset, misspelt", tiny("mistral", `"slidng_window":null`), `key "slidng_window" with the value null is not known for mistral`},
	} {
		_, err := Parse("config.json", tt.text, Options{})
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (fault.KindOf(err) != fault.Format || !strings.Contains(fmt.Sprint(err), tt.want)):
			t.Errorf("%s: %v (%v), want %q", tt.name, err, fault.KindOf(err), tt.want)
		}
	}
	allowed := Options{AllowKeys: []string{"auto_map"}}
	if _, err := Parse("c", tiny("llama", `"auto_map":{"AutoConfig":"configuration_x.XConfig"}`), allowed); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

// Windows of layers, as transformers' classes decide them.
func TestSwitchedWindows(t *testing.T) {
	layers := strings.Replace(tiny("qwen3", `"use_sliding_window":true`), `"num_hidden_layers":6`, `"num_hidden_layers":30`, 1)
	for _, tt := range []struct{ name, text, want string }{
		{"qwen3, 28 is the default", layers, strings.Repeat("0 ", 28) + "4096 4096"},
		{"qwen2, from the start", tiny("qwen2", `"use_sliding_window":true,"max_window_layers":2,"sliding_window":8`), "0 0 8 8 8 8"},
		{"qwen3, null", tiny("qwen3", `"use_sliding_window":true,"max_window_layers":0,"sliding_window":null`), "0 0 0 0 0 0"},
		{"qwen3, by type", tiny("qwen3", `"use_sliding_window":true,"sliding_window":8,"layer_types":["sliding_attention","full_attention","full_attention","full_attention","full_attention","sliding_attention"]`), "8 0 0 0 0 8"},
		{"smollm3, layers that do not rotate", tiny("smollm3", `"use_sliding_window":true,"sliding_window":8,"no_rope_layer_interval":3`), "0 0 8 0 0 8"},
		{"smollm3, none", tiny("smollm3", `"use_sliding_window":true`), "0 0 0 0 0 0"},
		{"off", tiny("qwen3", `"sliding_window":8,"max_window_layers":0`), "0 0 0 0 0 0"},
	} {
		var got []string
		for _, l := range parseText(t, tt.text).Layers {
			got = append(got, fmt.Sprint(l.Attn.Window))
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: windows %s, want %s", tt.name, s, tt.want)
		}
	}
}

// All unknown keys are named at once, those inside of others too, with what was meant and the flags that accept all of them.
func TestUnknownKeys(t *testing.T) {
	text := tiny("llama", `"hiden_act":"silu","clip_qkv":8,"rope_scaling":{"rope_type":"linear","factor":2,"facto":3,"mine":[1]},"rope_theat":7`)
	_, err := Parse("config.json", text, Options{})
	f, ok := err.(*fault.Error)
	if !ok {
		t.Fatalf("%v", err)
	}
	const want = `keys "hiden_act" ("silu"), "clip_qkv" (8), "rope_theat" (7), "facto" of rope_scaling (3), "mine" of rope_scaling (an array) are not known for llama`
	if !strings.Contains(f.Error(), want) || !strings.HasPrefix(f.Error(), "config.json: line 1, column ") {
		t.Errorf("%s\nwant %s", f, want)
	}
	const hint = `did you mean "hidden_act" for "hiden_act", "rope_theta" for "rope_theat", "factor" for "facto"? ` +
		`--allow-config-key hiden_act --allow-config-key clip_qkv --allow-config-key rope_theat --allow-config-key facto --allow-config-key mine accepts them unread`
	if f.Hint != hint {
		t.Errorf("hint %s\nwant %s", f.Hint, hint)
	}
	if _, err := Parse("c", text, Options{AllowKeys: []string{"hiden_act", "clip_qkv", "rope_theat", "facto", "mine"}}); err != nil {
		t.Errorf("allowed: %v", err)
	}
	for _, pair := range [][2]string{{"a", "a"}, {"ab", "ba"}, {"abc", "abd"}, {"abc", "abcd"}, {"abcd", "acd"}, {"abc", "cba"}, {"ab", "abcd"}, {"", "a"}, {"abcd", "badc"}} {
		want := map[string]bool{"ab": pair[1] == "ba", "abc": pair[1] != "cba", "abcd": pair[1] == "acd", "": true}[pair[0]]
		if oneEdit(pair[0], pair[1]) != want || oneEdit(pair[1], pair[0]) != want {
			t.Errorf("%q and %q: one edit is not %v", pair[0], pair[1], want)
		}
	}
}
