package arch

// Qwen2 and Qwen2.5: biases on q, k and v.
var _ = register(family{
	name: "qwen2", class: "Qwen2ForCausalLM", gguf: "qwen2", square: true,
	set: func(k *keys, c *Config) {
		k.qwenWindows(c)
		k.only("use_mrope", false)
		rope := k.ropeFor(c, ropeRules{})
		c.each(func(_ int, l *Layer) { l.Attn.QKVBias, l.Attn.Rope = true, rope(fullType, l.Attn.HeadDim) })
	},
	toHF: func(c Config, o object) { c.hfNoWindow(o) },
})
