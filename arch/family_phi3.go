package arch

// Phi-3 and Phi-4: q, k and v in one tensor, gate and up in another; longrope; part of a head may be rotated.
var _ = register(family{
	name: "phi3", class: "Phi3ForCausalLM", gguf: "phi3", square: true,
	defaults:  defaults{eps: 1e-5},
	published: []string{"Phi3Config", "Phi3ForCausalLM"},
	set: func(k *keys, c *Config) {
		k.windows(c, 0, 0)
		k.only("attention_bias", false)
		k.only("mlp_bias", false)
		k.only("lm_head_bias", false)
		k.only("full_attn_mod", 1)
		k.only("interpolate_factor", 1)
		rope := k.ropeFor(c, ropeRules{original: 4096})
		c.each(func(_ int, l *Layer) { l.Attn.Rope = rope(fullType, l.Attn.HeadDim) })
	},
	stored:   stored{qkv: "self_attn.qkv_proj", gateUp: "mlp.gate_up_proj", fusedGGUF: true, ropeFactors: true},
	windowed: true,
	toGGUF: func(w *ggufWriter) {
		if w.c.attention().Window == 0 {
			w.count("attention.sliding_window", 0) // none
		}
	},
	toHF: func(c Config, o object) {
		c.hfWindows(o, false)
		o["attention_bias"], o["embd_pdrop"], o["resid_pdrop"] = false, 0.0, 0.0
	},
})
