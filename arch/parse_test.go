package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

// tiny returns a small configuration with further keys.
func tiny(modelType, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"model_type":%q,"hidden_size":48,"num_hidden_layers":6,"num_attention_heads":4,"intermediate_size":96,"vocab_size":160%s}`, modelType, more)
}

const (
	qwenExperts = `"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":40`
	ossExperts  = `"num_local_experts":8,"num_experts_per_tok":2`
)

// What absent keys mean, by the table of the specification.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		modelType, more string
		want            string // of summary
	}{
		{"qwen2", "", "D12 nk4 θ10000 eps1e-06 untied W000000 scale√12 bias"},
		{"qwen3", "", "D128 nk4 θ10000 eps1e-06 untied W000000 scale√128 qk=head"},
		{"llama", "", "D12 nk4 θ10000 eps1e-06 untied W000000 scale√12"},
		{"mistral", "", "D12 nk4 θ10000 eps1e-06 untied W4096×6 scale√12"},
		{"mistral", `"sliding_window":null`, "D12 nk4 θ10000 eps1e-06 untied W000000 scale√12"},
		{"ministral3", "", "D12 nk4 θ10000 eps1e-05 untied W000000 scale√12"},
		{"smollm3", "", "D12 nk4 θ2e+06 eps1e-06 tied W000000 scale√12 rope111011"},
		{"phi3", "", "D12 nk4 θ10000 eps1e-05 untied W000000 scale√12"},
		{"olmo2", "", "D12 nk4 θ10000 eps1e-05 untied W000000 scale√12 qk=row post"},
		{"olmo3", "", "D12 nk4 θ10000 eps1e-05 untied W4096,4096,4096,0,4096,4096 scale√12 qk=row post"},
		{"granite", "", "D12 nk4 θ10000 eps1e-06 untied W000000 scale=1"},
		{"gemma2", "", "D256 nk4 θ10000 eps1e-06 tied W4096,0,4096,0,4096,0 scale√256 pre+post cap50 final30 o1"},
		{"gemma3_text", "", "D256 nk4 θ1e+06/10000 eps1e-06 tied W4096,4096,4096,4096,4096,0 scale√256 qk=head pre+post o1"},
		{"gemma4_text", `"num_key_value_heads":2`, "D256/512 nk2 θ1e+06/10000 eps1e-06 tied W512,512,512,512,512,0 scale=1 qk=head pre+post P256"},
		{"qwen3_moe", qwenExperts, "D128 nk4 θ10000 eps1e-06 untied W000000 scale√128 qk=head"},
		{"gpt_oss", ossExperts, "D64 nk4 θ150000 eps1e-05 untied W128,0,128,0,128,0 scale√64 bias sinks"},
		{"qwen3_5_text", "", "D256 nk4 θ10000 eps1e-06 untied W000000 scale√256 qk=head o1 gate R64 delta111011"},
	} {
		if got := summary(parseText(t, tiny(tt.modelType, tt.more))); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.modelType, got, tt.want)
		}
	}
}

// summary writes what defaults decide.
func summary(c Config) string {
	var windows, ropes, deltas []string
	full, local := Attention{Rope: -1}, Attention{Rope: -1}
	for _, l := range c.Layers {
		windows = append(windows, fmt.Sprint(l.Attn.Window))
		ropes = append(ropes, map[bool]string{true: "1", false: "0"}[l.Attn.Rope >= 0])
		deltas = append(deltas, map[bool]string{true: "1", false: "0"}[l.Linear()])
		if !l.Linear() && l.Attn.Window == 0 && full.Rope < 0 {
			full = l.Attn
		}
		if l.Attn.Window > 0 {
			local = l.Attn
		}
	}
	if full.Rope < 0 {
		full = local
	}
	if local.Rope < 0 {
		local = full
	}
	l := c.Layers[len(c.Layers)-1]
	pair := func(a, b any) string {
		if a == b {
			return fmt.Sprint(a)
		}
		return fmt.Sprint(a, "/", b)
	}
	w := strings.Join(windows, ",")
	if strings.Count(w, windows[0]) == len(windows) {
		w = fmt.Sprint(windows[0], "×", len(windows))
		if windows[0] == "0" {
			w = strings.Repeat("0", len(windows))
		}
	}
	s := fmt.Sprintf("D%s nk%d θ%s eps%v %s W%s", pair(local.HeadDim, full.HeadDim), full.KVHeads,
		pair(c.Ropes[full.Rope].Theta, c.Ropes[local.Rope].Theta), c.Eps, map[bool]string{true: "tied", false: "untied"}[c.Tied], w)
	if full.Scale == 1 {
		s += " scale=1"
	} else {
		s += fmt.Sprintf(" scale√%.0f", 1/(full.Scale*full.Scale))
	}
	add := func(on bool, what string) {
		if on {
			s += " " + what
		}
	}
	add(full.QKVBias, "bias")
	add(full.QKNorm != NoQKNorm, "qk="+string(full.QKNorm))
	add(l.Post && !l.Pre, "post")
	add(l.Post && l.Pre, "pre+post")
	add(full.Cap > 0, fmt.Sprint("cap", full.Cap))
	add(c.FinalCap > 0, fmt.Sprint("final", c.FinalCap))
	add(c.NormOffset != 0, fmt.Sprint("o", c.NormOffset))
	add(full.Sinks, "sinks")
	add(full.Gate, "gate")
	add(c.Ropes[full.Rope].Width != full.HeadDim, fmt.Sprint("R", c.Ropes[full.Rope].Width))
	add(c.PLE.Width > 0, fmt.Sprint("P", c.PLE.Width))
	add(strings.Contains(strings.Join(deltas, ""), "1"), "delta"+strings.Join(deltas, ""))
	add(strings.Contains(strings.Join(ropes, ""), "0") && !strings.Contains(strings.Join(deltas, ""), "1"), "rope"+strings.Join(ropes, ""))
	return s
}

// transformers 4 and 5 spell the same model in two ways, and public configurations have further keys.
func TestSpellings(t *testing.T) {
	for name, texts := range map[string][2]string{
		"llama3": {
			tiny("llama", llama3),
			tiny("llama", `"rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}`),
		},
		"type for rope_type": {
			tiny("llama", `"rope_scaling":{"type":"linear","factor":4}`), tiny("llama", `"rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":10000.0}`),
		},
		"gemma 3": {
			tiny("gemma3_text", `"rope_theta":1000000,"rope_local_base_freq":10000,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window_pattern":6,"sliding_window":512,"hidden_act":"gelu_pytorch_tanh"`),
			tiny("gemma3_text", `"sliding_window":512,"layer_types":["sliding_attention","sliding_attention","sliding_attention","sliding_attention","sliding_attention","full_attention"],`+
				`"rope_parameters":{"full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1000000.0},"sliding_attention":{"rope_type":"default","rope_theta":10000.0}},"use_bidirectional_attention":false`),
		},
		"olmo 3": {
			tiny("olmo3", `"rope_theta":500000,"rope_scaling":{"rope_type":"yarn","factor":8.0,"original_max_position_embeddings":64,"beta_fast":32,"beta_slow":1,"attention_factor":1.2}`),
			tiny("olmo3", `"rope_parameters":{"rope_theta":500000,"rope_type":"yarn","factor":8.0,"original_max_position_embeddings":64,"attention_factor":1.2}`),
		},
		"phi": {
			tiny("phi3", `"max_position_embeddings":64,"original_max_position_embeddings":16,"partial_rotary_factor":0.5,"rope_scaling":{"type":"su","short_factor":[1,1.5,2],"long_factor":[2,3,4]},"sliding_window":262144,"embd_pdrop":0.0,"lm_head_bias":false`),
			tiny("phi3", `"max_position_embeddings":64,"rope_parameters":{"rope_type":"longrope","rope_theta":10000,"partial_rotary_factor":0.5,"original_max_position_embeddings":16,"short_factor":[1,1.5,2],"long_factor":[2,3,4]},"sliding_window":262144`),
		},
		"qwen3_moe": {
			tiny("qwen3_moe", qwenExperts+`,"decoder_sparse_step":1,"mlp_only_layers":[],"output_router_logits":false,"max_window_layers":48,"use_sliding_window":false`),
			tiny("qwen3_moe", `"num_local_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":40`),
		},
		"nested gemma 3": {
			`{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3","boi_token_index":255999,"mm_tokens_per_image":256,"eos_token_id":[1,106],"vision_config":{"hidden_size":1152},"text_config":` + tiny("gemma3_text", "") + `}`,
			tiny("gemma3_text", `"eos_token_id":[1,106]`),
		},
		"nested ministral 3": {
			`{"model_type":"mistral3","vision_config":{},"tie_word_embeddings":true,"quantization_config":{"quant_method":"fp8","weight_block_size":null},"text_config":` + tiny("ministral3", "") + `}`,
			tiny("ministral3", `"tie_word_embeddings":true`),
		},
		"nested mistral": {
			`{"model_type":"mistral3","text_config":` + tiny("mistral", `"sliding_window":null`) + `}`, tiny("mistral", `"sliding_window":null`),
		},
		"nested qwen 3.5": {
			`{"model_type":"qwen3_5","vision_config":{},"text_config":` + tiny("qwen3_5_text", `"mtp_num_hidden_layers":1,"mtp_use_dedicated_embeddings":false,"mamba_ssm_dtype":"float32","attn_output_gate":true,"rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"partial_rotary_factor":0.25,"rope_theta":10000000,"rope_type":"default"}`) + `}`,
			tiny("qwen3_5_text", `"full_attention_interval":4,"rope_theta":10000000`),
		},
		"gpt-oss": {
			tiny("gpt_oss", ossExperts+`,"experts_per_token":2,"initial_context_length":4096,"swiglu_limit":7.0,"quantization_config":{"modules_to_not_convert":["lm_head"],"quant_method":"mxfp4"},"router_aux_loss_coef":0.9`),
			tiny("gpt_oss", ossExperts),
		},
	} {
		a, b := parseText(t, texts[0]), parseText(t, texts[1])
		if !a.Equal(b) || a.Hash() != b.Hash() {
			t.Errorf("%s:\n%s\n%s", name, a.JSON(), b.JSON())
		}
	}
	if c := parseText(t, tiny("gpt_oss", ossExperts+`,"quantization_config":{"quant_method":"mxfp4"}`)); c.Stored != "mxfp4" {
		t.Errorf("stored as %q", c.Stored)
	}
}

// A text comes back from its canonical form, and one that is not canonical is refused.
func TestJSON(t *testing.T) {
	for name, c := range everything(t) {
		back, err := FromJSON(name, string(c.JSON()))
		if err != nil || !back.Equal(c) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := parseText(t, tiny("qwen3", ""))
	for _, text := range []string{" " + string(c.JSON()), strings.Replace(string(c.JSON()), `"hidden":48`, `"hidden":0`, 1), "{}", "", `{"family":"qwen9"}`} {
		if _, err := FromJSON("x", text); err == nil {
			t.Errorf("accepted %.60s", text)
		}
	}
}

// config.json that is written describes the same model, in the keys of both versions of transformers.
func TestHFConfig(t *testing.T) {
	for name, c := range everything(t) {
		text, err := HFConfig(c, tensor.BF16)
		if err != nil {
			got, _ := Parse("", string(must(json.Marshal(c.hfKeys()))), Options{})
			t.Errorf("%s: %v\n%s\n%s", name, err, got.JSON(), c.JSON())
			continue
		}
		back := parseText(t, string(text))
		if back.DType != tensor.BF16 || !back.Equal(c) {
			t.Errorf("%s: %s", name, text)
		}
		var four map[string]any // without what only transformers 5 reads
		if err := json.Unmarshal(text, &four); err != nil {
			t.Fatal(err)
		}
		if five, ok := four["rope_parameters"].(map[string]any); ok && c.Family != "gemma4_text" {
			delete(four, "rope_parameters")
			_ = five
			old := parseText(t, string(must(json.Marshal(four))))
			if !old.Equal(c) {
				t.Errorf("%s: transformers 4 would read\n%s\n%s", name, old.JSON(), c.JSON())
			}
		}
	}
	c := parseText(t, tiny("llama", ""))
	c.Ropes[0].Kind, c.Ropes[0].Divisors = RopeFactors, []float64{1, 1, 1, 1, 1, 2}
	if _, err := HFConfig(c, tensor.F32); fault.KindOf(err) != fault.Format || !strings.Contains(fmt.Sprint(err), "cannot hold this model") {
		t.Errorf("a table of no kind: %v", err)
	}
	c = parseText(t, tiny("llama", ""))
	c.Layers[2].Attn.Window = 5
	if _, err := HFConfig(c, tensor.F32); fault.KindOf(err) != fault.Format {
		t.Errorf("a window that llama has no key for: %v", err)
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// The ids of generation_config.json win.
func TestGenerationConfig(t *testing.T) {
	c, err := Parse("config.json", tiny("llama", `"eos_token_id":5`), Options{GenerationPath: "generation_config.json", Generation: `{"eos_token_id":[7,9],"bos_token_id":3,"temperature":0.6}`})
	if err != nil || fmt.Sprint(c.EOS, c.BOS) != "[7 9] 3" {
		t.Errorf("%v %v, %v", c.EOS, c.BOS, err)
	}
	_, err = Parse("config.json", tiny("llama", ""), Options{GenerationPath: "generation_config.json", Generation: `{"eos_token_id":"x"}`})
	if fault.KindOf(err) != fault.Format || !strings.HasPrefix(fmt.Sprint(err), "generation_config.json: line 1") {
		t.Errorf("%v", err)
	}
}

// Errors name the file, the place, the key, the value and what would be right.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		kind       fault.Kind
		want, hint string
	}{
		{"not JSON", `{"model_type":`, fault.Format, "line 1", ""},
		{"no model_type", `{}`, fault.Format, `key "model_type" is missing`, ""},
		{"unknown model_type", tiny("qwen33", ""), fault.Format, `model_type "qwen33" is not supported; supported: gemma2, gemma3_text, gemma4_text, gpt_oss`, `"qwen3"`},
		{"nested unknown", `{"model_type":"gemma3","text_config":` + tiny("gemma5_text", "") + `}`, fault.Format, `"gemma5_text" is not supported`, ""},
		{"unknown key", "{\n" + tiny("qwen3", `"head_dimm":64`)[1:], fault.Format, `line 2, column 137: key "head_dimm" with the value 64 is not known for qwen3`, `did you mean "head_dim"`},
		{"unknown key, two letters off", tiny("qwen3", `"heads_dims":64`), fault.Format, `key "heads_dims"`,
			`did you mean "head_dim"`},
		{"unknown key, nothing near", tiny("qwen3", `"zzzzzzzzzz":64`), fault.Format, `key "zzzzzzzzzz" with the value 64 is not known for qwen3`, "--allow-config-key zzzzzzzzzz"},
		{"unknown rope key", tiny("llama", `"rope_scaling":{"rope_type":"linear","factor":2,"facto":3}`), fault.Format, `"facto"`, `"factor"`},
		{"unknown rope type", tiny("llama", `"rope_scaling":{"rope_type":"dynamic","factor":2}`), fault.Format, `rotary embedding of type "dynamic" is not supported; supported: default, linear`, ""},
		{"queries scaled by position", tiny("llama", `"rope_scaling":{"rope_type":"linear","factor":2,"llama_4_scaling_beta":0.1}`), fault.Format, `key "llama_4_scaling_beta": 0.1 is not supported for this family`, ""},
		{"linear without factor", tiny("llama", `"rope_scaling":{"rope_type":"linear"}`), fault.Invalid, "factor is missing", ""},
		{"llama3 without frequencies", tiny("llama", `"rope_scaling":{"rope_type":"llama3","factor":8,"original_max_position_embeddings":8192}`), fault.Invalid, "low_freq_factor", ""},
		{"longrope of another width", tiny("phi3", `"rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[1,2,3,4,5,6]}`), fault.Format, `key "short_factor": has 1 entries; 12 of 12 values of a head are rotated, in 6 pairs`, ""},
		{"rope by type, one missing", tiny("gemma3_text", `"rope_parameters":{"full_attention":{"rope_type":"default","rope_theta":1e6}}`), fault.Format, "no entry for layers of type sliding_attention", ""},
		{"activation", tiny("llama", `"hidden_act":"relu"`), fault.Format, `activation "relu" is not supported; supported: silu`, ""},
		{"biases in the MLP", tiny("llama", `"mlp_bias":true`), fault.Format, `key "mlp_bias": true is not supported`, ""},
		{"bidirectional", tiny("gemma3_text", `"use_bidirectional_attention":true`), fault.Format, "use_bidirectional_attention", ""},
		{"layer_types too short", tiny("olmo3", `"layer_types":["full_attention"]`), fault.Format, "1 entries for 6 layers", ""},
		{"layer type", tiny("olmo3", `"layer_types":["full_attention","full_attention","full_attention","full_attention","chunked_attention","full_attention"]`), fault.Format, `layer 4 is of type "chunked_attention"`, ""},
		{"mamba layers", tiny("granitemoehybrid", `"shared_intermediate_size":96,"layer_types":["attention","mamba","attention","attention","attention","attention"]`), fault.Format, `layer 1 is of type "mamba"; supported: attention`, ""},
		{"granite's experts", tiny("granitemoehybrid", `"shared_intermediate_size":96,"num_local_experts":32`), fault.Format, "num_local_experts", ""},
		{"clamp", tiny("gpt_oss", ossExperts+`,"swiglu_limit":6`), fault.Format, `key "swiglu_limit": 6 is not supported; supported: 7`, ""},
		{"a key of mxfp4", tiny("gpt_oss", ossExperts+
			`,"quantization_config":{"quant_method":"mxfp4","block_size":16}`), fault.Format,
			`key "block_size" of mxfp4 is not known`, ""},
		{"quantisation", tiny("llama", `"quantization_config":{"quant_method":"gptq"}`), fault.Format, `method "gptq" is not supported; supported: fp8, mxfp4`, ""},
		{"top-k above the experts", tiny("qwen3_moe", `"num_experts":8,"num_experts_per_tok":9,"moe_intermediate_size":40`), fault.Invalid, "num_experts_per_tok is 9, not between 1 and 8", ""},
		{"no layers", strings.Replace(tiny("gpt_oss", ossExperts), `"num_hidden_layers":6`, `"num_hidden_layers":0`, 1), fault.Format, "num_hidden_layers", ""},
		{"too many layers", strings.Replace(tiny("llama", ""), `"num_hidden_layers":6`, `"num_hidden_layers":99999999999`, 1), fault.Format, "is over 2147483647", ""},
		{"negative", strings.Replace(tiny("llama", ""), `"hidden_size":48`, `"hidden_size":-48`, 1), fault.Format, `key "hidden_size": expected a non-negative integer`, ""},
		{"no heads", strings.Replace(tiny("llama", ""), `"num_attention_heads":4`, `"num_attention_heads":0`, 1), fault.Invalid, "num_attention_heads is 0", ""},
		{"heads", strings.Replace(tiny("llama", ""), `"num_attention_heads":4`, `"num_attention_heads":5`, 1), fault.Format, "5 heads do not divide hidden_size 48", ""},
		{"kv heads", tiny("llama", `"num_key_value_heads":3`), fault.Invalid, "3 key-value heads do not divide 4 heads", ""},
		{"odd head", tiny("llama", `"head_dim":9`), fault.Invalid, "not even", ""},
		{"eps", tiny("llama", `"rms_norm_eps":0`), fault.Invalid, "rms_norm_eps 0 is not finite and positive", ""},
		{"theta", tiny("llama", `"rope_theta":-1`), fault.Invalid, "rope_theta", ""},
		{"eos", tiny("llama", `"eos_token_id":[2,160]`), fault.Invalid, "160 is outside the vocabulary of 160", ""},
		{"vocabulary", strings.Replace(tiny("llama", ""), `"vocab_size":160`, `"vocab_size":99999999`, 1), fault.Format, "vocab_size is 99999999", ""},
		{"shared layers", tiny("gemma4_text", `"num_key_value_heads":2,"num_kv_shared_layers":6`), fault.Format, "leave none", ""},
		{"shared layers of a type", tiny("gemma4_text", `"num_key_value_heads":2,"num_kv_shared_layers":1`), fault.Format, "layer 5 is of type full_attention, and no layer before 5 is", ""},
		{"unknown key of a layer", tiny("gemma4_text", `"num_key_value_heads":2,"per_layer_config":{"5":{"heads":3}}`), fault.Format, `"heads"`, ""},
		{"granite divides by zero", tiny("granite", `"logits_scaling":0`), fault.Format, "logits_scaling", ""},
		{"value heads", tiny("qwen3_5_text", `"linear_num_key_heads":3,"linear_num_value_heads":4`), fault.Invalid,
			"linear_num_key_heads 3 does not divide linear_num_value_heads 4", ""},
		{"two numbers of experts per token", tiny("gpt_oss", ossExperts+`,"experts_per_token":3`), fault.Format,
			`key "experts_per_token": 3 is not num_experts_per_tok, 2`, ""},
		{"two numbers of experts", tiny("gpt_oss", ossExperts+`,"num_experts":3`), fault.Format,
			`key "num_experts": 3 is not num_local_experts, `, ""},
	} {
		_, err := Parse("config.json", tt.text, Options{})
		if fault.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.want) || !strings.HasPrefix(fmt.Sprint(err), "config.json: ") {
			t.Errorf("%s: %v (%v), want %v with %q", tt.name, err, fault.KindOf(err), tt.kind, tt.want)
			continue
		}
		if f, ok := err.(*fault.Error); !ok || !strings.Contains(f.Hint, tt.hint) {
			t.Errorf("%s: hint of %#v, want %q", tt.name, err, tt.hint)
		}
	}
	if _, err := Parse("c", tiny("qwen3", `"head_dimm":64`), Options{AllowKeys: []string{"head_dimm"}}); err != nil {
		t.Errorf("an allowed key is refused: %v", err)
	}
}

// No configuration of any kind makes Parse panic or write what it would not read.
func FuzzParse(f *testing.F) {
	for _, s := range sizes {
		f.Add(s.text)
	}
	paths, _ := filepath.Glob(filepath.Join(goldens, "*", "*", "config.json"))
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("config.json", text, Options{})
		if err != nil {
			return
		}
		if len(c.Layers) > 64 || c.Hidden > 1<<12 || c.Parameters() > 1<<28 {
			return
		}
		back, err := FromJSON("x", string(c.JSON()))
		if err != nil || !back.Equal(c) {
			t.Fatalf("%v: %s", err, c.JSON())
		}
		if _, err := HFConfig(c, tensor.F32); err != nil && fault.KindOf(err) != fault.Format {
			t.Fatal(err)
		}
		got, err := FromGGUF("x.gguf", virtual(c, append(GGUFMetadata(c), GGUFTokens(c)...)))
		if err != nil {
			return // what GGUF cannot hold
		}
		if !same(got, c) {
			t.Fatalf("%s\n%s", got.forGGUF().JSON(), c.forGGUF().JSON())
		}
	})
}

// The tables of rotary embeddings, from their formulas and by hand.
func TestFrequencies(t *testing.T) {
	base := Rope{Kind: RopeDefault, Theta: 10000, HeadDim: 8, Width: 8, Attention: 1}
	with := func(change func(r *Rope)) Rope { r := base; change(&r); return r }
	for _, tt := range []struct {
		name string
		r    Rope
		seq  int
		want []float64
	}{
		{"default", base, 1, []float64{1, .1, .01, .001}},
		{"half a head", with(func(r *Rope) { r.Width = 4 }), 1, []float64{1, .01}},
		{"linear", with(func(r *Rope) { r.Kind, r.Factor = RopeLinear, 4 }), 1, []float64{.25, .025, .0025, .00025}},
		// wavelengths 6.28, 62.8, 628, 6283; L/high 16, L/low 64: kept, between, divided, divided; m = (64/62.83−1)/3
		{"llama3", with(func(r *Rope) { r.Kind, r.Factor, r.Low, r.High, r.Original = RopeLlama3, 8, 1, 4, 64 }), 1,
			[]float64{1, .1 * ((1-.00619721193)/8 + .00619721193), .01 / 8, .001 / 8}},
		{"longrope, short", with(func(r *Rope) {
			r.Kind, r.Original, r.Divisors, r.LongDivs = RopeLong, 16, []float64{1, 2, 4, 5}, []float64{2, 4, 8, 10}
		}), 16, []float64{1, .05, .0025, .0002}},
		{"longrope, long", with(func(r *Rope) {
			r.Kind, r.Original, r.Divisors, r.LongDivs = RopeLong, 16, []float64{1, 2, 4, 5}, []float64{2, 4, 8, 10}
		}), 17, []float64{.5, .025, .00125, .0001}},
		{"proportional", with(func(r *Rope) { r.Kind, r.Rotated, r.Factor = RopeProportional, 2, 1 }), 1, []float64{1, .1, 0, 0}},
		// d(32) = 8·ln(64/(64π))/(2 ln 1e4) < 0 → 0; d(1) = 8·ln(64/2π)/(2 ln 1e4) = 1.008 → 2: e = 1, .5, 0, 0
		{"yarn", with(func(r *Rope) { r.Kind, r.Factor, r.High, r.Low, r.Original = RopeYaRN, 4, 32, 1, 64 }), 1,
			[]float64{1, .1 * (.5 + .5/4), .01 / 4, .001 / 4}},
		{"yarn, exact ends", with(func(r *Rope) { r.Kind, r.Factor, r.High, r.Low, r.Original, r.Exact = RopeYaRN, 4, 32, 1, 64, true }), 1,
			[]float64{1, .1 * (.00793661189 + (1-.00793661189)/4), .01 / 4, .001 / 4}},
	} {
		got := tt.r.Frequencies(tt.seq)
		for i, w := range tt.want {
			if !(math.Abs(got[i]-w) <= 1e-6*math.Abs(w)) || len(got) != len(tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
				break
			}
		}
	}
}

func ExampleParse() {
	c, err := Parse("config.json", `{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
		"num_key_value_heads": 8, "intermediate_size": 3072, "vocab_size": 151936, "rope_theta": 1000000, "tie_word_embeddings": true}`, Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := Slots(c)[2]
	fmt.Println(c.Layers[0].Attn.HeadDim, c.Layers[0].Attn.QKNorm, c.Parameters())
	fmt.Println(s.Name, s.GGUF.Name, s.Shape, s.Role)
	// Output:
	// 128 head 596049920
	// model.layers.0.self_attn.q_proj.weight blk.0.attn_q.weight [2048 1024] q
}

// The models that other tests use are read too.
func TestParsesOwnModels(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"../testdata/models/*/config.json", goldens + "/*/*/*/config.json", goldens + "/trajectory/*/config.json"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	if len(paths) < 5 {
		t.Fatalf("found %d configurations only", len(paths))
	}
	for _, p := range paths {
		if c := parseFile(t, p); c.Family != "qwen2" || c.NotComputed() != "" {
			t.Errorf("%s: %s", p, c.JSON())
		}
	}
}
