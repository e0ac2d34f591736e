package arch

import (
	"slices"
	"strconv"

	"apr/internal/strictjson"
)

// Gemma 4 (text): norms multiply by w again; unscaled scores; heads of full layers may be wider; late layers share k and
// v; per-layer embeddings; experts beside the dense network.
var _ = register(family{
	name: "gemma4_text", nested: []string{"gemma4"}, class: "Gemma4ForCausalLM", gguf: "gemma4",
	defaults: defaults{headDim: 256, heads: 8, kvHeads: 4, vocab: 262144, positions: 131072, tied: true, act: GELUTanh},
	set:      setGemma4,
	stored:   stored{experts: expertsGemma4, ropeFactors: true}, windowed: true, rootScale: true,
	fromGGUF: gemma4FromGGUF, toGGUF: gemma4ToGGUF,
	byType: true, toHF: gemma4ToHF,
})

func setGemma4(k *keys, c *Config) {
	c.gemma(k, 0)
	c.FinalCap = capOf(k, "final_logit_softcapping", 0)
	types := k.windows(c, 512, 6)
	if len(types) > 0 && !k.has("layer_types") {
		last := len(types) - 1
		types[last], c.Layers[last].Attn.Window = fullType, 0
	}
	heads := k.gemma4Heads(c, types)
	rope := k.ropeFor(c, ropeRules{theta: 1e6, localTheta: 1e4})
	vIsK := k.flag("attention_k_eq_v", false)
	c.each(func(i int, l *Layer) {
		a := &l.Attn
		a.HeadDim, a.KVHeads = heads[i][0], heads[i][1]
		a.Scale, a.QKNorm, a.VNorm, a.VIsK = 1, HeadNorm, true, vIsK && types[i] == fullType
		a.Rope, l.OutScale = rope(types[i], a.HeadDim), true
	})
	k.gemma4Shared(c, types)
	c.PLE = PLE{Width: k.sizeOr("hidden_size_per_layer_input", 256), Vocab: k.sizeOr("vocab_size_per_layer_input", 262144)}
	if c.PLE.Width == 0 {
		c.PLE = PLE{}
	}
	k.gemma4Experts(c)
}

// gemma4Heads returns head width and key-value heads of every layer.
func (k *keys) gemma4Heads(c *Config, types []string) [][2]int {
	heads := make([][2]int, len(types))
	global, globalKV := k.sizeOr("global_head_dim", 512), k.sizeOr("num_global_key_value_heads", 0)
	perLayer, vIsK := k.value("per_layer_config"), k.flag("attention_k_eq_v", false)
	for i, t := range types {
		a := c.Layers[i].Attn
		heads[i] = [2]int{a.HeadDim, a.KVHeads}
		if perLayer.Kind() != strictjson.Absent {
			if own, ok := perLayer.Get(strconv.Itoa(i)); ok {
				o := newKeys(own, k.allow)
				heads[i] = [2]int{o.sizeOr("head_dim", a.HeadDim), o.sizeOr("num_key_value_heads", a.KVHeads)}
				k.inside("per_layer_config", o)
			}
			continue
		}
		if t == fullType {
			heads[i][0] = global
			if vIsK {
				heads[i][1] = orInt(globalKV, a.KVHeads)
			}
		}
	}
	return heads
}

// gemma4Shared points the last layers to those whose k and v they use.
func (k *keys) gemma4Shared(c *Config, types []string) {
	shared, wide := k.sizeOr("num_kv_shared_layers", 0), k.flag("use_double_wide_mlp", false)
	first := len(types) - shared
	if shared > 0 && first <= 0 {
		k.fail("num_kv_shared_layers", "%d of %d layers leave none with keys and values of its own", shared, len(types))
		return
	}
	for i := first; i < len(types) && shared > 0; i++ {
		l, from := &c.Layers[i], first-1
		for from >= 0 && types[from] != types[i] {
			from--
		}
		if from < 0 {
			k.fail("num_kv_shared_layers", "layer %d is of type %s, and no layer before %d is", i, types[i], first)
			return
		}
		l.Attn.KVFrom, l.Attn.VIsK = from, false
		if wide {
			l.FFN.Width *= 2
		}
	}
}

// gemma4Experts adds the mixture of experts beside the dense network.
func (k *keys) gemma4Experts(c *Config) {
	moe := MoE{Experts: k.sizeOr("num_experts", 0), Active: k.sizeOr("top_k_experts", 0), Width: k.sizeOr("moe_intermediate_size", 0), Renorm: true, Beside: true}
	if !k.flag("enable_moe_block", false) {
		return
	}
	if slices.Contains([]int{moe.Experts, moe.Active, moe.Width}, 0) {
		k.fail("enable_moe_block", "needs num_experts, top_k_experts and moe_intermediate_size")
	}
	c.each(func(_ int, l *Layer) { l.FFN.MoE = moe })
}

func gemma4FromGGUF(r *ggufReader, o object, kvHeads []int) {
	wide := o["head_dim"].(int)
	narrow := r.sizeOr("gemma4.attention.key_length_swa", wide)
	types, _ := o["layer_types"].([]string)
	own := object{}
	for i, t := range types {
		if t == fullType {
			own[layerKey(i)] = object{"head_dim": wide, "num_key_value_heads": kvHeads[i]}
			if !r.tensor(i, "attn_v.weight") && r.tensor(i, "attn_k.weight") {
				o["attention_k_eq_v"] = true
			}
		} else {
			o["num_key_value_heads"] = kvHeads[i]
		}
	}
	o["head_dim"], o["per_layer_config"] = narrow, own
	o["num_kv_shared_layers"] = r.sizeOr("gemma4.attention.shared_kv_layers", 0)
	o["hidden_size_per_layer_input"] = r.sizeOr("gemma4.embedding_length_per_layer_input", 0)
	if rows := r.rows("per_layer_token_embd.weight"); rows > 0 {
		o["vocab_size_per_layer_input"] = rows
	}
	if x := r.float("gemma4.final_logit_softcapping", 0); x != 0 {
		o["final_logit_softcapping"] = x
	}
	full := object{"rope_type": "default", "rope_theta": o["rope_theta"]}
	if table := r.table("rope_freqs.weight"); table != nil { // 1 for pairs that turn
		turning := 0
		for _, d := range table {
			if d < 1e20 {
				turning++
			}
		}
		full["rope_type"], full["partial_rotary_factor"] = "proportional", 2*float64(turning)/float64(wide)
	}
	o["rope_parameters"] = object{
		fullType: full, slidingType: object{"rope_type": "default", "rope_theta": r.float("gemma4.rope.freq_base_swa", 10000)},
	}
	if r.has("gemma4.expert_count") {
		r.moe(o)
		o["enable_moe_block"], o["top_k_experts"] = true, o["num_experts_per_tok"]
		delete(o, "num_experts_per_tok")
	}
}

func gemma4ToGGUF(w *ggufWriter) {
	narrow, shared := w.c.attention().HeadDim, 0
	for i, l := range w.c.Layers {
		if l.Attn.Window > 0 {
			narrow = l.Attn.HeadDim
		}
		if !w.c.OwnKV(i) {
			shared++
		}
	}
	w.pattern()
	w.count("attention.key_length_swa", narrow)
	w.count("attention.value_length_swa", narrow)
	w.count("rope.dimension_count_swa", narrow)
	w.count("attention.shared_kv_layers", shared)
	w.count("embedding_length_per_layer_input", w.c.PLE.Width)
	if w.c.FinalCap > 0 {
		w.float("final_logit_softcapping", w.c.FinalCap)
	}
}

func gemma4ToHF(c Config, o object) {
	c.hfWindows(o, true)
	c.hfBias(o, false)
	local := c.attention()
	for _, l := range c.Layers {
		if l.Attn.Window > 0 {
			local = l.Attn
		}
	}
	own, shared, width := object{}, 0, 0
	for i, l := range c.Layers {
		a := l.Attn
		if a.HeadDim != local.HeadDim || a.KVHeads != local.KVHeads {
			own[layerKey(i)] = object{"head_dim": a.HeadDim, "num_key_value_heads": a.KVHeads}
		}
		if !c.OwnKV(i) {
			shared++
			o["use_double_wide_mlp"] = l.FFN.Width == 2*c.Layers[0].FFN.Width
		}
		width = max(width, a.HeadDim)
		if a.VIsK {
			o["attention_k_eq_v"] = true
		}
	}
	o["head_dim"], o["num_key_value_heads"], o["per_layer_config"] = local.HeadDim, local.KVHeads, own
	o["global_head_dim"], o["num_kv_shared_layers"] = width, shared
	o["final_logit_softcapping"] = optional(c.FinalCap)
	o["hidden_size_per_layer_input"], o["vocab_size_per_layer_input"] = c.PLE.Width, max(c.PLE.Vocab, 1)
	if m := c.Layers[0].FFN.MoE; m != (MoE{}) {
		o["enable_moe_block"], o["num_experts"], o["top_k_experts"], o["moe_intermediate_size"] = true, m.Experts, m.Active, m.Width
	}
}
