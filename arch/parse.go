package arch

import (
	"errors"
	"math"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/tensor"
)

// Options of Parse.
type Options struct {
	AllowKeys []string // keys of config.json that are accepted unread

	GenerationPath string // generation_config.json: its eos_token_id wins; "" for none
	Generation     string // its text
}

// Parse reads the text of a Hugging Face config.json as transformers 4 or 5 writes it; path names it in errors. Of a
// multimodal configuration the text model is read (text_config). Faults: Format (not JSON, an unknown model_type, key,
// rope type or activation, a value of the wrong type), Invalid (values that contradict each other).
func Parse(path, text string, opt Options) (Config, error) {
	v, err := strictjson.Parse(text, strictjson.Options{})
	if err != nil {
		return Config{}, strictjson.Fault(path, text, err)
	}
	c, err := parse(v, opt)
	if err != nil {
		return Config{}, located(path, text, err)
	}
	if err := c.check(path); err != nil || opt.Generation == "" {
		return c, err
	}
	return c, c.generation(opt)
}

// located turns an error of the parser into a fault with line and column.
func located(path, text string, err error) error {
	var unknown *unknownKeys
	var family *unknownFamily
	switch {
	case errors.As(err, &unknown):
		return unknown.fault(path, text)
	case errors.As(err, &family):
		line, column := strictjson.Position(text, family.at.Offset())
		return family.fault(path).At("line %d, column %d", line, column)
	}
	return strictjson.Fault(path, text, err)
}

// generation takes the ids that end a text from generation_config.json.
func (c *Config) generation(opt Options) error {
	v, err := strictjson.Parse(opt.Generation, strictjson.Options{})
	if err == nil {
		err = v.Expect(strictjson.Object)
	}
	if err == nil {
		k := newKeys(v, opt.AllowKeys)
		if ids := k.ids("eos_token_id"); len(ids) > 0 {
			c.EOS = ids
		}
		if id := k.id("bos_token_id"); id >= 0 && c.BOS < 0 {
			c.BOS = id
		}
		err = k.Err()
	}
	if err != nil {
		return strictjson.Fault(opt.GenerationPath, opt.Generation, err)
	}
	for _, id := range c.EOS {
		if id >= c.Vocab {
			return fault.In(fault.Invalid, opt.GenerationPath, "id %d is outside the vocabulary of %d", id, c.Vocab).At("key %q", "eos_token_id").WithID("E-CONFIG-010")
		}
	}
	return nil
}

// parse finds the family and reads its keys.
func parse(v strictjson.Value, opt Options) (Config, error) {
	outer := newKeys(v, opt.AllowKeys)
	name := outer.fields.Str("model_type")
	if err := outer.Err(); err != nil {
		return Config{}, err
	}
	f, nested := byModelType(name)
	if f == nil {
		member, _ := v.Get("model_type")
		return Config{}, &unknownFamily{what: "model_type", name: name, at: member}
	}
	k := outer
	if text, ok := v.Get("text_config"); ok && nested {
		k = newKeys(text, opt.AllowKeys)
		if inner := k.str("model_type", f.name); k.Err() == nil && inner != f.name {
			var of bool
			if f, of = byModelType(inner); f == nil || of {
				member, _ := text.Get("model_type")
				return Config{}, &unknownFamily{what: "model_type", name: inner, at: member}
			}
		}
	}
	k.seen["model_type"], k.family = true, f.name
	c := f.read(k)
	if k != outer {
		outer.family = f.name
		outer.remoteCode(f.published)
		c.outer(outer, k)
	}
	if err := k.Err(); err != nil {
		return c, err
	}
	if err := outer.Err(); err != nil {
		return c, err
	}
	return c, k.unknown()
}

// outer reads what a multimodal configuration says about its text model outside text_config.
func (c *Config) outer(o, text *keys) {
	if o.has("tie_word_embeddings") && !text.has("tie_word_embeddings") {
		c.Tied = o.flag("tie_word_embeddings", c.Tied)
	}
	if ids := o.ids("eos_token_id"); len(ids) > 0 {
		c.EOS = ids
	}
	if id := o.id("bos_token_id"); id >= 0 && c.BOS < 0 {
		c.BOS = id
	}
	if c.Stored == "" {
		c.Stored = o.stored()
	}
}

// defaults are the values of keys that a family's configuration may leave out. Zero: the general default, or required.
type defaults struct {
	headDim, heads, kvHeads, vocab int
	intermediate                   int
	positions                      int
	eps                            float64
	tied                           bool
	act                            Activation // gelu_tanh: the key is hidden_activation
}

// read reads the keys that all families share, and then the family's own.
func (f *family) read(k *keys) Config {
	d := f.defaults
	c := Config{
		Family: f.name, Hidden: k.size("hidden_size"), Vocab: k.sizeOrNeed("vocab_size", d.vocab),
		MaxPositions: k.sizeOr("max_position_embeddings", orInt(d.positions, 32768)),
		Eps:          k.float("rms_norm_eps", or(d.eps, 1e-6)), EmbedScale: 1, LogitScale: 1,
		Tied: k.flag("tie_word_embeddings", d.tied), InitRange: k.float("initializer_range", 0.02),
		BOS: k.id("bos_token_id"), EOS: k.ids("eos_token_id"), Pad: k.id("pad_token_id"),
		DType: dtype(k.str("dtype", k.str("torch_dtype", "float32"))), Stored: k.stored(),
	}
	layers, heads := k.size("num_hidden_layers"), k.sizeOrNeed("num_attention_heads", d.heads)
	kvHeads := k.sizeOr("num_key_value_heads", orInt(d.kvHeads, heads))
	headDim := k.sizeOr("head_dim", orInt(d.headDim, c.Hidden/max(heads, 1)))
	if !k.has("head_dim") && d.headDim == 0 && heads > 0 && c.Hidden%heads != 0 {
		k.fail("num_attention_heads", "%d heads do not divide hidden_size %d and no head_dim is given", heads, c.Hidden)
	}
	if k.Err() == nil && (layers < 1 || layers > maxLayers) {
		k.fail("num_hidden_layers", "%d is not between 1 and %d", layers, maxLayers)
	}
	if k.Err() != nil {
		return c
	}
	act := k.activation(d.act)
	width := k.sizeOrNeed("intermediate_size", d.intermediate)
	for i := range layers {
		c.Layers = append(c.Layers, Layer{
			Attn: Attention{HeadDim: headDim, Heads: heads, KVHeads: kvHeads, KVFrom: i, Rope: -1, Scale: 1 / math.Sqrt(float64(headDim))},
			FFN:  FFN{Act: act, Width: width}, Pre: true, Residual: 1,
		})
	}
	k.remoteCode(f.published)
	f.set(k, &c)
	return c
}

func or(x, def float64) float64 {
	if x == 0 {
		return def
	}
	return x
}

func orInt(x, def int) int {
	if x == 0 {
		return def
	}
	return x
}

// activation reads hidden_act, or hidden_activation, which Gemma's configurations prefer.
func (k *keys) activation(def Activation) Activation {
	name, key := k.str("hidden_act", ""), "hidden_act"
	if def == GELUTanh {
		name, key = k.str("hidden_activation", "gelu_pytorch_tanh"), "hidden_activation"
	}
	switch name {
	case "":
		return SiLU
	case "silu", "swish":
		return SiLU
	case "gelu_pytorch_tanh":
		return GELUTanh
	}
	k.fail(key, "activation %q is not supported; supported: silu, gelu_pytorch_tanh", name)
	return SiLU
}

// stored reads quantization_config: how matrices are stored beyond their type.
func (k *keys) stored() string {
	v := k.value("quantization_config")
	if v.Kind() == strictjson.Absent {
		return ""
	}
	q := strictjson.NewFields(v)
	method := q.StrOr("quant_method", "")
	k.keep(q.Err())
	if k.Err() == nil && method != "mxfp4" && method != "fp8" {
		k.fail("quantization_config", "method %q is not supported; supported: fp8, mxfp4", method)
	}
	if method == "mxfp4" && k.Err() == nil { // fp8's keys are quant.ParseFP8's
		for key := range v.Members() {
			if !slices.Contains([]string{"quant_method", "modules_to_not_convert", "dequantize"}, key) {
				k.fail("quantization_config", "key %q of mxfp4 is not known, and may say how blocks are stored", key)
			}
		}
	}
	return method
}

func dtype(s string) tensor.DType {
	switch s {
	case "bfloat16":
		return tensor.BF16
	case "float16":
		return tensor.F16
	}
	return tensor.F32
}

// eachLayer reports whether layer_types, where the configuration has the key, has an entry for each layer. It fails k if not.
func (k *keys) eachLayer(types []string, layers int) bool {
	if types == nil || len(types) == layers {
		return true
	}
	k.fail("layer_types", "%d entries for %d layers", len(types), layers)
	return false
}

// layerTypes reads layer_types, or makes them: every pattern-th layer is full, the others are of type other.
func (k *keys) layerTypes(layers, pattern int, other string) []string {
	types := k.strings("layer_types")
	if types == nil {
		for i := range layers {
			t := other
			if pattern > 0 && (i+1)%pattern == 0 {
				t = fullType
			}
			types = append(types, t)
		}
		return types
	}
	k.eachLayer(types, layers)
	for i, t := range types {
		if t != fullType && t != other {
			k.fail("layer_types", "layer %d is of type %q; supported: %s, %s", i, t, fullType, other)
		}
	}
	if k.Err() != nil {
		return slices.Repeat([]string{fullType}, layers)
	}
	return types
}

const (
	fullType    = "full_attention"
	slidingType = "sliding_attention"
	linearType  = "linear_attention"
)

// windows reads sliding_window and which layers have it: those that layer_types calls sliding, else all but every
// pattern-th (pattern 0: all), and returns the layers' types.
func (k *keys) windows(c *Config, window, pattern int) []string {
	for _, key := range []string{"sliding_window_pattern", "_sliding_window_pattern"} {
		if k.has(key) && pattern > 0 {
			pattern = k.size(key)
		}
	}
	n := k.sizeOr("sliding_window", window)
	if k.null("sliding_window") {
		n = 0
	}
	if !k.flag("use_sliding_window", true) && n > 0 {
		k.fail("use_sliding_window", "transformers does not read the key for this family, whose layers have a window of %d; sliding_window null is none", n)
	}
	if n == 0 && k.has("sliding_window") && !k.null("sliding_window") {
		k.fail("sliding_window", "0 is no window; null says that layers have none")
	}
	types := k.layerTypes(len(c.Layers), pattern, slidingType)
	for i, t := range types {
		if pattern > 0 && k.has("layer_types") && t == slidingType && n == 0 {
			k.fail("layer_types", "layer %d is of type %q, and sliding_window is null", i, t)
		}
		if pattern == 0 && k.has("layer_types") && (t == slidingType) != (n > 0) {
			k.fail("layer_types", "layer %d is of type %q; transformers does not read the key for this family, and sliding_window is %d for all layers", i, t, n)
		}
		if t == slidingType {
			c.Layers[i].Attn.Window = n
		}
	}
	return types
}

// switched reads the keys of windows in families that have a switch for them, use_sliding_window, which is off in public
// models: window is the default of sliding_window. Without layer_types, windowed says which layers have it.
func (k *keys) switched(c *Config, window int, windowed func(i int) bool) {
	on, n := k.flag("use_sliding_window", false), k.sizeOr("sliding_window", window)
	if k.null("sliding_window") {
		n = 0
	}
	k.has("max_window_layers")
	types := k.strings("layer_types")
	for i, t := range types {
		switch {
		case t == fullType:
		case !on:
			k.fail("layer_types", "layer %d is of type %q, and use_sliding_window is false", i, t)
		case t != slidingType:
			k.fail("layer_types", "layer %d is of type %q; supported: %s, %s", i, t, fullType, slidingType)
		case n == 0:
			k.fail("layer_types", "layer %d is of type %q, and sliding_window is null", i, t)
		}
	}
	if !k.eachLayer(types, len(c.Layers)) {
		return
	}
	switch {
	case !on:
	case types == nil:
		for i := range c.Layers {
			if windowed(i) {
				c.Layers[i].Attn.Window = n
			}
		}
	default:
		for i, t := range types {
			if t == slidingType {
				c.Layers[i].Attn.Window = n
			}
		}
	}
}

// qwenWindows sets the sliding windows of Qwen2 and Qwen3: layers from max_window_layers on have one, the layers before see all
// positions. Source: Qwen2Config and Qwen3Config of transformers, whose default of max_window_layers is 28.
func (k *keys) qwenWindows(c *Config) {
	from := k.sizeOr("max_window_layers", 28)
	k.switched(c, 4096, func(i int) bool { return i >= from })
}

// bias reads attention_bias, for q, k, v and o.
func (k *keys) bias(c *Config) {
	if k.flag("attention_bias", false) {
		for i := range c.Layers {
			c.Layers[i].Attn.QKVBias, c.Layers[i].Attn.OBias = true, true
		}
	}
	k.only("mlp_bias", false)
}

// each changes every layer's attention.
func (c *Config) each(change func(i int, l *Layer)) {
	for i := range c.Layers {
		change(i, &c.Layers[i])
	}
}

// unknownFamily is the refusal of a model_type or a GGUF architecture.
type unknownFamily struct {
	what, name string
	at         strictjson.Value
}

func (e *unknownFamily) Error() string { return e.what + " " + e.name + " is not known" }

func (e *unknownFamily) fault(path string) *fault.Error {
	known := Families()
	if e.what != "model_type" {
		known = Architectures()
	}
	f := fault.In(fault.Format, path, "%s %q is not supported; supported: %s", e.what, e.name, strings.Join(known, ", ")).WithID("E-CONFIG-021")
	if near := fault.Nearest(e.name, known); near != "" {
		return f.WithHint("the nearest is %q", near)
	}
	return f
}
