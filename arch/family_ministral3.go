package arch

// Ministral 3: YaRN, and queries scaled by their position.
var ministral3 = family{
	name: "ministral3", nested: []string{"mistral3"}, class: "Ministral3ForCausalLM", gguf: "mistral3", computed: true,
	defaults: defaults{eps: 1e-5},
	set: func(k *keys, c *Config) {
		k.windows(c, 0, 0)
		k.qScale(c)
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
}
