package arch

import "slices"

// Qwen3.5 and 3.6 (text): three Gated DeltaNet layers, then one of gated attention.
var _ = register(family{
	name: "qwen3_5_text", nested: []string{"qwen3_5"}, class: "Qwen3_5ForCausalLM", gguf: "qwen35",
	defaults: defaults{headDim: 256},
	set: func(k *keys, c *Config) {
		k.bias(c)
		k.only("attn_output_gate", true)
		for _, key := range []string{"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers"} {
			k.has(key)
		}
		delta := DeltaNet{
			KeyHeads: k.sizeOr("linear_num_key_heads", 16), ValueHeads: k.sizeOr("linear_num_value_heads", 32),
			KeyDim: k.sizeOr("linear_key_head_dim", 128), ValueDim: k.sizeOr("linear_value_head_dim", 128), Conv: k.sizeOr("linear_conv_kernel_dim", 4),
		}
		types := k.layerTypes(len(c.Layers), k.sizeOr("full_attention_interval", 4), linearType)
		rope := k.ropeFor(c, ropeRules{partial: .25})
		c.NormOffset = 1
		c.each(func(i int, l *Layer) {
			if types[i] == linearType {
				l.Attn, l.Delta = Attention{}, delta
				return
			}
			l.Attn.QKNorm, l.Attn.Gate, l.Attn.Rope = HeadNorm, true, rope(fullType, l.Attn.HeadDim)
		})
	},
	stored: stored{plusOne: true, ffnNormGGUF: "post_attention_norm"},
	fromGGUF: func(r *ggufReader, o object, _ []int) {
		heads := r.size("qwen35.ssm.time_step_rank")
		o["linear_num_value_heads"], o["linear_num_key_heads"] = heads, r.size("qwen35.ssm.group_count")
		o["linear_key_head_dim"], o["linear_conv_kernel_dim"] = r.size("qwen35.ssm.state_size"), r.size("qwen35.ssm.conv_kernel")
		o["linear_value_head_dim"] = r.size("qwen35.ssm.inner_size") / max(heads, 1)
		var types []string
		for i := range o["num_hidden_layers"].(int) {
			types = append(types, map[bool]string{true: linearType, false: fullType}[r.tensor(i, "ssm_a")])
		}
		o["layer_types"] = types
	},
	toGGUF: func(w *ggufWriter) {
		full := slices.IndexFunc(w.c.Layers, func(l Layer) bool { return !l.Linear() })
		linear := slices.IndexFunc(w.c.Layers, Layer.Linear)
		if full >= 0 {
			w.count("full_attention_interval", full+1)
			pairs := int32(w.c.Ropes[0].Width / 2) // cut in three for positions in time, height and width, which are equal in a text
			third := (pairs + 2) / 3
			w.add("rope.dimension_sections", []int32{third, third, pairs - 2*third, 0})
		}
		if linear >= 0 {
			d := w.c.Layers[linear].Delta
			w.count("ssm.conv_kernel", d.Conv)
			w.count("ssm.state_size", d.KeyDim)
			w.count("ssm.group_count", d.KeyHeads)
			w.count("ssm.time_step_rank", d.ValueHeads)
			w.count("ssm.inner_size", d.Inner())
		}
	},
	toHF: func(c Config, o object) {
		c.hfBias(o, false)
		var types []string
		for _, l := range c.Layers {
			types = append(types, map[bool]string{true: linearType, false: fullType}[l.Linear()])
			if d := l.Delta; l.Linear() {
				o["linear_num_key_heads"], o["linear_num_value_heads"], o["linear_conv_kernel_dim"] = d.KeyHeads, d.ValueHeads, d.Conv
				o["linear_key_head_dim"], o["linear_value_head_dim"] = d.KeyDim, d.ValueDim
			}
		}
		o["layer_types"], o["attn_output_gate"] = types, true
	},
})
