package aprfile

import "testing"

func TestNamesOfGGUF(t *testing.T) {
	for in, want := range map[string]string{
		"token_embd.weight":         "model.embed_tokens.weight",
		"output.weight":             "lm_head.weight",
		"output_norm.weight":        "model.norm.weight",
		"blk.0.attn_q.weight":       "model.layers.0.self_attn.q_proj.weight",
		"blk.0.attn_q.bias":         "model.layers.0.self_attn.q_proj.bias",
		"blk.27.attn_output.weight": "model.layers.27.self_attn.o_proj.weight",
		"blk.3.attn_norm.weight":    "model.layers.3.input_layernorm.weight",
		"blk.3.ffn_norm.weight":     "model.layers.3.post_attention_layernorm.weight",
		"blk.3.ffn_down.weight":     "model.layers.3.mlp.down_proj.weight",
		"blk.03.ffn_down.weight":    "",
		"blk.+3.ffn_down.weight":    "",
		"blk.-3.ffn_down.weight":    "",
		"blk.x.ffn_down.weight":     "",
		"blk.3.ffn_down":            "",
		"blk.3.ffn_down.scale":      "",
		"blk.3.ffn_other.weight":    "",
		"model.norm.weight":         "",
		"":                          "",
	} {
		if got, ok := toHF(in); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
}
