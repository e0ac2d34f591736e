package arch

// Qwen3: q and k normalised over heads, no biases.
var qwen3 = register(family{
	name: "qwen3", class: "Qwen3ForCausalLM", gguf: "qwen3",
	defaults: defaults{headDim: 128},
	set:      func(k *keys, c *Config) { k.qwenWindows(c); k.qwen3(c) },
	toHF:     func(c Config, o object) { c.hfNoWindow(o); c.hfBias(o, false) },
})

// qwen3 sets what models with and without experts share.
func (k *keys) qwen3(c *Config) {
	k.bias(c)
	rope := k.ropeFor(c, ropeRules{})
	c.each(func(_ int, l *Layer) { l.Attn.QKNorm, l.Attn.Rope = HeadNorm, rope(fullType, l.Attn.HeadDim) })
}
