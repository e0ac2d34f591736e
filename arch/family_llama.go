package arch

// Llama 2 and 3, and the many models that use their layers.
var _ = register(family{
	name: "llama", class: "LlamaForCausalLM", gguf: "llama",
	set: func(k *keys, c *Config) {
		k.bias(c)
		rope := k.ropeFor(c, ropeRules{})
		c.each(func(_ int, l *Layer) { l.Attn.Rope = rope(fullType, l.Attn.HeadDim) })
	},
	stored: stored{pairs: true, ropeFactors: true},
	toHF:   func(c Config, o object) { c.hfBias(o, true) },
})
