package arch

// gpt-oss: biases everywhere, sinks, alternating windows, YaRN, clamped SwiGLU experts.
var _ = register(family{
	name: "gpt_oss", class: "GptOssForCausalLM", gguf: "gpt-oss",
	defaults: defaults{headDim: 64, eps: 1e-5},
	set: func(k *keys, c *Config) {
		bias := k.flag("attention_bias", true)
		types := k.windows(c, 128, 2)
		k.only("swiglu_limit", 7.0)
		k.has("initial_context_length")
		active := k.size("num_experts_per_tok")
		k.repeats("experts_per_token", active, "num_experts_per_tok")
		moe := MoE{Experts: k.experts(), Active: active, Width: c.Layers[0].FFN.Width, TopKFirst: true, Bias: true}
		rope := k.ropeFor(c, ropeRules{theta: 150000})
		c.each(func(i int, l *Layer) {
			a := &l.Attn
			a.QKVBias, a.OBias, a.Sinks, a.Rope = bias, bias, true, rope(types[i], a.HeadDim)
			l.FFN = FFN{Act: OSS, MoE: moe}
		})
	},
	stored: stored{experts: expertsOSS, ffnNormGGUF: "post_attention_norm"}, windowed: true, period: 2,
	fromGGUF: func(r *ggufReader, o object, _ []int) {
		r.moe(o)
		o["intermediate_size"] = o["moe_intermediate_size"]
		delete(o, "moe_intermediate_size")
		if y, ok := o["rope_scaling"].(object); ok {
			y["truncate"] = false // GGUF has no key for it
		}
	},
	toHF: func(c Config, o object) {
		m := c.Layers[0].FFN.MoE
		c.hfWindows(o, true)
		c.hfBias(o, false)
		o["num_local_experts"], o["num_experts_per_tok"], o["experts_per_token"], o["swiglu_limit"] = m.Experts, m.Active, m.Active, 7.0
	},
})
