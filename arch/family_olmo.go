package arch

// OLMo 2: norms after mixer and FFN instead of before; q and k normalised over whole rows.
var _ = register(family{
	name: "olmo2", class: "Olmo2ForCausalLM", gguf: "olmo2", square: true,
	defaults: defaults{eps: 1e-5},
	set: func(k *keys, c *Config) {
		k.bias(c)
		rope := k.ropeFor(c, ropeRules{})
		c.each(func(_ int, l *Layer) {
			l.Pre, l.Post, l.Attn.QKNorm, l.Attn.Rope = false, true, RowNorm, rope(fullType, l.Attn.HeadDim)
		})
	},
	toHF: func(c Config, o object) { c.hfBias(o, false) },
})

// OLMo 3: the same with windows; scaled rotary embeddings on full layers only.
var _ = register(family{
	name: "olmo3", class: "Olmo3ForCausalLM", gguf: "olmo2", square: true,
	defaults: defaults{eps: 1e-5}, windowed: true,
	toGGUF: func(w *ggufWriter) { w.pattern() },
	set: func(k *keys, c *Config) {
		k.bias(c)
		types := k.windows(c, 4096, 4)
		rope := k.ropeFor(c, ropeRules{fullOnly: true})
		c.each(func(i int, l *Layer) {
			l.Pre, l.Post, l.Attn.QKNorm, l.Attn.Rope = false, true, RowNorm, rope(types[i], l.Attn.HeadDim)
		})
	},
	toHF: func(c Config, o object) { c.hfWindows(o, true); c.hfBias(o, false) }, byType: true,
})
