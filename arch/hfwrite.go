package arch

import (
	"bytes"
	"encoding/json"
	"math"

	"apr/internal/fault"
	"apr/tensor"
)

// HFConfig returns config.json of c for tensors of type d, readable by transformers 4 and 5. It is an error, of kind
// Format, if the family's keys cannot say what c says: a rotary table of no known kind, say.
func HFConfig(c Config, d tensor.DType) ([]byte, error) {
	o := c.hfKeys()
	o["dtype"] = map[tensor.DType]string{tensor.BF16: "bfloat16", tensor.F16: "float16"}[d]
	if o["dtype"] == "" {
		o["dtype"] = "float32"
	}
	o["torch_dtype"] = o["dtype"]
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(o); err != nil {
		return nil, fault.New(fault.Format, "config.json cannot hold this model: %w", err).WithID("E-CONFIG-022")
	}
	back, err := Parse("config.json", b.String(), Options{})
	if err != nil {
		return nil, fault.New(fault.Format, "config.json of %s cannot hold this model: %w", c.Family, err).WithID("E-CONFIG-022")
	}
	if !back.Equal(c) {
		return nil, fault.New(fault.Format, "config.json of %s cannot hold this model: it would describe another", c.Family).WithID("E-CONFIG-022")
	}
	return b.Bytes(), nil
}

// hfKeys returns the keys of config.json.
func (c Config) hfKeys() object {
	f, a := c.family(), c.attention()
	o := object{
		"architectures": []string{f.class}, "model_type": f.name, "hidden_size": c.Hidden, "num_hidden_layers": len(c.Layers),
		"num_attention_heads": a.Heads, "num_key_value_heads": a.KVHeads, "intermediate_size": c.denseWidth(), "vocab_size": c.Vocab,
		"max_position_embeddings": c.MaxPositions, "rms_norm_eps": c.Eps, "tie_word_embeddings": c.Tied, "initializer_range": c.InitRange,
		"attention_dropout": 0.0, "use_cache": true, "hidden_act": "silu", "bos_token_id": nil, "eos_token_id": nil, "pad_token_id": nil,
	}
	if f.defaults.act == GELUTanh {
		o["hidden_act"], o["hidden_activation"] = "gelu_pytorch_tanh", "gelu_pytorch_tanh"
	} else if c.Layers[0].FFN.Act == GELUTanh {
		o["hidden_act"] = "gelu_pytorch_tanh"
	}
	if f.defaults.headDim != 0 || a.Heads*a.HeadDim != c.Hidden {
		o["head_dim"] = a.HeadDim
	}
	for key, id := range map[string]int{"bos_token_id": c.BOS, "pad_token_id": c.Pad} {
		if id >= 0 {
			o[key] = id
		}
	}
	switch len(c.EOS) {
	case 0:
	case 1:
		o["eos_token_id"] = c.EOS[0]
	default:
		o["eos_token_id"] = c.EOS
	}
	if c.Stored == MXFP4 {
		o["quantization_config"] = object{"quant_method": MXFP4, "modules_to_not_convert": []string{
			"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
		}}
	}
	c.hfRope(o)
	if f.toHF != nil {
		f.toHF(c, o)
	}
	return o
}

// hfRope writes the rotary embeddings: of transformers 5, and of 4 beside it.
func (c Config) hfRope(o object) {
	var full, local *Rope
	for i, l := range c.Layers {
		if r, ok := c.Rope(i); ok && l.Attn.Window > 0 {
			local = &r
		} else if ok {
			full = &r
		}
	}
	if full == nil {
		full = local
	}
	if full == nil {
		return
	}
	o["rope_theta"], o["rope_parameters"] = full.Theta, full.hf()
	if full.Kind != RopeDefault && full.Kind != RopeProportional {
		scaling := full.hf()
		delete(scaling, "rope_theta")
		o["rope_scaling"] = scaling
	}
	if full.Width != full.HeadDim {
		o["partial_rotary_factor"] = float64(full.Width) / float64(full.HeadDim)
	}
	if full.Kind == RopeLong {
		o["original_max_position_embeddings"] = full.Original
	}
	if local != nil && local != full && c.family().byType {
		o["rope_parameters"] = object{fullType: full.hf(), slidingType: local.hf()}
	}
}

// hf returns r as an object of transformers 5.
func (r Rope) hf() object {
	o := object{"rope_type": string(r.Kind), "rope_theta": r.Theta}
	if r.Width != r.HeadDim {
		o["partial_rotary_factor"] = float64(r.Width) / float64(r.HeadDim)
	}
	if r.Factor != 0 {
		o["factor"] = r.Factor
	}
	if r.Original != 0 {
		o["original_max_position_embeddings"] = r.Original
	}
	switch r.Kind {
	case RopeLlama3:
		o["low_freq_factor"], o["high_freq_factor"] = r.Low, r.High
	case RopeYaRN:
		o["beta_slow"], o["beta_fast"], o["truncate"] = r.Low, r.High, !r.Exact
		if r.MScale != 0 || r.MScaleAll != 0 {
			o["mscale"], o["mscale_all_dim"] = r.MScale, r.MScaleAll
		}
		if r.Attention != r.yarnAttention() {
			o["attention_factor"] = r.Attention
		}
	case RopeLong:
		o["short_factor"], o["long_factor"] = r.Divisors, r.LongDivs
		if r.Attention != r.longAttention() {
			o["attention_factor"] = r.Attention
		}
	case RopeProportional:
		o["partial_rotary_factor"] = 2 * float64(r.Rotated) / float64(r.HeadDim)
	}
	return o
}

// hfWindows writes sliding_window, null for none, and layer_types.
func (c Config) hfWindows(o object, types bool) {
	o["sliding_window"] = nil
	var list []string
	for _, l := range c.Layers {
		t := fullType
		if l.Attn.Window > 0 {
			o["sliding_window"], t = l.Attn.Window, slidingType
		}
		list = append(list, t)
	}
	if types {
		o["layer_types"] = list
	}
}

// hfNoWindow is hfWindows of families that have a switch for them.
func (c Config) hfNoWindow(o object) {
	c.hfWindows(o, true)
	o["use_sliding_window"] = o["sliding_window"] != nil
}

// hfBias writes the switches of biases.
func (c Config) hfBias(o object, mlp bool) {
	o["attention_bias"] = c.attention().OBias
	if mlp {
		o["mlp_bias"] = false
	}
}

// square returns s of a scale s^−½, an integer if it is one but for rounding.
func square(scale float64) any {
	s := 1 / (scale * scale)
	if n := math.Round(s); math.Abs(s-n) < 1e-9*n {
		return int(n)
	}
	return s
}

// optional is null for 0.
func optional(x float64) any {
	if x == 0 {
		return nil
	}
	return x
}
