package arch

import (
	"math"

	"apr/internal/strictjson"
)

// Gemma 2: norms around mixer and FFN that multiply by 1+w, GELU, soft-caps, a window on every other layer.
var _ = register(family{
	name: "gemma2", class: "Gemma2ForCausalLM", gguf: "gemma2",
	defaults: defaults{headDim: 256, tied: true, act: GELUTanh},
	set: func(k *keys, c *Config) {
		c.gemma(k, 1)
		cap := capOf(k, "attn_logit_softcapping", 50)
		c.FinalCap = capOf(k, "final_logit_softcapping", 30)
		types := k.windows(c, 4096, 2)
		if n := k.sizeOr("sliding_window", 4096); k.Err() == nil {
			k.only("sliding_window_size", n) // repeats it in early files
		}
		rope := k.ropeFor(c, ropeRules{})
		scalar := k.float("query_pre_attn_scalar", 256)
		c.each(func(i int, l *Layer) {
			l.Attn.Cap, l.Attn.Scale, l.Attn.Rope = cap, 1/math.Sqrt(scalar), rope(types[i], l.Attn.HeadDim)
		})
	},
	stored: stored{plusOne: true}, windowed: true, rootScale: true, period: 2,
	fromGGUF: func(r *ggufReader, o object, _ []int) {
		r.gemmaScale(o)
		o["attn_logit_softcapping"] = r.float("gemma2.attn_logit_softcapping", 50)
		o["final_logit_softcapping"] = r.float("gemma2.final_logit_softcapping", 30)
	},
	toGGUF: func(w *ggufWriter) {
		w.float("attn_logit_softcapping", w.c.attention().Cap)
		w.float("final_logit_softcapping", w.c.FinalCap)
	},
	toHF: func(c Config, o object) { c.gemmaToHF(o) },
})

// gemma sets what all Gemmas share.
func (c *Config) gemma(k *keys, offset float64) {
	k.bias(c)
	k.has("hidden_act") // hidden_activation decides
	if v := k.value("use_bidirectional_attention"); v.Kind() == strictjson.String {
		k.only("use_bidirectional_attention", "vision") // of images only
	} else {
		k.only("use_bidirectional_attention", false)
	}
	c.NormOffset, c.EmbedScale = offset, math.Sqrt(float64(c.Hidden))
	c.each(func(_ int, l *Layer) { l.Post = true })
}

// capOf reads a soft-cap; null is none.
func capOf(k *keys, key string, def float64) float64 {
	if k.null(key) {
		return 0
	}
	return k.float(key, def)
}

// gemmaToHF adds the keys of Gemma 2 and 3.
func (c Config) gemmaToHF(o object) {
	c.hfWindows(o, true)
	c.hfBias(o, false)
	o["query_pre_attn_scalar"] = square(c.attention().Scale)
	o["attn_logit_softcapping"], o["final_logit_softcapping"] = optional(c.attention().Cap), optional(c.FinalCap)
}
