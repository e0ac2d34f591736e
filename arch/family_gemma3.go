package arch

import "math"

// Gemma 3: as Gemma 2 without soft-caps; q and k normalised over heads; a rotary base for windowed layers.
var _ = register(family{
	name: "gemma3_text", nested: []string{"gemma3"}, class: "Gemma3ForCausalLM", gguf: "gemma3",
	byType:   true,
	defaults: defaults{headDim: 256, heads: 8, kvHeads: 4, vocab: 262208, positions: 131072, tied: true, act: GELUTanh},
	set: func(k *keys, c *Config) {
		c.gemma(k, 1)
		cap := capOf(k, "attn_logit_softcapping", 0)
		c.FinalCap = capOf(k, "final_logit_softcapping", 0)
		types := k.windows(c, 4096, 6)
		rope := k.ropeFor(c, ropeRules{theta: 1e6, localTheta: 1e4})
		scalar := k.float("query_pre_attn_scalar", 256)
		c.each(func(i int, l *Layer) {
			a := &l.Attn
			a.Cap, a.Scale, a.QKNorm, a.Rope = cap, 1/math.Sqrt(scalar), HeadNorm, rope(types[i], a.HeadDim)
		})
	},
	stored: stored{plusOne: true}, windowed: true, rootScale: true, period: 6,
	fromGGUF: func(r *ggufReader, o object, _ []int) {
		r.gemmaScale(o)
		o["rope_local_base_freq"] = r.float("gemma3.rope.freq_base_swa", 10000)
	},
	toHF: func(c Config, o object) {
		c.gemmaToHF(o)
		for i, l := range c.Layers {
			if r, ok := c.Rope(i); ok && l.Attn.Window > 0 {
				o["rope_local_base_freq"] = r.Theta
			}
		}
	},
})
