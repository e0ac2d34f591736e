package arch

// SmolLM3: Llama's layers; every fourth has no rotary embedding.
var _ = register(family{
	name: "smollm3", class: "SmolLM3ForCausalLM", gguf: "smollm3",
	defaults: defaults{tied: true},
	set: func(k *keys, c *Config) {
		k.bias(c)
		interval := k.sizeOr("no_rope_layer_interval", 4)
		rotates := k.sizes("no_rope_layers") // 1: the layer has a rotary embedding
		if rotates != nil && len(rotates) != len(c.Layers) {
			k.fail("no_rope_layers", "%d entries for %d layers", len(rotates), len(c.Layers))
			return
		}
		turns := func(i int) bool {
			return rotates != nil && rotates[i] != 0 || rotates == nil && (interval == 0 || (i+1)%interval != 0)
		}
		k.switched(c, 0, func(i int) bool { return !turns(i) })
		rope := k.ropeFor(c, ropeRules{theta: 2e6})
		c.each(func(i int, l *Layer) {
			if turns(i) {
				l.Attn.Rope = rope(fullType, l.Attn.HeadDim)
			}
		})
	},
	stored: stored{pairs: true},
	toHF: func(c Config, o object) {
		c.hfNoWindow(o)
		c.hfBias(o, true)
		var rotates []int
		for _, l := range c.Layers {
			rotates = append(rotates, map[bool]int{true: 1}[l.Attn.Rope >= 0])
		}
		o["no_rope_layers"], o["no_rope_layer_interval"] = rotates, 4
	},
})
