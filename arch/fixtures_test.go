package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

const goldens = "../testdata/golden"

// fixtures reads the configurations of all goldens, by name.
func fixtures(t testing.TB) map[string]Config {
	t.Helper()
	all := map[string]Config{}
	for _, kind := range []string{"families", "variants"} {
		dirs, err := filepath.Glob(filepath.Join(goldens, kind, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			all[filepath.Base(dir)] = parseFile(t, filepath.Join(dir, "config.json"))
		}
	}
	if len(all) != 27 {
		t.Fatalf("%d goldens, want 27", len(all))
	}
	return all
}

func parseFile(t testing.TB, path string) Config {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(path, string(text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func parseText(t testing.TB, text string) Config {
	t.Helper()
	c, err := Parse("config.json", text, Options{})
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return c
}

// sizes are public models, by the numbers that their configurations have: parameters of the text model, in 1e9 as
// spec models.md has them, or 0.
var sizes = []struct {
	name   string
	text   string
	params float64
}{
	{"Qwen3 0.6B", size("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, `"tie_word_embeddings":true`), .596},
	{"Qwen3 1.7B", size("qwen3", 2048, 28, 16, 8, 128, 6144, 151936, `"tie_word_embeddings":true`), 0},
	{"Qwen3 4B", size("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, `"tie_word_embeddings":true`), 0},
	{"Qwen3 8B", size("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, ``), 8.19},
	{"Qwen3 30B-A3B", size("qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, `"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true`), 30.5},
	{"Llama 3.2 1B", size("llama", 2048, 16, 32, 8, 64, 8192, 128256, `"tie_word_embeddings":true,`+llama3), 1.24},
	{"Llama 3.2 3B", size("llama", 3072, 28, 24, 8, 128, 8192, 128256, `"tie_word_embeddings":true,`+llama3), 3.21},
	{"Llama 3.1 8B", size("llama", 4096, 32, 32, 8, 128, 14336, 128256, llama3), 8.03},
	{"Mistral 7B v0.3", size("mistral", 4096, 32, 32, 8, 128, 14336, 32768, `"sliding_window":null`), 7.25},
	{"Mistral 7B v0.1", size("mistral", 4096, 32, 32, 8, 128, 14336, 32000, `"sliding_window":4096`), 7.24},
	{"Ministral 3 3B", size("ministral3", 3072, 26, 32, 8, 128, 9216, 131072, `"tie_word_embeddings":true,"rope_parameters":{"rope_type":"yarn","rope_theta":1e6,"factor":16.0,"original_max_position_embeddings":16384,"beta_fast":32.0,"beta_slow":1.0,"mscale":1.0,"mscale_all_dim":1.0,"llama_4_scaling_beta":0.1}`), 0},
	{"Gemma 2 2B", size("gemma2", 2304, 26, 8, 4, 256, 9216, 256000, ``), 2.61},
	{"Gemma 3 1B", size("gemma3_text", 1152, 26, 4, 1, 256, 6912, 262144, ``), 1.0},
	{"Gemma 3 4B", size("gemma3_text", 2560, 34, 8, 4, 256, 10240, 262208, `"rope_scaling":{"rope_type":"linear","factor":8.0}`), 3.88},
	{"Gemma 3 27B", size("gemma3_text", 5376, 62, 32, 16, 128, 21504, 262208, `"query_pre_attn_scalar":168,"rope_scaling":{"rope_type":"linear","factor":8.0}`), 27.0},
	{"Gemma 4 E2B", size("gemma4_text", 1536, 35, 8, 1, 256, 6144, 262144, `"num_kv_shared_layers":20,"use_double_wide_mlp":true,"sliding_window_pattern":5,`+gemma4Rope), 4.63},
	{"Gemma 4 E4B", size("gemma4_text", 2560, 42, 8, 2, 256, 10240, 262144, `"num_kv_shared_layers":18,`+gemma4Rope), 7.46},
	{"Gemma 4 31B", size("gemma4_text", 5376, 60, 32, 16, 256, 21504, 262144, `"hidden_size_per_layer_input":0,"attention_k_eq_v":true,"num_global_key_value_heads":4,`+gemma4Rope), 30.7},
	{"Gemma 4 26B-A4B", size("gemma4_text", 2816, 30, 16, 8, 256, 2112, 262144, `"hidden_size_per_layer_input":0,"attention_k_eq_v":true,"num_global_key_value_heads":2,"enable_moe_block":true,"num_experts":128,"top_k_experts":8,"moe_intermediate_size":704,`+gemma4Rope), 25.2},
	{"gpt-oss 20b", size("gpt_oss", 2880, 24, 64, 8, 64, 2880, 201088, `"num_local_experts":32,"num_experts_per_tok":4,"rope_scaling":{"rope_type":"yarn","factor":32.0,"original_max_position_embeddings":4096,"beta_fast":32.0,"beta_slow":1.0,"truncate":false}`), 20.9},
	{"Phi-4-mini", size("phi3", 3072, 32, 24, 8, 128, 8192, 200064, `"tie_word_embeddings":true,"partial_rotary_factor":0.75`), 3.84},
	{"Phi-4", size("phi3", 5120, 40, 40, 10, 128, 17920, 100352, ``), 14.7},
	{"SmolLM3 3B", size("smollm3", 2048, 36, 16, 4, 128, 11008, 128256, ``), 3.08},
	{"OLMo 3 7B", size("olmo3", 4096, 32, 32, 32, 128, 11008, 100278, ``), 7.3},
	{"Qwen3.5 0.8B", size("qwen3_5_text", 1024, 24, 8, 2, 256, 3584, 248320, `"tie_word_embeddings":true,"linear_num_value_heads":16`), .752},
	{"Qwen3.5 4B", size("qwen3_5_text", 2560, 32, 16, 4, 256, 9216, 248320, `"tie_word_embeddings":true`), 4.21},
	{"Qwen3.5 9B", size("qwen3_5_text", 4096, 32, 16, 4, 256, 12288, 248320, ``), 8.95},
	{"Granite 3 2B", size("granite", 2048, 40, 32, 8, 64, 8192, 49155, `"tie_word_embeddings":true,"attention_multiplier":0.015625,"embedding_multiplier":12.0,"residual_multiplier":0.22,"logits_scaling":8.0`), 2.53},
	{"Granite 4 micro", size("granitemoehybrid", 2560, 40, 40, 8, 64, 8192, 100352, `"tie_word_embeddings":true,"shared_intermediate_size":8192,"attention_multiplier":0.015625,"embedding_multiplier":12,"residual_multiplier":0.22,"logits_scaling":10`), 3.4},
	{"Qwen2.5 0.5B", size("qwen2", 896, 24, 14, 2, 64, 4864, 151936, `"tie_word_embeddings":true`), .494},
}

const (
	llama3     = `"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}`
	gemma4Rope = `"final_logit_softcapping":30.0,"rope_parameters":{"full_attention":{"rope_type":"proportional","rope_theta":1000000.0,"partial_rotary_factor":0.25},"sliding_attention":{"rope_type":"default","rope_theta":10000.0}}`
)

// size returns a config.json.
func size(modelType string, h, n, nq, nk, d, i, v int, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"model_type":%q,"hidden_size":%d,"num_hidden_layers":%d,"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,"intermediate_size":%d,"vocab_size":%d,"max_position_embeddings":131072%s}`,
		modelType, h, n, nq, nk, d, i, v, more)
}
