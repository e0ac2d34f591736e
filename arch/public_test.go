package arch

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// public are the keys of config.json of public models, with the values that they have there; sizes are tiny's, and lists are as
// long as its six layers.
var public = map[string]string{
	"Qwen2.5 0.5B": `"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","initializer_range":0.02,
		"max_position_embeddings":32768,"max_window_layers":21,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,
		"torch_dtype":"bfloat16","transformers_version":"4.43.1","use_cache":true,"use_mrope":false,"use_sliding_window":false`,
	"Qwen3 0.6B": `"model_type":"qwen3","architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"head_dim":128,"hidden_act":"silu",
		"initializer_range":0.02,"max_position_embeddings":40960,"max_window_layers":28,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,
		"sliding_window":null,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false`,
	"Qwen3 30B-A3B": `"model_type":"qwen3_moe","architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":1,"decoder_sparse_step":1,"eos_token_id":2,
		"head_dim":128,"hidden_act":"silu","initializer_range":0.02,"max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],"moe_intermediate_size":64,
		"norm_topk_prob":true,"num_experts":8,"num_experts_per_tok":2,"num_key_value_heads":2,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,
		"rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,
		"use_sliding_window":false`,
	"Qwen3.5 4B": `"model_type":"qwen3_5","architectures":["Qwen3_5ForConditionalGeneration"],"image_token_id":5,"tie_word_embeddings":true,"transformers_version":"4.57.0.dev0","video_token_id":6,
		"vision_config":{"deepstack_visual_indexes":[],"depth":2},"vision_end_token_id":7,"vision_start_token_id":8,"text_config":{TINY,"attention_bias":false,"attention_dropout":0.0,
		"attn_output_gate":true,"dtype":"bfloat16","eos_token_id":2,"full_attention_interval":4,"head_dim":256,"hidden_act":"silu","initializer_range":0.02,"layer_types":[3 linear],
		"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128,"max_position_embeddings":262144,
		"mlp_only_layers":[],"model_type":"qwen3_5_text","mtp_num_hidden_layers":1,"mtp_use_dedicated_embeddings":false,"num_key_value_heads":2,"rms_norm_eps":1e-06,"use_cache":true,
		"mamba_ssm_dtype":"float32","rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"rope_type":"default","rope_theta":10000000,"partial_rotary_factor":0.25}}`,
	"Llama 3.2 1B": `"model_type":"llama","architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":[2,3,4],"head_dim":64,"hidden_act":"silu",
		"initializer_range":0.02,"max_position_embeddings":131072,"mlp_bias":false,"num_key_value_heads":2,"pretraining_tp":1,"rms_norm_eps":1e-05,
		"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
		"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.45.0.dev0","use_cache":true`,
	"SmolLM2 135M": `"model_type":"llama","architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu",
		"initializer_range":0.041666666666666664,"is_llama_config":true,"max_position_embeddings":8192,"mlp_bias":false,"num_key_value_heads":2,"pad_token_id":2,"pretraining_tp":1,
		"rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
		"transformers.js_config":{"kv_cache_dtype":{"q4f16":"float16","fp16":"float16"}},"transformers_version":"4.42.3","use_cache":true`,
	"fine-tuned Llama": `"model_type":"llama","_attn_implementation_internal":"sdpa","_commit_hash":null,"_name_or_path":"x","attn_implementation":"sdpa","neftune_noise_alpha":5,"sliding_window":null,
		"unk_token_id":0,"unsloth_version":"2024.9","use_sliding_window":false,"id2label":{"0":"LABEL_0"},"clip_qkv":null`,
	"SmolLM3 3B": `"model_type":"smollm3","architectures":["SmolLM3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":null,"eos_token_id":2,"hidden_act":"silu",
		"initializer_range":0.02,"layer_types":[6 full],"max_position_embeddings":65536,"max_window_layers":28,"mlp_bias":false,"no_rope_layer_interval":4,"no_rope_layers":[1,1,1,0,1,1],
		"num_key_value_heads":2,"pad_token_id":3,"pretraining_tp":2,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":5000000.0,"sliding_window":null,"torch_dtype":"bfloat16",
		"transformers_version":"4.54.0.dev0","use_cache":false,"use_sliding_window":false`,
	"Mistral 7B v0.3": `"model_type":"mistral","architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","initializer_range":0.02,
		"max_position_embeddings":32768,"num_key_value_heads":2,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
		"transformers_version":"4.42.0.dev0","use_cache":true`,
	"Mistral Nemo": `"model_type":"mistral","architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"head_dim":128,"hidden_act":"silu","initializer_range":0.02,
		"max_position_embeddings":131072,"num_key_value_heads":2,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
		"transformers_version":"4.43.0.dev0","use_cache":true`,
	"Ministral 3 3B": `"model_type":"mistral3","architectures":["Mistral3ForConditionalGeneration"],"dtype":"bfloat16","image_token_index":10,"multimodal_projector_bias":false,
		"projector_hidden_act":"gelu","quantization_config":{"activation_scheme":"static","dequantize":false,"modules_to_not_convert":["lm_head"],"quant_method":"fp8","weight_block_size":null},
		"spatial_merge_size":2,"transformers_version":"5.0.0.dev0","vision_config":{"model_type":"pixtral"},"vision_feature_layer":-1,"text_config":{TINY,"attention_dropout":0.0,"head_dim":128,
		"hidden_act":"silu","initializer_range":0.02,"max_position_embeddings":262144,"model_type":"ministral3","num_key_value_heads":2,"rms_norm_eps":1e-05,
		"rope_parameters":{"beta_fast":32.0,"beta_slow":1.0,"factor":16.0,"llama_4_scaling_beta":0.1,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":16384,
		"rope_theta":1000000.0,"rope_type":"yarn","type":"yarn"},"sliding_window":null,"tie_word_embeddings":true,"use_cache":true}`,
	"Devstral 2": `"model_type":"ministral3","architectures":["Ministral3ForCausalLM"],"head_dim":12,"max_position_embeddings":262144,"num_key_value_heads":2,"rms_norm_eps":1e-5,
		"rope_parameters":{"beta_fast":4.0,"beta_slow":1.0,"factor":64.0,"mscale":1.0,"mscale_all_dim":0.0,"original_max_position_embeddings":4096,"llama_4_scaling_beta":0.0,
		"rope_theta":1000000.0,"rope_type":"yarn","type":"yarn"},"sliding_window":null,"tie_word_embeddings":false`,
	"Phi-3 mini 4k": `"model_type":"phi3","_name_or_path":"Phi-3-mini-4k-instruct","architectures":["Phi3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
		"auto_map":{"AutoConfig":"configuration_phi3.Phi3Config","AutoModelForCausalLM":"modeling_phi3.Phi3ForCausalLM"},"bos_token_id":1,"embd_pdrop":0.0,"eos_token_id":3,"hidden_act":"silu",
		"initializer_range":0.02,"max_position_embeddings":4096,"num_key_value_heads":4,"original_max_position_embeddings":4096,"pad_token_id":3,"resid_pdrop":0.0,"rms_norm_eps":1e-05,
		"rope_scaling":null,"rope_theta":10000.0,"sliding_window":2047,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.40.2","use_cache":true`,
	"Phi-4": `"model_type":"phi3","architectures":["Phi3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":1,"embd_pdrop":0.0,"eos_token_id":2,"hidden_act":"silu",
		"initializer_range":0.02,"max_position_embeddings":16384,"num_key_value_heads":2,"original_max_position_embeddings":16384,"pad_token_id":3,"resid_pdrop":0.0,"rms_norm_eps":1e-05,
		"rope_scaling":null,"rope_theta":250000,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.47.0","use_cache":true`,
	"Phi-4-mini": `"model_type":"phi3","architectures":["Phi3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"auto_map":{"AutoConfig":"configuration_phi3.Phi3Config",
		"AutoModelForCausalLM":"modeling_phi3.Phi3ForCausalLM","AutoTokenizer":"Xenova/gpt-4o"},"bos_token_id":1,"embd_pdrop":0.0,"eos_token_id":2,"full_attn_mod":1,"hidden_act":"silu",
		"initializer_range":0.02,"interpolate_factor":1,"lm_head_bias":false,"max_position_embeddings":131072,"mlp_bias":false,"num_key_value_heads":2,
		"original_max_position_embeddings":4096,"pad_token_id":1,"partial_rotary_factor":0.67,"resid_pdrop":0.0,"rms_norm_eps":1e-05,
		"rope_scaling":{"long_factor":[1,1.1,2,4],"short_factor":[1,1,1,1],"type":"longrope"},"rope_theta":10000.0,"sliding_window":262144,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
		"transformers_version":"4.45.0","use_cache":true`,
	"OLMo 2 1B": `"model_type":"olmo2","architectures":["Olmo2ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"eos_token_id":2,"hidden_act":"silu","initializer_range":0.02,
		"max_position_embeddings":4096,"num_key_value_heads":4,"pad_token_id":3,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":500000,"tie_word_embeddings":false,"torch_dtype":"float32",
		"transformers_version":"4.49.0","use_cache":true`,
	"OLMo 3 7B": `"model_type":"olmo3","architectures":["Olmo3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"dtype":"bfloat16","eos_token_id":2,"hidden_act":"silu","initializer_range":0.02,
		"layer_types":[3 sliding],"max_position_embeddings":65536,"num_key_value_heads":4,"pad_token_id":3,"rms_norm_eps":1e-06,
		"rope_scaling":{"attention_factor":1.2079441541679836,"beta_fast":32.0,"beta_slow":1.0,"factor":8.0,"original_max_position_embeddings":8192,"rope_type":"yarn"},
		"rope_theta":500000,"sliding_window":4096,"tie_word_embeddings":false,"transformers_version":"4.57.1","use_cache":true`,
	"Granite 3.3 2B": `"model_type":"granite","architectures":["GraniteForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attention_multiplier":0.015625,"bos_token_id":0,
		"embedding_multiplier":12.0,"eos_token_id":0,"hidden_act":"silu","initializer_range":0.02,"logits_scaling":8.0,"max_position_embeddings":131072,"mlp_bias":false,"num_key_value_heads":2,
		"pad_token_id":0,"residual_multiplier":0.22,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
		"transformers_version":"4.49.0","use_cache":true`,
	"Granite 4.0 micro": `"model_type":"granitemoehybrid","architectures":["GraniteMoeHybridForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attention_multiplier":0.015625,"bos_token_id":1,
		"embedding_multiplier":12,"eos_token_id":1,"hidden_act":"silu","init_method":"mup","initializer_range":0.1,"layer_types":[6 attention],"logits_scaling":10,"mamba_chunk_size":256,
		"mamba_conv_bias":true,"mamba_d_conv":4,"mamba_d_head":64,"mamba_d_state":256,"mamba_expand":2,"mamba_n_groups":1,"mamba_n_heads":2,"mamba_proj_bias":false,
		"max_position_embeddings":131072,"normalization_function":"rmsnorm","num_experts_per_tok":0,"num_key_value_heads":2,"num_local_experts":0,"output_router_logits":false,"pad_token_id":2,
		"position_embedding_type":"rope","residual_multiplier":0.22,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000000,"router_aux_loss_coef":0.01,"shared_intermediate_size":96,
		"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.56.0","use_cache":true`,
	"Gemma 2 9B": `"model_type":"gemma2","architectures":["Gemma2ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":50.0,"bos_token_id":2,"cache_implementation":"hybrid",
		"eos_token_id":1,"final_logit_softcapping":30.0,"head_dim":256,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","initializer_range":0.02,
		"max_position_embeddings":8192,"num_key_value_heads":2,"pad_token_id":0,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_theta":10000.0,"sliding_window":4096,
		"sliding_window_size":4096,"torch_dtype":"float32","transformers_version":"4.42.0.dev0","use_cache":true`,
	"Gemma 3 270M": `"model_type":"gemma3_text","_sliding_window_pattern":6,"architectures":["Gemma3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":null,"bos_token_id":2,
		"eos_token_id":[1,106],"final_logit_softcapping":null,"head_dim":256,"hidden_activation":"gelu_pytorch_tanh","initializer_range":0.02,"layer_types":[5 sliding],
		"max_position_embeddings":32768,"num_key_value_heads":1,"pad_token_id":0,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_local_base_freq":10000.0,"rope_scaling":null,
		"rope_theta":1000000.0,"sliding_window":512,"torch_dtype":"bfloat16","transformers_version":"4.55.0.dev0","use_bidirectional_attention":false,"use_cache":true`,
	"Gemma 3 4B": `"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],"boi_token_index":5,"eoi_token_index":6,"eos_token_id":[1,106],"image_token_index":7,"initializer_range":0.02,
		"mm_tokens_per_image":256,"torch_dtype":"bfloat16","transformers_version":"4.50.0.dev0","vision_config":{"hidden_size":1152},"text_config":{TINY,"model_type":"gemma3_text",
		"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024}`,
	"Gemma 4 31B": `"model_type":"gemma4","architectures":["Gemma4ForConditionalGeneration"],"audio_config":null,"boi_token_id":5,"dtype":"bfloat16","eos_token_id":[1,106],"image_token_id":7,
		"initializer_range":0.02,"tie_word_embeddings":true,"transformers_version":"5.5.0.dev0","vision_config":{"hidden_size":1152},"text_config":{TINY,"attention_bias":false,
		"attention_dropout":0.0,"attention_k_eq_v":true,"bos_token_id":2,"dtype":"bfloat16","enable_moe_block":false,"eos_token_id":1,"expert_intermediate_size":null,
		"final_logit_softcapping":30.0,"global_head_dim":512,"head_dim":256,"hidden_activation":"gelu_pytorch_tanh","hidden_size_per_layer_input":0,"initializer_range":0.02,
		"layer_types":[5 sliding],"max_position_embeddings":262144,"model_type":"gemma4_text","moe_intermediate_size":null,"num_experts":null,"num_global_key_value_heads":1,
		"num_key_value_heads":2,"num_kv_shared_layers":0,"pad_token_id":0,"rms_norm_eps":1e-06,"rope_parameters":{"full_attention":{"partial_rotary_factor":0.25,"rope_theta":1000000.0,
		"rope_type":"proportional"},"sliding_attention":{"rope_theta":10000.0,"rope_type":"default"}},"sliding_window":1024,"tie_word_embeddings":true,"top_k_experts":null,
		"use_bidirectional_attention":"vision","use_cache":true,"use_double_wide_mlp":false,"vocab_size_per_layer_input":160}`,
	"gpt-oss 20b": `"model_type":"gpt_oss","architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,"eos_token_id":2,"experts_per_token":2,"head_dim":64,"hidden_act":"silu",
		"initial_context_length":4096,"initializer_range":0.02,"layer_types":[1 sliding],"max_position_embeddings":131072,"num_experts_per_tok":2,"num_key_value_heads":2,
		"num_local_experts":8,"output_router_logits":false,"pad_token_id":3,"quantization_config":{"modules_to_not_convert":["model.layers.*.self_attn"],"quant_method":"mxfp4"},
		"rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},
		"rope_theta":150000,"router_aux_loss_coef":0.9,"sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,"transformers_version":"4.55.0.dev0","use_cache":true`,
}

// publicText returns the config.json of a model of the table.
func publicText(text string) string {
	const sizes = `"hidden_size":48,"num_hidden_layers":6,"num_attention_heads":4,"intermediate_size":96,"vocab_size":160`
	period := func(n int, other string) string { // n of other, then a full one
		var list []string
		for i := range 6 {
			list = append(list, map[bool]string{true: `"full_attention"`, false: `"` + other + `"`}[i%(n+1) == n])
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	for mark, list := range map[string]string{
		"[1 sliding]": period(1, slidingType), "[3 sliding]": period(3, slidingType), "[5 sliding]": period(5, slidingType), "[3 linear]": period(3, linearType),
		"[6 full]": period(6, fullType), "[6 attention]": period(6, "attention"),
	} {
		text = strings.ReplaceAll(text, mark, list)
	}
	if strings.Contains(text, "TINY") {
		return "{" + strings.Replace(text, "TINY", sizes, 1) + "}"
	}
	return "{" + sizes + "," + text + "}"
}

// Configurations of public models are read as they are.
func TestPublicConfigurations(t *testing.T) {
	families := map[string]bool{}
	for name, text := range public {
		c, err := Parse(name, publicText(text), Options{})
		if err != nil {
			t.Errorf("%v: %s", err, publicText(text))
		}
		families[c.Family] = true
		if all := AssumedKeys(publicText(text), c); len(all) > 0 && name != "fine-tuned Llama" {
			t.Errorf("%s: %v", name, all)
		}
		if all := c.Implausible(); len(all) > 0 {
			t.Errorf("%s: %v", name, all)
		}
	}
	for _, f := range Families() {
		if !families[f] {
			t.Errorf("no configuration of %s", f)
		}
	}
}

// A key that all published configurations of a family state is missed where it is gone, wherever it stood; a Llama 2
// has none.
func TestAssumedKeys(t *testing.T) {
	const tiny = `"hidden_size":16,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,"intermediate_size":32,"vocab_size":64,`
	for _, tt := range []struct{ config, want string }{
		{`"model_type":"qwen2","max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":1e6`, "[]"},
		{`"model_type":"qwen2","max_position_embeddings":32768,"rms_norm_eps":1e-6`, "[has no rope_theta, as every published model of its family has: 10000 is used; was it removed?]"},
		{`"model_type":"qwen2","max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":null`, "[has no rope_theta, as every published model of its family has: 10000 is used; was it removed?]"},
		{`"model_type":"qwen2","max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_parameters":{}`, "[has no rope_theta, as every published model of its family has: 10000 is used; was it removed?]"},
		{`"model_type":"qwen2","max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_parameters":{"rope_type":"default","rope_theta":5e5}`, "[]"},
		{`"model_type":"qwen2","max_position_embeddings":32768,"rope_theta":1e6`, "[has no rms_norm_eps, as every published model of its family has: 1e-06 is used; was it removed?]"},
		{`"model_type":"llama","max_position_embeddings":4096,"rms_norm_eps":1e-5`, "[]"},
		{`"model_type":"llama","max_position_embeddings":8192,"rms_norm_eps":1e-5`, "[has no rope_theta, as every published model of its family has: 10000 is used; was it removed?]"},
	} {
		text := "{" + tiny + tt.config + "}"
		c, err := Parse("config.json", text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(AssumedKeys(text, c)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.config, got, tt.want)
		}
	}
}

// Numbers that no published model has are named once.
func TestImplausible(t *testing.T) {
	c := Qwen2(Sizes{Hidden: 16, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 8, Width: 16, Vocab: 64, MaxPositions: 64, Theta: 1e6, Eps: 1e-6})
	for _, tt := range []struct {
		eps, theta float64
		want       int
	}{{1e-6, 1e6, 0}, {1e-12, 100, 0}, {0.01, 1e9, 0}, {0.066, 1e6, 1}, {2e-6, 1e6, 1}, {1.0000001e-6, 1e6, 1}, {1e-6,
		1000064, 1}, {1e-6, 150000, 0}, {float64(float32(1e-5)), 1.3e5, 0}, {1, 1e6, 1}, {0, 1e6, 1}, {math.NaN(), 1e6, 1},
		{1e-6, 99, 1}, {1e-6, 1.1e9, 1}, {1e-6, math.Inf(1), 1}, {1e-6, math.NaN(), 1}, {1.4e-44, 1e-30, 2}} {
		c.Eps, c.Ropes[0].Theta = tt.eps, tt.theta
		c.Ropes = append(c.Ropes[:1], c.Ropes[0])
		if got := c.Implausible(); len(got) != tt.want {
			t.Errorf("%g, %g: %q", tt.eps, tt.theta, got)
		}
	}
}
