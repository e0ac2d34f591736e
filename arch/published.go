package arch

import (
	"maps"
	"slices"
	"strings"

	"apr/internal/fault"
)

// published are configurations of public models by name: what their config.json say of the arithmetic, without ids of
// tokens.
var published = map[string]string{
	"qwen2.5-0.5b": shape("qwen2", "896/24/14:2/64/4864/151936", `"tie_word_embeddings":true,"rope_theta":1e6,"max_position_embeddings":32768`),
	"qwen2.5-1.5b": shape("qwen2", "1536/28/12:2/128/8960/151936", `"tie_word_embeddings":true,"rope_theta":1e6,"max_position_embeddings":32768`),
	"qwen2.5-7b":   shape("qwen2", "3584/28/28:4/128/18944/152064", `"rope_theta":1e6,"max_position_embeddings":32768`),
	"qwen2.5-72b":  shape("qwen2", "8192/80/64:8/128/29568/152064", `"rope_theta":1e6,"max_position_embeddings":32768`),
	"qwen3-0.6b":   shape("qwen3", "1024/28/16:8/128/3072/151936", `"tie_word_embeddings":true,`+qwen3Keys),
	"qwen3-1.7b":   shape("qwen3", "2048/28/16:8/128/6144/151936", `"tie_word_embeddings":true,`+qwen3Keys),
	"qwen3-4b":     shape("qwen3", "2560/36/32:8/128/9728/151936", `"tie_word_embeddings":true,`+qwen3Keys),
	"qwen3-8b":     shape("qwen3", "4096/36/32:8/128/12288/151936", qwen3Keys),
	"qwen3-30b-a3b": shape("qwen3_moe", "2048/48/32:4/128/6144/151936", qwen3Keys+
		`,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true`),
	"llama3.2-1b":    shape("llama", "2048/16/32:8/64/8192/128256", `"tie_word_embeddings":true,`+llama3Keys(32)),
	"llama3.2-3b":    shape("llama", "3072/28/24:8/128/8192/128256", `"tie_word_embeddings":true,`+llama3Keys(32)),
	"llama3.1-8b":    shape("llama", "4096/32/32:8/128/14336/128256", llama3Keys(8)),
	"llama3.1-70b":   shape("llama", "8192/80/64:8/128/28672/128256", llama3Keys(8)),
	"mistral-7b":     shape("mistral", "4096/32/32:8/128/14336/32768", `"rope_theta":1e6,"rms_norm_eps":1e-5,"max_position_embeddings":32768,"sliding_window":null`),
	"ministral3-3b":  shape("ministral3", "3072/26/32:8/128/9216/131072", `"tie_word_embeddings":true,"rms_norm_eps":1e-5,"max_position_embeddings":262144,"rope_parameters":{"rope_type":"yarn","rope_theta":1e6,"factor":16,"original_max_position_embeddings":16384,"beta_fast":32,"beta_slow":1,"mscale":1,"mscale_all_dim":1,"llama_4_scaling_beta":0.1}`),
	"gemma2-2b":      shape("gemma2", "2304/26/8:4/256/9216/256000", `"max_position_embeddings":8192,"sliding_window":4096,"query_pre_attn_scalar":256,"attn_logit_softcapping":50,"final_logit_softcapping":30`),
	"gemma3-1b":      shape("gemma3_text", "1152/26/4:1/256/6912/262144", `"max_position_embeddings":32768,"sliding_window":512,"query_pre_attn_scalar":256`),
	"gemma3-4b":      shape("gemma3_text", "2560/34/8:4/256/10240/262208", gemma3Keys+`,"query_pre_attn_scalar":256`),
	"gemma3-12b":     shape("gemma3_text", "3840/48/16:8/256/15360/262208", gemma3Keys+`,"query_pre_attn_scalar":256`),
	"gemma3-27b":     shape("gemma3_text", "5376/62/32:16/128/21504/262208", gemma3Keys+`,"query_pre_attn_scalar":168`),
	"gemma4-e2b":     shape("gemma4_text", "1536/35/8:1/256/6144/262144", gemma4Keys+`,"num_kv_shared_layers":20,"use_double_wide_mlp":true,"sliding_window_pattern":5`),
	"gemma4-e4b":     shape("gemma4_text", "2560/42/8:2/256/10240/262144", gemma4Keys+`,"num_kv_shared_layers":18`),
	"gemma4-31b":     shape("gemma4_text", "5376/60/32:16/256/21504/262144", gemma4Keys+`,"attention_k_eq_v":true,"num_global_key_value_heads":4,"hidden_size_per_layer_input":0`),
	"phi4-mini":      shape("phi3", "3072/32/24:8/128/8192/200064", `"tie_word_embeddings":true,"rms_norm_eps":1e-5,"max_position_embeddings":131072,"partial_rotary_factor":0.75,"sliding_window":null`),
	"phi4":           shape("phi3", "5120/40/40:10/128/17920/100352", `"rms_norm_eps":1e-5,"rope_theta":250000,"max_position_embeddings":16384,"sliding_window":null`),
	"smollm3-3b":     shape("smollm3", "2048/36/16:4/128/11008/128256", `"tie_word_embeddings":true,"rope_theta":5e6,"max_position_embeddings":65536`),
	"olmo2-7b":       shape("olmo2", "4096/32/32:32/128/11008/100352", `"rope_theta":5e5,"max_position_embeddings":4096`),
	"olmo3-7b":       shape("olmo3", "4096/32/32:32/128/11008/100278", `"rope_theta":5e5,"max_position_embeddings":65536,"sliding_window":4096`),
	"granite3-2b":    shape("granite", "2048/40/32:8/64/8192/49155", `"tie_word_embeddings":true,"rms_norm_eps":1e-5,"rope_theta":5e6,"max_position_embeddings":131072,"embedding_multiplier":12,"residual_multiplier":0.22,"attention_multiplier":0.015625,"logits_scaling":8`),
	"granite4-micro": shape("granite", "2560/40/40:8/64/8192/100352", `"tie_word_embeddings":true,"rms_norm_eps":1e-5,"rope_theta":1e7,"max_position_embeddings":131072,"embedding_multiplier":12,"residual_multiplier":0.22,"attention_multiplier":0.015625,"logits_scaling":10`),
	"gpt-oss-20b": shape("gpt_oss", "2880/24/64:8/64/2880/201088", `"num_local_experts":32,"num_experts_per_tok":4,"sliding_window":128,"rms_norm_eps":1e-5,"max_position_embeddings":131072,`+
		`"rope_parameters":{"rope_type":"yarn","rope_theta":150000,"factor":32,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,"truncate":false}`),
	"qwen3.5-0.8b": shape("qwen3_5_text", "1024/24/8:2/256/3584/248320", `"tie_word_embeddings":true,`+qwen35Keys(16)),
	"qwen3.5-4b":   shape("qwen3_5_text", "2560/32/16:4/256/9216/248320", `"tie_word_embeddings":true,`+qwen35Keys(32)),
	"qwen3.5-9b":   shape("qwen3_5_text", "4096/32/16:4/256/12288/248320", qwen35Keys(32)),
}

const (
	qwen3Keys  = `"rope_theta":1e6,"max_position_embeddings":40960`
	gemma3Keys = `"max_position_embeddings":131072,"sliding_window":1024,"rope_scaling":{"rope_type":"linear","factor":8}`
	gemma4Keys = `"max_position_embeddings":131072,"sliding_window":512,"global_head_dim":512,"final_logit_softcapping":30,"rope_parameters":{` +
		`"full_attention":{"rope_type":"proportional","rope_theta":1e6,"partial_rotary_factor":0.25},"sliding_attention":{"rope_type":"default","rope_theta":1e4}}`
)

func llama3Keys(factor int) string {
	return `"rms_norm_eps":1e-5,"rope_theta":5e5,"max_position_embeddings":131072,"rope_scaling":{"rope_type":"llama3","factor":` + layerKey(factor) +
		`,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}`
}

func qwen35Keys(valueHeads int) string {
	return `"max_position_embeddings":262144,"linear_num_key_heads":16,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4,"linear_num_value_heads":` +
		layerKey(valueHeads) + `,"rope_parameters":{"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.25}`
}

// shape returns a config.json: sizes are hidden/layers/heads:kv/head width/intermediate/vocabulary.
func shape(modelType, sizes, more string) string {
	f := strings.FieldsFunc(sizes, func(r rune) bool { return r == '/' || r == ':' })
	return `{"model_type":"` + modelType + `","dtype":"bfloat16","hidden_size":` + f[0] + `,"num_hidden_layers":` + f[1] + `,"num_attention_heads":` + f[2] +
		`,"num_key_value_heads":` + f[3] + `,"head_dim":` + f[4] + `,"intermediate_size":` + f[5] + `,"vocab_size":` + f[6] + `,` + more + `}`
}

// PublishedNames returns the names that Published knows.
func PublishedNames() []string { return slices.Sorted(maps.Keys(published)) }

// Published returns the description of a public model, without ids of tokens: "qwen3-8b". The prefix "qwen2.5-" may be left
// out.
func Published(name string) (Config, error) {
	name = strings.ToLower(name)
	text, ok := published[name]
	if !ok {
		text, ok = published["qwen2.5-"+name]
	}
	if !ok {
		f := fault.New(fault.Usage, "no published shape is called %q", name)
		if near := fault.Nearest(name, PublishedNames()); near != "" {
			return Config{}, f.WithHint("did you mean %q? known are %s", near, strings.Join(PublishedNames(), ", "))
		}
		return Config{}, f.WithHint("known are %s", strings.Join(PublishedNames(), ", "))
	}
	c, err := Parse("", text, Options{})
	c.BOS, c.EOS, c.Pad = -1, nil, -1 // the table has none
	return c, err
}
