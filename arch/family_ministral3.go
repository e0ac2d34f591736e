package arch

// Ministral 3: YaRN, and queries scaled by their position.
var _ = register(family{
	name: "ministral3", nested: []string{"mistral3"}, class: "Ministral3ForCausalLM", gguf: "mistral3",
	defaults: defaults{eps: 1e-5},
	set: func(k *keys, c *Config) {
		k.windows(c, 0, 0)
		k.positionScale(c)
		rope := k.ropeFor(c, ropeRules{})
		c.each(func(_ int, l *Layer) { l.Attn.Rope = rope(fullType, l.Attn.HeadDim) })
	},
	stored:   stored{pairs: true},
	windowed: true,
	toGGUF: func(w *ggufWriter) {
		if a := w.c.attention(); a.QBeta != 0 {
			w.float("attention.temperature_scale", a.QBeta)
		}
	},
	toHF: func(c Config, o object) {
		c.hfWindows(o, false)
		for _, key := range []string{"rope_parameters", "rope_scaling"} {
			if r, ok := o[key].(object); ok && c.attention().QBeta != 0 {
				r["llama_4_scaling_beta"], r["original_max_position_embeddings"] = c.attention().QBeta, c.attention().QLength
			}
		}
	},
})
