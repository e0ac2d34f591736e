package arch

// Mistral 7B, Nemo and Small: Llama's layers, with a window on all of them unless it is null.
var _ = register(family{
	name: "mistral", class: "MistralForCausalLM", gguf: "llama",
	set: func(k *keys, c *Config) {
		k.windows(c, 4096, 0)
		rope := k.ropeFor(c, ropeRules{})
		c.each(func(_ int, l *Layer) { l.Attn.Rope = rope(fullType, l.Attn.HeadDim) })
	},
	windowed: true,
	stored:   stored{pairs: true, ropeFactors: true},
	toHF:     func(c Config, o object) { c.hfWindows(o, false) },
})
