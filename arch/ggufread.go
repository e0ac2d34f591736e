package arch

import (
	"math"
	"slices"
	"strconv"

	"apr/internal/fault"
)

// object is a config.json in the making.
type object = map[string]any

// config returns the keys of Hugging Face's configuration that mean what the file says. The families' own readers make a
// description of them.
func (r *ggufReader) config(f *family) object {
	a := r.arch
	layers := r.size(a+"block_count") - r.sizeOr(a+"nextn_predict_layers", 0)
	if layers < 1 || layers > maxLayers {
		r.keep(fault.In(fault.Invalid, r.path, "%d layers: not between 1 and %d", layers, maxLayers).At("key %q", a+"block_count").WithID("E-CONFIG-010"))
		return nil
	}
	heads, kv := r.sizes(a+"attention.head_count", layers), []int(nil)
	if kv = heads; r.has(a + "attention.head_count_kv") {
		kv = r.sizes(a+"attention.head_count_kv", layers)
	}
	hidden := r.size(a + "embedding_length")
	headDim := r.sizeOr(a+"attention.key_length", hidden/max(heads[0], 1))
	if v := r.sizeOr(a+"attention.value_length", headDim); v != headDim {
		r.refuse(a+"attention.value_length", "%d is not the head dimension %d, which is not supported", v, headDim)
	}
	if i := slices.IndexFunc(heads, func(n int) bool { return n != heads[0] }); i >= 0 {
		r.refuse(a+"attention.head_count", "layer %d has %d heads, the first %d, which is not supported", i, heads[i], heads[0])
	}
	o := object{
		"model_type": f.name, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads[0],
		"num_key_value_heads": slices.Max(kv), "head_dim": headDim, "max_position_embeddings": r.size(a + "context_length"),
		"rms_norm_eps": r.float(a+"attention.layer_norm_rms_epsilon", math.NaN()), "rope_theta": r.float(a+"rope.freq_base", 10000),
		"vocab_size": r.rows("token_embd.weight"), "tie_word_embeddings": r.rows("output.weight") == 0,
	}
	if !r.has(a + "attention.layer_norm_rms_epsilon") {
		r.keep(r.missing(a + "attention.layer_norm_rms_epsilon"))
	}
	if o["vocab_size"] == 0 {
		r.keep(fault.In(fault.Load, r.path, "is missing or no matrix").At(`tensor "token_embd.weight"`).WithID("E-MODEL-001"))
	}
	for _, id := range []string{"bos", "padding"} {
		if n := r.sizeOr("tokenizer.ggml."+id+"_token_id", -1); n >= 0 {
			o[map[string]string{"bos": "bos_token_id", "padding": "pad_token_id"}[id]] = n
		}
	}
	r.width(o, layers)
	r.windows(o, f, layers)
	if n := r.sizeOr(a+"rope.dimension_count", headDim); n != headDim && headDim > 0 {
		o["partial_rotary_factor"] = float64(n) / float64(headDim)
	}
	r.scaling(o, f)
	if f.fromGGUF != nil {
		f.fromGGUF(r, o, kv)
	}
	return o
}

func (r *ggufReader) refuse(key, format string, args ...any) {
	r.keep(fault.In(fault.Format, r.path, format, args...).At("key %q", key).WithID("E-CONFIG-015"))
}

// width reads the width of the feed-forward network.
func (r *ggufReader) width(o object, layers int) {
	key := r.arch + "feed_forward_length"
	if !r.has(key) && r.has(r.arch+"expert_feed_forward_length") {
		key = r.arch + "expert_feed_forward_length"
	}
	widths := r.sizes(key, layers)
	o["intermediate_size"] = widths[0]
	for i, w := range widths {
		if w == 2*widths[0] {
			o["use_double_wide_mlp"] = true
		} else if w != widths[0] {
			r.refuse(key, "layer %d is %d wide, the first %d, which is not supported", i, w, widths[0])
		}
	}
}

// windows reads which layers see a window only.
func (r *ggufReader) windows(o object, f *family, layers int) {
	n := r.sizeOr(r.arch+"attention.sliding_window", 0)
	switch {
	case n > 0 && !f.windowed:
		r.refuse(r.arch+"attention.sliding_window", "a window of %d is not supported for this architecture", n)
	case n > 0:
		o["sliding_window"] = n
	case f.windowed: // the key's default is a window
		o["sliding_window"] = nil
	}
	if sliding := r.flags(r.arch+"attention.sliding_window_pattern", layers); sliding != nil && f.windowed {
		var types []string
		for _, s := range sliding {
			types = append(types, map[bool]string{true: slidingType, false: fullType}[s])
		}
		o["layer_types"] = types
	}
}

// scaling reads the scaling of the rotary embedding as llama.cpp does: a scaling without a type is linear, rope.scale_linear is
// the old name of its factor, and a factor of 0 or 1 is none. What llama.cpp would do beside a table of divisors, or to
// some lengths only, is refused.
func (r *ggufReader) scaling(o object, f *family) {
	s := r.arch + "rope.scaling."
	kind, factorKey := "linear", s+"factor"
	r.linear = 1
	if r.has(s + "type") {
		kind = r.str(s + "type")
	}
	if !r.has(factorKey) {
		factorKey = r.arch + "rope.scale_linear"
	}
	factor, original := r.float(factorKey, 0), r.sizeOr(s+"original_context_length", 0)
	if factor == 1 && kind == "linear" {
		factor = 0
	}
	if r.tables(kind, f) {
		if factor != 0 && kind != "none" {
			r.refuse(factorKey, "%v divides positions beside rope_factors_short and rope_factors_long, which is not supported", factor)
		}
		o["rope_scaling"] = object{
			"rope_type": "longrope", "short_factor": r.table(shortTable), "long_factor": r.table(longTable), "original_max_position_embeddings": original,
			"attention_factor": r.float(s+"attn_factor", 0),
		}
		return
	}
	switch kind {
	case "none", "linear":
		if a := r.float(s+"attn_factor", 1); a != 1 {
			r.refuse(s+"attn_factor", "%v is not supported for scaling of type %s", a, kind)
		}
		if kind == "linear" && factor != 0 {
			if _, table := r.g.Shape(freqsTable); table && f.stored.ropeFactors {
				r.linear = factor // llama.cpp divides by both
				return
			}
			o["rope_scaling"] = object{"rope_type": "linear", "factor": factor}
		}
	case "yarn":
		o["rope_scaling"] = r.yarn(factor, original)
	case "longrope":
		r.refuse(s+"type", "longrope, but the file has no tensors %s and %s", shortTable, longTable)
	default:
		r.refuse(s+"type", "rotary embedding of type %q is not supported; supported: none, linear, yarn, longrope", kind)
	}
}

// The tensors of rotary divisors.
const (
	shortTable = "rope_factors_short.weight"
	longTable  = "rope_factors_long.weight"
	freqsTable = "rope_freqs.weight"
)

// tables reports whether the file has the divisors of a longrope. Tables that the family does not have, one of two, and both
// kinds together are refused: llama.cpp refuses the first too, and takes the second for some lengths of its context only.
func (r *ggufReader) tables(kind string, f *family) bool {
	has := map[string]bool{}
	var first string
	for _, name := range []string{freqsTable, longTable, shortTable} {
		if _, has[name] = r.g.Shape(name); has[name] {
			first = name
		}
	}
	bad := func(name, format string, args ...any) {
		r.keep(fault.In(fault.Format, r.path, format, args...).At("tensor %q", name).WithID("E-CONFIG-015"))
	}
	switch {
	case first == "":
	case !f.stored.ropeFactors:
		bad(first, "rotary divisors are not supported for %s", f.gguf)
	case has[shortTable] != has[longTable]:
		bad(first, "is there without the other of %s and %s", shortTable, longTable)
	case has[shortTable] && has[freqsTable]:
		bad(freqsTable, "is there beside %s and %s", shortTable, longTable)
	case kind == "yarn" || kind == "longrope" && has[freqsTable]:
		bad(first, "is there beside scaling of type %s, which is not supported", kind)
	}
	return has[shortTable] && has[longTable]
}

// yarn returns the scaling of type yarn.
func (r *ggufReader) yarn(factor float64, original int) object {
	s := r.arch + "rope.scaling."
	y := object{"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
		"beta_fast": r.float(s+"yarn_beta_fast", 32), "beta_slow": r.float(s+"yarn_beta_slow", 1)}
	m := r.float(s+"yarn_log_multiplier", 0)
	if m != 0 {
		y["mscale"], y["mscale_all_dim"] = 1.0, m
	}
	own := Rope{Factor: factor, MScaleAll: m}.ggufAttention()
	if a := r.float(s+"yarn_attn_factor", own*r.float(s+"attn_factor", 0)); a != 0 {
		y["attention_factor"] = a
	}
	if beta := r.float(r.arch+"attention.temperature_scale", 0); beta != 0 {
		y["llama_4_scaling_beta"] = beta
	}
	return y
}

// table reads a tensor of divisors, nil if there is none.
func (r *ggufReader) table(name string) (list []float64) {
	if _, ok := r.g.Shape(name); !ok {
		return nil
	}
	values, err := r.g.Floats(name)
	r.keep(err)
	for _, v := range values {
		list = append(list, float64(v))
	}
	return list
}

// divisors applies rope_freqs: of Llama 3, whose scaling the table is all there is of. The parameters are recognised if
// those of public models make the same table: low 1, high 4, an original length that is a power of two.
func (r *ggufReader) divisors(f *family, c *Config) {
	if !f.stored.ropeFactors || r.err != nil || slices.ContainsFunc(c.Ropes, func(r Rope) bool { return r.Kind != RopeDefault }) {
		return
	}
	list := r.table(freqsTable)
	if list == nil {
		return
	}
	for i := range list {
		list[i] *= r.linear
	}
	for i := range c.Ropes {
		rope := &c.Ropes[i]
		if len(list) != rope.Width/2 {
			r.keep(fault.In(fault.Load, r.path, "has %d divisors for %d pairs", len(list), rope.Width/2).At("tensor %q", freqsTable).WithID("E-CONFIG-015"))
			return
		}
		plain := Rope{Kind: RopeDefault, Theta: rope.Theta, HeadDim: rope.HeadDim, Width: rope.Width, Attention: 1}
		factors := plain
		factors.Kind, factors.Divisors = RopeFactors, list
		*rope = factors
		for length := 16; length <= 1<<20; length *= 2 {
			guess := plain
			guess.Kind, guess.Factor, guess.Low, guess.High, guess.Original = RopeLlama3, slices.Max(list), 1, 4, length
			if sameTable(guess.divisors(), list) {
				*rope = guess
				if length == 8192 {
					break // what most models have, and no other length makes the same table for their widths
				}
			}
		}
	}
}

// divisors returns by what the frequencies of r are smaller than without scaling.
func (r Rope) divisors() []float64 {
	plain := r
	plain.Kind = RopeDefault
	f, out := r.Frequencies(0), plain.Frequencies(0)
	for i := range out {
		out[i] /= f[i]
	}
	return out
}

func sameTable(a, b []float64) bool {
	for i := range a {
		if !(math.Abs(a[i]-b[i]) <= 1e-5*b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// gemma's score scale is not in the file: llama.cpp's 27B models have (H/nq)^−½, the others HeadDim^−½.
func (r *ggufReader) gemmaScale(o object) {
	o["query_pre_attn_scalar"] = o["head_dim"]
	if n := o["num_hidden_layers"].(int); n == 46 || n == 62 {
		o["query_pre_attn_scalar"] = o["hidden_size"].(int) / max(o["num_attention_heads"].(int), 1)
	}
}

func (r *ggufReader) moe(o object) {
	o["num_experts_per_tok"], o["moe_intermediate_size"] = r.size(r.arch+"expert_used_count"), r.size(r.arch+"expert_feed_forward_length")
	o["num_experts"] = r.size(r.arch + "expert_count")
}

func layerKey(i int) string { return strconv.Itoa(i) }
