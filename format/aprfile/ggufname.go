package aprfile

// Some writers put tensors under the names of GGUF into .apr files.

import (
	"strconv"
	"strings"
)

// whole maps names outside the blocks.
var whole = map[string]string{
	"token_embd.weight":  "model.embed_tokens.weight",
	"output_norm.weight": "model.norm.weight",
	"output.weight":      "lm_head.weight",
}

// inBlock maps the middle part of blk.N.PART.{weight,bias}.
var inBlock = map[string]string{
	"attn_norm":   "input_layernorm",
	"attn_q":      "self_attn.q_proj",
	"attn_k":      "self_attn.k_proj",
	"attn_v":      "self_attn.v_proj",
	"attn_output": "self_attn.o_proj",
	"ffn_norm":    "post_attention_layernorm",
	"ffn_gate":    "mlp.gate_proj",
	"ffn_up":      "mlp.up_proj",
	"ffn_down":    "mlp.down_proj",
}

// toHF returns the Hugging Face name of the GGUF name, and false if name is not one that is known here.
func toHF(name string) (string, bool) {
	if hf, ok := whole[name]; ok {
		return hf, true
	}
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return "", false
	}
	layer, rest, ok := strings.Cut(rest, ".")
	n, err := strconv.Atoi(layer)
	if !ok || err != nil || strconv.Itoa(n) != layer || n < 0 { // "07" or "+7" would make two names of one
		return "", false
	}
	part, kind, ok := strings.Cut(rest, ".")
	hf, known := inBlock[part]
	if !ok || !known || kind != "weight" && kind != "bias" {
		return "", false
	}
	return "model.layers." + layer + "." + hf + "." + kind, true
}
