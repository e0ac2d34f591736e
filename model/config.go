package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/tensor"
)

// Config is the shape of a Qwen2 model.
type Config struct {
	Architecture     string // "qwen2"
	HiddenSize       int
	Layers           int
	Heads, KVHeads   int
	HeadDim          int
	IntermediateSize int
	VocabSize        int // rows of the embedding; real ids may be fewer
	MaxPositions     int
	RopeTheta        float64
	RMSNormEps       float64
	Tied             bool    // the head is the embedding
	InitializerRange float64 // standard deviation of a new model's matrices
	BOS, EOS         int     // token ids; −1: none
	DType            tensor.DType
}

const (
	maxConfigBytes = 16 << 20
	maxLayers      = 1024
	maxHidden      = 1 << 17
	maxVocab       = 1 << 22
)

// ReadConfig reads a Hugging Face config.json as transformers 4 (rope_theta, torch_dtype) or 5 (rope_parameters,
// dtype) writes it. Structure errors are faults of kind Format, contradictions of kind Invalid.
func ReadConfig(path string) (Config, error) {
	text, err := readfile.String(path, maxConfigBytes)
	if err != nil {
		return Config{}, err
	}
	return ParseConfig(path, text)
}

// ParseConfig is ReadConfig of a text; path names it in errors.
func ParseConfig(path, text string) (Config, error) {
	v, err := strictjson.Parse(text, strictjson.Options{})
	if err != nil {
		return Config{}, strictjson.Fault(path, text, err)
	}
	c, err := parseConfig(v)
	if err != nil {
		return Config{}, strictjson.Fault(path, text, err)
	}
	return c, c.check(path)
}

// parseConfig reads the keys of config.json.
func parseConfig(v strictjson.Value) (Config, error) {
	f := strictjson.NewFields(v)
	size := func(key string) int { return int(min(f.Uint(key), math.MaxInt)) }
	sizeOr := func(key string, def int) int { return int(min(f.UintOr(key, uint64(def)), math.MaxInt)) }
	c := Config{Architecture: f.Str("model_type")}
	if f.Err() == nil && c.Architecture != "qwen2" {
		member, _ := v.Get("model_type")
		return c, member.Errorf("architecture %q is not supported; supported: qwen2", c.Architecture)
	}
	c.HiddenSize, c.Layers, c.Heads = size("hidden_size"), size("num_hidden_layers"), size("num_attention_heads")
	c.KVHeads = sizeOr("num_key_value_heads", c.Heads)
	c.HeadDim = sizeOr("head_dim", c.HiddenSize/max(c.Heads, 1))
	c.IntermediateSize, c.VocabSize = size("intermediate_size"), size("vocab_size")
	c.MaxPositions = sizeOr("max_position_embeddings", 32768)
	c.RMSNormEps = f.FloatOr("rms_norm_eps", 1e-6)
	c.Tied = f.BoolOr("tie_word_embeddings", false)
	c.InitializerRange = f.FloatOr("initializer_range", 0.02)
	c.BOS, c.EOS = tokenID(f, v, "bos_token_id"), tokenID(f, v, "eos_token_id")
	c.RopeTheta = f.FloatOr("rope_theta", 10000)
	c.DType = parseDType(f.StrOr("dtype", f.StrOr("torch_dtype", "float32")))
	if err := f.Err(); err != nil {
		return c, err
	}
	return c, parseVariants(v, f, &c)
}

// tokenID reads an id, the first of several, or −1.
func tokenID(f *strictjson.Fields, v strictjson.Value, key string) int {
	if m, ok := v.Get(key); ok && m.Kind() == strictjson.Array {
		if ids, err := m.Uints(); err == nil && len(ids) > 0 {
			return int(min(ids[0], maxVocab))
		}
	}
	return int(min(max(f.IntOr(key, -1), -1), maxVocab))
}

// parseVariants reads rope_parameters and refuses what this implementation would compute wrongly.
func parseVariants(v strictjson.Value, f *strictjson.Fields, c *Config) error {
	for _, key := range []string{"rope_parameters", "rope_scaling"} {
		rope, ok := v.Get(key)
		if !ok || rope.Kind() == strictjson.Null {
			continue
		}
		r := strictjson.NewFields(rope)
		kind := r.StrOr("rope_type", r.StrOr("type", "default"))
		if key == "rope_parameters" {
			c.RopeTheta = r.FloatOr("rope_theta", c.RopeTheta)
		}
		if err := r.Err(); err != nil {
			return err
		}
		if kind != "default" {
			return rope.Errorf("rotary embedding of type %q is not supported; supported: default", kind)
		}
	}
	if f.BoolOr("use_sliding_window", false) {
		m, _ := v.Get("use_sliding_window")
		return m.Errorf("sliding-window attention is not supported")
	}
	if act := f.StrOr("hidden_act", "silu"); act != "silu" {
		m, _ := v.Get("hidden_act")
		return m.Errorf("activation %q is not supported; qwen2 uses silu", act)
	}
	if types, ok := v.Get("layer_types"); ok && types.Kind() == strictjson.Array {
		names, err := types.Strings()
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(names, func(s string) bool { return s != "full_attention" }); i >= 0 {
			return types.Errorf("layer %d is of type %q; supported: full_attention", i, names[i])
		}
	}
	return f.Err()
}

func parseDType(s string) tensor.DType {
	switch s {
	case "bfloat16":
		return tensor.BF16
	case "float16":
		return tensor.F16
	}
	return tensor.F32
}

// check refuses sizes that contradict each other or are absurd.
func (c Config) check(path string) error {
	bad := func(format string, args ...any) error {
		return fault.In(fault.Invalid, path, format, args...).WithID("E-CONFIG-010")
	}
	for _, s := range []struct {
		name     string
		val, max int
	}{
		{"hidden_size", c.HiddenSize, maxHidden}, {"num_hidden_layers", c.Layers, maxLayers},
		{"num_attention_heads", c.Heads, maxHidden}, {"num_key_value_heads", c.KVHeads, maxHidden},
		{"head_dim", c.HeadDim, maxHidden}, {"intermediate_size", c.IntermediateSize, 8 * maxHidden},
		{"vocab_size", c.VocabSize, maxVocab}, {"max_position_embeddings", c.MaxPositions, 1 << 30},
	} {
		if s.val < 1 || s.val > s.max {
			return bad("%s is %d, not between 1 and %d", s.name, s.val, s.max)
		}
	}
	switch {
	case c.Heads*c.HeadDim > maxHidden:
		return bad("%d heads of %d values are wider than %d", c.Heads, c.HeadDim, maxHidden)
	case c.Heads%c.KVHeads != 0:
		return bad("%d key-value heads do not divide %d heads", c.KVHeads, c.Heads)
	case c.HeadDim%2 != 0:
		return bad("head_dim %d is odd; the rotary embedding pairs halves", c.HeadDim)
	case c.Heads*c.HeadDim != c.HiddenSize && c.HiddenSize%c.Heads != 0 && c.HeadDim == c.HiddenSize/c.Heads:
		return bad("%d heads do not divide hidden_size %d and no head_dim is given", c.Heads, c.HiddenSize)
	case !finitePositive(c.RopeTheta):
		return bad("rope_theta %v is not finite and positive", c.RopeTheta)
	case !finitePositive(c.RMSNormEps):
		return bad("rms_norm_eps %v is not finite and positive", c.RMSNormEps)
	case !(c.InitializerRange >= 0) || math.IsInf(c.InitializerRange, 0):
		return bad("initializer_range %v is not finite and non-negative", c.InitializerRange)
	case c.EOS >= c.VocabSize || c.BOS >= c.VocabSize:
		return bad("bos_token_id %d or eos_token_id %d is outside the vocabulary of %d", c.BOS, c.EOS, c.VocabSize)
	}
	return nil
}

func finitePositive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }

// hfConfig is config.json as we write it: the keys of both transformers 4 and 5.
type hfConfig struct {
	Architectures         []string       `json:"architectures"`
	AttentionDropout      float64        `json:"attention_dropout"`
	BOS                   *int           `json:"bos_token_id"`
	DType                 string         `json:"dtype"`
	EOS                   *int           `json:"eos_token_id"`
	HeadDim               *int           `json:"head_dim,omitempty"`
	HiddenAct             string         `json:"hidden_act"`
	HiddenSize            int            `json:"hidden_size"`
	InitializerRange      float64        `json:"initializer_range"`
	IntermediateSize      int            `json:"intermediate_size"`
	MaxPositionEmbeddings int            `json:"max_position_embeddings"`
	ModelType             string         `json:"model_type"`
	NumAttentionHeads     int            `json:"num_attention_heads"`
	NumHiddenLayers       int            `json:"num_hidden_layers"`
	NumKeyValueHeads      int            `json:"num_key_value_heads"`
	RMSNormEps            float64        `json:"rms_norm_eps"`
	RopeParameters        map[string]any `json:"rope_parameters"`
	RopeTheta             float64        `json:"rope_theta"`
	SlidingWindow         *int           `json:"sliding_window"`
	TieWordEmbeddings     bool           `json:"tie_word_embeddings"`
	TorchDType            string         `json:"torch_dtype"`
	UseCache              bool           `json:"use_cache"`
	UseSlidingWindow      bool           `json:"use_sliding_window"`
	VocabSize             int            `json:"vocab_size"`
}

// HFJSON returns config.json for tensors of type d, readable by transformers 4 and 5.
func (c Config) HFJSON(d tensor.DType) []byte {
	id := func(i int) *int {
		if i < 0 {
			return nil
		}
		return &i
	}
	name := map[tensor.DType]string{tensor.BF16: "bfloat16", tensor.F16: "float16", tensor.F32: "float32"}[d]
	h := hfConfig{
		Architectures: []string{"Qwen2ForCausalLM"}, BOS: id(c.BOS), EOS: id(c.EOS), DType: name, TorchDType: name,
		HiddenAct: "silu", HiddenSize: c.HiddenSize, InitializerRange: c.InitializerRange,
		IntermediateSize: c.IntermediateSize, MaxPositionEmbeddings: c.MaxPositions, ModelType: "qwen2",
		NumAttentionHeads: c.Heads, NumHiddenLayers: c.Layers, NumKeyValueHeads: c.KVHeads, RMSNormEps: c.RMSNormEps,
		RopeParameters: map[string]any{"rope_theta": c.RopeTheta, "rope_type": "default"}, RopeTheta: c.RopeTheta,
		TieWordEmbeddings: c.Tied, UseCache: true, VocabSize: c.VocabSize,
	}
	if c.Heads*c.HeadDim != c.HiddenSize {
		h.HeadDim = &c.HeadDim
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(h); err != nil {
		panic(fmt.Sprintf("model: config does not encode: %v", err)) // finite by check
	}
	return b.Bytes()
}

// Canonical returns every field by name, also those that the text of [Config.String] leaves out.
func (c Config) Canonical() map[string]any {
	m := map[string]any{}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		m[v.Type().Field(i).Name] = v.Field(i).Interface()
	}
	m["DType"] = c.DType.String()
	return m
}

// SHA256 returns, in hexadecimal, SHA-256 over [Config.Canonical] as JSON with keys in order.
func (c Config) SHA256() string {
	text, err := json.Marshal(c.Canonical())
	if err != nil {
		panic(fmt.Sprintf("model: config does not encode: %v", err)) // finite by check
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// String describes the shape in one line.
func (c Config) String() string {
	head := "untied"
	if c.Tied {
		head = "tied"
	}
	return fmt.Sprintf("%s, %d layers, hidden %d, %d/%d heads of %d, intermediate %d, vocabulary %d, %s head, %.2fM parameters",
		c.Architecture, c.Layers, c.HiddenSize, c.Heads, c.KVHeads, c.HeadDim, c.IntermediateSize, c.VocabSize, head,
		float64(c.ParamCount())/1e6)
}
