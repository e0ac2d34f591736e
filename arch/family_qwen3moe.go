package arch

import "slices"

// Qwen3 with experts: Qwen3's attention; softmax over all experts before the choice.
var _ = register(family{
	name: "qwen3_moe", class: "Qwen3MoeForCausalLM", gguf: "qwen3moe",
	defaults: defaults{headDim: 128},
	set: func(k *keys, c *Config) {
		k.only("use_sliding_window", false) // versions of transformers disagree about the layers that have one
		k.switched(c, 4096, func(int) bool { return false })
		k.qwen3(c)
		moe := MoE{
			Experts: k.experts(), Active: k.size("num_experts_per_tok"), Width: k.size("moe_intermediate_size"),
			Renorm: k.flag("norm_topk_prob", false),
		}
		dense, step := k.sizes("mlp_only_layers"), k.sizeOr("decoder_sparse_step", 1)
		if step == 0 {
			k.fail("decoder_sparse_step", "0 is not a step")
			return
		}
		c.each(func(i int, l *Layer) {
			if !slices.Contains(dense, i) && (i+1)%step == 0 {
				l.FFN.Width, l.FFN.MoE = 0, moe
			}
		})
	},
	stored: stored{experts: expertsEach},
	fromGGUF: func(r *ggufReader, o object, _ []int) {
		r.moe(o)
		o["norm_topk_prob"] = true // llama.cpp has no other
		var dense []int
		for i := range o["num_hidden_layers"].(int) {
			if !r.tensor(i, "ffn_gate_inp.weight") {
				dense = append(dense, i)
			}
		}
		o["mlp_only_layers"] = dense
	},
	toHF: func(c Config, o object) {
		qwen3.toHF(c, o)
		dense := []int{}
		for i, l := range c.Layers {
			if m := l.FFN.MoE; m == (MoE{}) {
				dense = append(dense, i)
			} else {
				o["num_experts"], o["num_local_experts"], o["num_experts_per_tok"] = m.Experts, m.Experts, m.Active
				o["moe_intermediate_size"], o["norm_topk_prob"] = m.Width, m.Renorm
			}
		}
		o["mlp_only_layers"], o["decoder_sparse_step"] = dense, 1
	},
})

// experts reads the number of experts under either of its names.
func (k *keys) experts() int {
	if k.has("num_local_experts") {
		n := k.size("num_local_experts")
		k.repeats("num_experts", n, "num_local_experts")
		return n
	}
	return k.size("num_experts")
}
