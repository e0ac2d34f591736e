// Package ggufname translates the tensor names of GGUF into those of Hugging Face, which the program uses throughout,
// and back.
package ggufname

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

// ToHF returns the Hugging Face name of the GGUF name, and false if name is not one that is known here.
func ToHF(name string) (string, bool) {
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

// the inverse of whole and of inBlock
var wholeHF, inBlockHF = inverse(whole), inverse(inBlock)

func inverse(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[v] = k
	}
	return out
}

// FromHF returns the GGUF name of the Hugging Face name, and false if name is not one that is known here.
func FromHF(name string) (string, bool) {
	if g, ok := wholeHF[name]; ok {
		return g, true
	}
	rest, ok := strings.CutPrefix(name, "model.layers.")
	if !ok {
		return "", false
	}
	layer, rest, _ := strings.Cut(rest, ".")
	dot := strings.LastIndexByte(rest, '.')
	if dot < 0 {
		return "", false
	}
	part, known := inBlockHF[rest[:dot]]
	g := "blk." + layer + "." + part + rest[dot:]
	if back, ok := ToHF(g); !known || !ok || back != name {
		return "", false
	}
	return g, true
}
