package arch

// graniteRotates is the key by which llama.cpp leaves rotary embeddings out of all layers, if it is false.
const graniteRotates = "granite.rope.scaling.finetuned"

// Granite 3: Llama's layers with four factors.
var _ = register(family{
	name: "granite", class: "GraniteForCausalLM", gguf: "granite",
	set:      setGranite,
	stored:   stored{pairs: true},
	fromGGUF: graniteFromGGUF, toGGUF: graniteToGGUF,
	toHF: graniteToHF,
})

// Granite 4 without state-space layers and experts: its dense network is stored as a shared expert.
var _ = register(family{
	name: "granitemoehybrid", class: "GraniteMoeHybridForCausalLM", gguf: "granite",
	set: func(k *keys, c *Config) {
		setGranite(k, c)
		k.only("num_local_experts", 0)
		k.has("num_experts_per_tok")
		k.only("normalization_function", "rmsnorm")
		types := k.strings("layer_types")
		k.eachLayer(types, len(c.Layers))
		for i, t := range types {
			if t != "attention" {
				k.fail("layer_types", "layer %d is of type %q; supported: attention", i, t)
			}
		}
		for _, key := range []string{"mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand",
			"mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "init_method", "time_step_limit", "time_step_min", "time_step_max", "time_step_floor"} {
			k.has(key) // of layers that this model does not have
		}
		width := k.size("shared_intermediate_size")
		noRope := k.str("position_embedding_type", "rope") != "rope"
		c.each(func(_ int, l *Layer) {
			l.FFN.Width = width
			if noRope {
				l.Attn.Rope = -1
			}
		})
	},
	stored: stored{pairs: true, gateUp: "shared_mlp.input_linear", down: "shared_mlp.output_linear"},
	fits: func(r *ggufReader) bool {
		rotates, ok := r.value(graniteRotates)
		return ok && rotates == false
	},
	fromGGUF: func(r *ggufReader, o object, kv []int) {
		graniteFromGGUF(r, o, kv)
		o["shared_intermediate_size"], o["position_embedding_type"] = o["intermediate_size"], "nope"
	},
	toGGUF: graniteToGGUF,
	toHF: func(c Config, o object) {
		graniteToHF(c, o)
		var types []string
		for range c.Layers {
			types = append(types, "attention")
		}
		o["layer_types"], o["shared_intermediate_size"] = types, c.Layers[0].FFN.Width
		o["num_local_experts"], o["num_experts_per_tok"], o["normalization_function"] = 0, 0, "rmsnorm"
		o["position_embedding_type"] = map[bool]string{true: "rope", false: "nope"}[c.attention().Rope >= 0]
	},
})

func setGranite(k *keys, c *Config) {
	k.bias(c)
	c.EmbedScale = k.float("embedding_multiplier", 1)
	logits := k.float("logits_scaling", 1)
	if !(logits != 0) {
		k.fail("logits_scaling", "%v does not divide", logits)
		logits = 1
	}
	c.LogitScale = 1 / logits
	residual, scale := k.float("residual_multiplier", 1), k.float("attention_multiplier", 1)
	rope := k.ropeFor(c, ropeRules{})
	c.each(func(_ int, l *Layer) {
		l.Residual, l.Attn.Scale, l.Attn.Rope = residual, scale, rope(fullType, l.Attn.HeadDim)
	})
}

func graniteFromGGUF(r *ggufReader, o object, _ []int) {
	o["attention_multiplier"] = r.float("granite.attention.scale", 1)
	o["embedding_multiplier"] = r.float("granite.embedding_scale", 1)
	o["residual_multiplier"] = r.float("granite.residual_scale", 1)
	o["logits_scaling"] = r.float("granite.logit_scale", 1) // divides
}

func graniteToGGUF(w *ggufWriter) {
	w.float("attention.scale", w.c.attention().Scale)
	w.float("embedding_scale", w.c.EmbedScale)
	w.float("residual_scale", w.c.Layers[0].Residual)
	w.float("logit_scale", 1/w.c.LogitScale)
	if w.c.attention().Rope < 0 {
		w.list = append(w.list, KV{graniteRotates, false})
	}
}

func graniteToHF(c Config, o object) {
	c.hfBias(o, true)
	o["attention_multiplier"], o["embedding_multiplier"] = c.attention().Scale, c.EmbedScale
	o["residual_multiplier"], o["logits_scaling"] = c.Layers[0].Residual, 1/c.LogitScale
}
