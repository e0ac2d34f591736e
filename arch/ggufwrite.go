package arch

import (
	"fmt"
	"math"
	"slices"
)

// GGUFMetadata returns the keys that describe c as llama.cpp's converter names them, general.architecture first. Where
// these cannot say everything that c says (Portable is false), a key of ours follows, which FromGGUF prefers.
func GGUFMetadata(c Config) []KV {
	list := c.ggufKeys()
	if !c.portable(list) {
		list = append(list, KV{ownKey, string(c.JSON())})
	}
	return list
}

// Portable reports whether other programs that read GGUF can know from the file's keys all that c says. They may still
// compute something else: llama.cpp always rounds the ends of YaRN's ramp, and has no windows in its architecture "llama".
func (c Config) Portable() bool { return c.portable(c.ggufKeys()) }

func (c Config) portable(list []KV) bool {
	got, err := FromGGUF("", virtual(c, append(slices.Clone(list), GGUFTokens(c)...)))
	return err == nil && same(got, c)
}

// same compares what is computed, numbers as float32 has them.
func same(a, b Config) bool { return a.forGGUF().Equal(b.forGGUF()) }

// forGGUF drops what a GGUF file does not hold, and rounds numbers.
func (c Config) forGGUF() Config {
	round := func(x *float64) {
		if y := float64(float32(*x)); !math.IsInf(y, 0) {
			*x = y
		}
	}
	c.InitRange, c.Family, c.Layers, c.Ropes = 0, c.family().gguf, slices.Clone(c.Layers), slices.Clone(c.Ropes)
	for _, x := range []*float64{&c.Eps, &c.EmbedScale, &c.LogitScale, &c.FinalCap} {
		round(x)
	}
	for i := range c.Layers {
		l := &c.Layers[i]
		for _, x := range []*float64{&l.Residual, &l.Attn.Scale, &l.Attn.Cap, &l.Attn.QBeta} {
			round(x)
		}
	}
	for i := range c.Ropes {
		r := &c.Ropes[i]
		if r.Kind == RopeYaRN {
			r.MScale, r.MScaleAll = 0, 0 // the factor is what they decide
		}
		if r.Kind == RopeLong {
			r.Factor = 0 // likewise
		}
		for _, x := range []*float64{&r.Theta, &r.Attention, &r.Factor, &r.Low, &r.High} {
			round(x)
		}
		r.Divisors, r.LongDivs = slices.Clone(r.Divisors), slices.Clone(r.LongDivs)
		for _, list := range [][]float64{r.Divisors, r.LongDivs} {
			for j := range list {
				round(&list[j])
			}
		}
	}
	return c
}

// GGUFTokens returns the keys of the ids that c names: the first that ends a text as eos, the second as eot, the third as eom.
func GGUFTokens(c Config) (list []KV) {
	add := func(name string, id int) {
		if id >= 0 {
			list = append(list, KV{"tokenizer.ggml." + name + "_token_id", uint32(id)})
		}
	}
	for i, name := range ends {
		if i < len(c.EOS) {
			add(name, c.EOS[i])
		}
	}
	add("padding", c.Pad)
	add("bos", c.BOS)
	return list
}

// Table is a tensor of a GGUF file that is no weight.
type Table struct {
	Name   string
	Values []float32
}

// GGUFTables returns the rotary divisors that GGUF stores as tensors.
func GGUFTables(c Config) (list []Table) {
	if !c.family().stored.ropeFactors {
		return nil
	}
	narrow := func(x []float64) (out []float32) {
		for _, v := range x {
			out = append(out, float32(min(v, 1e30))) // pairs that do not turn
		}
		return out
	}
	for _, r := range c.Ropes {
		switch r.Kind {
		case RopeLlama3, RopeProportional, RopeFactors:
			if r.Kind == RopeProportional { // llama.cpp divides Theta^(−2i/HeadDim)
				r.Width = r.HeadDim
			}
			list = append(list, Table{"rope_freqs.weight", narrow(r.divisors())})
		case RopeLong:
			list = append(list, Table{"rope_factors_long.weight", narrow(r.LongDivs)}, Table{"rope_factors_short.weight", narrow(r.Divisors)})
		}
	}
	return list
}

// ggufKeys returns llama.cpp's keys.
func (c Config) ggufKeys() []KV {
	f := c.family()
	w := &ggufWriter{arch: f.gguf + ".", c: c, list: []KV{{"general.architecture", f.gguf}}}
	a := c.attention()
	w.count("block_count", len(c.Layers))
	w.count("context_length", c.MaxPositions)
	w.count("embedding_length", c.Hidden)
	w.counts("feed_forward_length", func(l Layer) int {
		if l.FFN.Width == 0 { // files of mixtures keep the width of dense layers, if there are any
			return c.denseWidth()
		}
		return l.FFN.Width
	})
	w.count("attention.head_count", a.Heads)
	w.counts("attention.head_count_kv", func(l Layer) int {
		if l.Linear() {
			return a.KVHeads
		}
		return l.Attn.KVHeads
	})
	w.rope(a)
	w.float("attention.layer_norm_rms_epsilon", c.Eps)
	if a.Heads*a.HeadDim != c.Hidden || f.stored.experts == expertsGemma4 {
		w.count("attention.key_length", a.HeadDim)
		w.count("attention.value_length", a.HeadDim)
	}
	if i := slices.IndexFunc(c.Layers, func(l Layer) bool { return l.Attn.Window > 0 }); i >= 0 {
		w.count("attention.sliding_window", c.Layers[i].Attn.Window)
		if f.period > 0 && !c.periodic(f.period) {
			w.pattern()
		}
	}
	if i := slices.IndexFunc(c.Layers, func(l Layer) bool { return l.FFN.MoE != MoE{} }); i >= 0 {
		m := c.Layers[i].FFN.MoE
		w.count("expert_count", m.Experts)
		w.count("expert_used_count", m.Active)
		w.count("expert_feed_forward_length", m.Width)
	}
	if f.toGGUF != nil {
		f.toGGUF(w)
	}
	return w.list
}

// attention returns what most layers have: of the last layer with attention, full where there are both.
func (c Config) attention() (a Attention) {
	for _, l := range c.Layers {
		if !l.Linear() && (a.Heads == 0 || l.Attn.Window == 0) {
			a = l.Attn
		}
	}
	return a
}

// denseWidth is the width of a dense layer among experts; without one, of an expert times the experts of a token.
func (c Config) denseWidth() int {
	for _, l := range c.Layers {
		if l.FFN.Width > 0 {
			return l.FFN.Width
		}
	}
	m := c.Layers[0].FFN.MoE
	if c.family().stored.experts == expertsOSS {
		return m.Width
	}
	return m.Width * m.Active
}

// ggufWriter collects keys.
type ggufWriter struct {
	arch string
	c    Config
	list []KV
}

func (w *ggufWriter) add(key string, value any) { w.list = append(w.list, KV{w.arch + key, value}) }
func (w *ggufWriter) count(key string, n int)   { w.add(key, uint32(n)) }
func (w *ggufWriter) float(key string, x float64) {
	w.add(key, float32(x))
}

// counts adds one number if all layers agree, else a list.
func (w *ggufWriter) counts(key string, of func(Layer) int) {
	var list []int32
	for _, l := range w.c.Layers {
		list = append(list, int32(of(l)))
	}
	if slices.Max(list) == slices.Min(list) {
		w.count(key, int(list[0]))
		return
	}
	w.add(key, list)
}

// pattern adds which layers see a window.
func (w *ggufWriter) pattern() {
	var list []bool
	for _, l := range w.c.Layers {
		list = append(list, l.Attn.Window > 0)
	}
	w.add("attention.sliding_window_pattern", list)
}

// periodic reports whether all layers are windowed but the last of each period.
func (c Config) periodic(period int) bool {
	for i, l := range c.Layers {
		if (l.Attn.Window > 0) != ((i+1)%period != 0) {
			return false
		}
	}
	return true
}

// rope adds the rotary embedding of full layers, and the base of windowed ones where it is another.
func (w *ggufWriter) rope(a Attention) {
	if a.Rope < 0 { // of a layer that has none: the others'
		for _, l := range w.c.Layers {
			a.Rope = max(a.Rope, l.Attn.Rope)
		}
	}
	if a.Rope < 0 || len(w.c.Ropes) == 0 { // no layer attends
		return
	}
	r := w.c.Ropes[a.Rope]
	w.float("rope.freq_base", r.Theta)
	for _, l := range w.c.Layers {
		if own := l.Attn; !l.Linear() && own.Window > 0 && own.Rope >= 0 && w.c.Ropes[own.Rope].Theta != r.Theta {
			w.float("rope.freq_base_swa", w.c.Ropes[own.Rope].Theta)
			break
		}
	}
	if r.Width != r.HeadDim || w.c.family().stored.ropeFactors {
		w.count("rope.dimension_count", r.Width)
	}
	scaling := func(kind string) {
		w.add("rope.scaling.type", kind)
		if r.Factor != 0 {
			w.float("rope.scaling.factor", r.Factor)
		}
		if r.Original != 0 {
			w.count("rope.scaling.original_context_length", r.Original)
		}
	}
	switch r.Kind {
	case RopeLinear:
		scaling("linear")
	case RopeYaRN:
		scaling("yarn")
		w.float("rope.scaling.yarn_beta_fast", r.High)
		w.float("rope.scaling.yarn_beta_slow", r.Low)
		if r.MScaleAll != 0 {
			w.float("rope.scaling.yarn_log_multiplier", r.MScaleAll)
		}
		if own := r.ggufAttention(); math.Abs(r.Attention-own) > 1e-9 {
			w.float("rope.scaling.yarn_attn_factor", r.Attention) // what llama.cpp's converter writes, and its computation ignores
			w.float("rope.scaling.attn_factor", r.Attention/own)  // what it multiplies its own factor with
		}
	case RopeLong: // llama.cpp would divide all positions by a factor
		w.count("rope.scaling.original_context_length", r.Original)
		if w.c.family().stored.ropeFactors { // else there are no tables, and the key would count alone
			w.float("rope.scaling.attn_factor", r.Attention)
		}
	}
}

// ggufAttention is the factor of cosine and sine that llama.cpp takes for YaRN, before rope.scaling.attn_factor: it knows of
// mscale that it is 1.
func (r Rope) ggufAttention() float64 {
	r.MScale = 1
	return r.yarnAttention()
}

// virtual is a GGUF file of c that has keys and shapes, and no weights.
func virtual(c Config, list []KV) GGUF {
	v := virtualGGUF{keys: map[string]any{}, shapes: map[string][]int{}, tables: map[string][]float32{}}
	for _, kv := range list {
		v.keys[kv.Key] = kv.Value
	}
	for _, s := range Slots(c) {
		v.shapes[s.GGUF.Name] = s.GGUF.Shape
	}
	for _, t := range GGUFTables(c) {
		v.shapes[t.Name], v.tables[t.Name] = []int{len(t.Values)}, t.Values
	}
	return v
}

type virtualGGUF struct {
	keys   map[string]any
	shapes map[string][]int
	tables map[string][]float32
}

func (v virtualGGUF) Value(key string) (any, bool)    { x, ok := v.keys[key]; return x, ok }
func (v virtualGGUF) Shape(name string) ([]int, bool) { s, ok := v.shapes[name]; return s, ok }
func (v virtualGGUF) Floats(name string) ([]float32, error) {
	if t, ok := v.tables[name]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("no tensor %s", name)
}
