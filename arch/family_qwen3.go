package arch

// Qwen3: q and k normalised over heads, no biases.
var qwen3 = register(family{
	name: "qwen3", class: "Qwen3ForCausalLM", gguf: "qwen3",
	defaults: defaults{headDim: 128},
	set: func(k *keys, c *Config) {
		k.noWindow(c)
		k.bias(c)
		rope := k.ropeFor(c, ropeRules{})
		c.each(func(_ int, l *Layer) { l.Attn.QKNorm, l.Attn.Rope = HeadNorm, rope(fullType, l.Attn.HeadDim) })
	},
	toHF: func(c Config, o object) { c.hfNoWindow(o); c.hfBias(o, false) },
})
