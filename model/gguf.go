package model

import (
	"math"

	"apr/format/gguf"
	"apr/internal/fault"
)

// OpenGGUFConfig reads the configuration that a GGUF file carries under the keys of llama.cpp. The vocabulary is the
// number of the embedding's rows, and a file without output.weight has a tied head. Faults: Format (a value of another
// type, another architecture), Load (a value that is missing), Invalid (contradictions).
func OpenGGUFConfig(f *gguf.File) (Config, error) {
	r := ggufReader{m: f.Metadata()}
	c := Config{Architecture: r.str("general.architecture"), InitializerRange: 0.02}
	if r.err != nil {
		return c, r.err
	}
	if c.Architecture != "qwen2" {
		return c, fault.In(fault.Format, f.Path(), "architecture %q is not supported; supported: qwen2", c.Architecture).
			At(`key "general.architecture"`).WithID("E-CONFIG-014")
	}
	c.HiddenSize, c.Layers, c.Heads = r.size("qwen2.embedding_length"), r.size("qwen2.block_count"), r.size("qwen2.attention.head_count")
	c.KVHeads = r.sizeOr("qwen2.attention.head_count_kv", c.Heads)
	c.HeadDim = r.sizeOr("qwen2.attention.key_length", c.HiddenSize/max(c.Heads, 1))
	c.IntermediateSize, c.MaxPositions = r.size("qwen2.feed_forward_length"), r.size("qwen2.context_length")
	c.RopeTheta = r.floatOr("qwen2.rope.freq_base", 10000)
	c.RMSNormEps = r.float("qwen2.attention.layer_norm_rms_epsilon")
	c.BOS, c.EOS = r.id("tokenizer.ggml.bos_token_id"), r.id("tokenizer.ggml.eos_token_id")
	r.variants(f.Path(), c)
	if r.err != nil {
		return c, r.err
	}
	embed, ok := f.Tensor("model.embed_tokens.weight")
	if !ok || len(embed.Shape) != 2 {
		return c, fault.In(fault.Load, f.Path(), "is missing or no matrix").At(`tensor "token_embd.weight"`).WithID("E-MODEL-001")
	}
	c.VocabSize, c.DType = embed.Shape[0], embed.DType
	_, head := f.Tensor("lm_head.weight")
	c.Tied = !head
	return c, c.check(f.Path())
}

// ggufReader reads metadata and keeps the first error.
type ggufReader struct {
	m   *gguf.Metadata
	err error
}

func (r *ggufReader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *ggufReader) str(key string) string {
	s, ok, err := r.m.Str(key)
	if err == nil && !ok {
		err = r.m.Missing(key)
	}
	r.keep(err)
	return s
}

func (r *ggufReader) sizeOr(key string, def int) int {
	n, ok, err := r.m.Uint(key)
	r.keep(err)
	if !ok {
		return def
	}
	return int(min(n, math.MaxInt32))
}

func (r *ggufReader) size(key string) int {
	n := r.sizeOr(key, -1)
	if n < 0 {
		r.keep(r.m.Missing(key))
	}
	return n
}

// id reads a token id, or −1.
func (r *ggufReader) id(key string) int { return r.sizeOr(key, -1) }

func (r *ggufReader) floatOr(key string, def float64) float64 {
	x, ok, err := r.m.Float(key)
	r.keep(err)
	if !ok {
		return def
	}
	return x
}

func (r *ggufReader) float(key string) float64 {
	x := r.floatOr(key, math.NaN())
	if math.IsNaN(x) {
		r.keep(r.m.Missing(key))
	}
	return x
}

// variants refuses what this implementation would compute wrongly.
func (r *ggufReader) variants(path string, c Config) {
	refuse := func(key, format string, args ...any) {
		r.keep(fault.In(fault.Format, path, format, args...).At("key %q", key).WithID("E-CONFIG-015"))
	}
	const scaling = "qwen2.rope.scaling.type"
	if kind, ok, err := r.m.Str(scaling); err != nil || ok && kind != "none" {
		r.keep(err)
		refuse(scaling, "rotary embedding of type %q is not supported; supported: none", kind)
	}
	for _, key := range []string{"qwen2.attention.value_length", "qwen2.rope.dimension_count"} {
		if n := r.sizeOr(key, c.HeadDim); n != c.HeadDim {
			refuse(key, "%d is not the head dimension %d, which is not supported", n, c.HeadDim)
		}
	}
	const window = "qwen2.attention.sliding_window"
	if n := r.sizeOr(window, 0); n != 0 {
		refuse(window, "sliding-window attention is not supported")
	}
}
