package modelfile

import (
	"encoding/json"
	"errors"
	"math"

	"apr/arch"
	"apr/format/aprfile"
	"apr/internal/fault"
	"apr/tensor"
	"apr/tokenizer"
)

// rotarySplitHalves is rope_type of Qwen2: pairs (i, i+d/2). 0 would be adjacent pairs.
const rotarySplitHalves = 2

// configKey holds a whole description, as arch writes it, in files whose other keys cannot say everything.
const configKey = "apr.config"

// OpenAPRConfig reads the configuration that an .apr file carries. Faults: Format (a value of another type, an unknown
// architecture), Load (a value that is missing), Invalid (contradictions).
func OpenAPRConfig(f *aprfile.File) (arch.Config, error) {
	tied, err := aprTied(f)
	if err != nil {
		return arch.Config{}, err
	}
	c, err := aprConfig(f.Metadata(), f.Path(), tied)
	if e, ok := f.Entry("model.embed_tokens.weight"); ok {
		c.DType = e.DType
	}
	return c, err
}

// aprConfig reads the description from metadata; whether the head is tied, the tensors tell.
func aprConfig(m *aprfile.Metadata, path string, tied bool) (arch.Config, error) {
	if text, ok, err := m.Str(configKey); err != nil || ok {
		if err != nil {
			return arch.Config{}, err
		}
		c, err := arch.FromJSON(path, text)
		if err == nil && c.Tied != tied {
			err = fault.In(fault.Invalid, path, "says tied %v, the tensors say %v", c.Tied, tied).At("metadata %q", configKey).WithID("E-CONFIG-010")
		}
		return c, err
	}
	r := aprReader{m: m, path: path}
	keys := r.keys()
	if r.err != nil {
		return arch.Config{}, r.err
	}
	if kind, ok, err := r.m.Uint("rope_type"); err != nil {
		return arch.Config{}, err
	} else if ok && kind != rotarySplitHalves {
		return arch.Config{}, fault.In(fault.Format, r.path, "rotary embedding of type %d; %d is needed, split halves", kind, rotarySplitHalves).At(`metadata "rope_type"`).WithID("E-CONFIG-012")
	}
	keys["tie_word_embeddings"] = tied
	return arch.FromKeys(path, keys)
}

// keys returns the keys of a config.json that mean what the metadata says.
func (r *aprReader) keys() map[string]any {
	keys := map[string]any{
		"model_type": r.str("architecture", r.str("hf_model_type", r.str("model_type", ""))), "initializer_range": r.floatOr("initializer_range", 0.02),
		"rope_theta": r.float("rope_theta"), "rms_norm_eps": r.float("rms_norm_eps"),
	}
	for key, name := range map[string]string{
		"hidden_size": "hidden_size", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads",
		"head_dim": "head_dim", "intermediate_size": "intermediate_size", "vocab_size": "vocab_size", "max_position_embeddings": "max_position_embeddings",
	} {
		keys[key] = r.size(name)
	}
	for _, key := range []string{"bos_token_id", "eos_token_id"} {
		if id := r.id(key); id >= 0 {
			keys[key] = id
		}
	}
	return keys
}

// aprTied reports whether the embedding serves as head, without reading payloads unless the file says tied and has a
// head of its own.
func aprTied(f *aprfile.File) (bool, error) {
	head, ok := f.Entry("lm_head.weight")
	if !ok || head.Size == 0 {
		return true, nil
	}
	if says, ok, err := f.Metadata().Bool("tied_embeddings"); err != nil || !ok || !says {
		return false, err
	}
	form, err := f.Head()
	return form.Tied(), err
}

// aprReader reads metadata and keeps the first error.
type aprReader struct {
	m    *aprfile.Metadata
	path string
	err  error
}

func (r *aprReader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *aprReader) missing(key string) {
	r.keep(fault.In(fault.Load, r.path, "is missing; a model without it can be inspected, not used").At("metadata %q", key).WithID("E-CONFIG-013"))
}

func (r *aprReader) str(key, def string) string {
	s, ok, err := r.m.Str(key)
	r.keep(err)
	if !ok {
		return def
	}
	return s
}

func (r *aprReader) size(key string) int {
	n, ok, err := r.m.Uint(key)
	r.keep(err)
	if err == nil && !ok {
		r.missing(key)
	}
	return int(min(n, math.MaxInt32))
}

// id reads a token id of the model or, where the file has none, of its tokenizer: the two may differ.
func (r *aprReader) id(key string) int {
	for _, k := range []string{key, "tokenizer." + key} {
		n, ok, err := r.m.Uint(k)
		r.keep(err)
		if ok {
			return int(min(n, math.MaxInt32))
		}
	}
	return -1
}

func (r *aprReader) float(key string) float64 {
	x, ok, err := r.m.Float(key)
	r.keep(err)
	if err == nil && !ok {
		r.missing(key)
	}
	return x
}

func (r *aprReader) floatOr(key string, def float64) float64 {
	x, ok, err := r.m.Float(key)
	r.keep(err)
	if !ok {
		return def
	}
	return x
}

// OpenAPRTokenizer makes the tokenizer that an .apr file carries. A file without one is a fault of kind Load.
func OpenAPRTokenizer(f *aprfile.File) (*tokenizer.Tokenizer, error) {
	return aprTokenizer(f.Metadata(), f.Path())
}

func aprTokenizer(m *aprfile.Metadata, path string) (*tokenizer.Tokenizer, error) {
	d, err := aprData(m, path)
	if err != nil {
		return nil, err
	}
	return tokenizer.FromData(path, d)
}

func aprOutline(m *aprfile.Metadata, path string) (tokenizer.Outline, error) {
	d, err := aprData(m, path)
	if err != nil {
		return tokenizer.Outline{}, err
	}
	return tokenizer.OutlineData(path, d)
}

// reason is what an error says, without its place.
func reason(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Msg
	}
	return err.Error()
}

// aprData reads the flat form of the tokenizer.
func aprData(m *aprfile.Metadata, path string) (d tokenizer.Data, err error) {
	t, ok, err := m.Tokenizer()
	if err != nil {
		return d, err
	}
	if !ok {
		return d, fault.In(fault.Load, path, "holds no tokenizer").WithID("E-MODEL-010")
	}
	if err := tokenizer.CheckModel(t.ModelType); err != nil {
		return d, fault.In(fault.Format, path, "%s", reason(err)).WithID("E-MODEL-011")
	}
	var scores []float32
	for _, s := range t.Scores {
		scores = append(scores, float32(s))
	}
	id := func(p *uint64) int32 {
		if p == nil {
			return tokenizer.None
		}
		return int32(min(*p, tokenizer.MaxID))
	}
	kinds := make([]int, len(t.TokenType))
	for i, k := range t.TokenType {
		kinds[i] = int(min(k, math.MaxInt32))
	}
	if len(kinds) == 0 {
		kinds = nil
	}
	pre := t.PreType
	if pre == "" {
		pre = tokenizer.DefaultPreType
	}
	return tokenizer.Data{
		Vocabulary: t.Vocabulary, Merges: t.Merges, TokenType: kinds, PreType: pre, Model: t.ModelType, Scores: scores, Settings: t.Settings,
		BOS: id(t.BOS), EOS: id(t.EOS), Pad: id(t.Padding), AddBOS: t.AddBOS, ChatTemplate: t.Template,
	}, nil
}

// APRMetadata returns the metadata of a model: configuration, tokenizer, chat template. extra is added to it. The keys that
// other programs know describe a model whose layers are all alike; what they cannot say is said by [configKey].
func APRMetadata(c arch.Config, tok *tokenizer.Tokenizer, extra map[string]any) map[string]any {
	m := map[string]any{
		"model_type": c.Family, "architecture": c.Family, "hf_architecture": c.Class(), "hf_model_type": c.Family,
		"hidden_size": c.Hidden, "num_layers": len(c.Layers), "vocab_size": c.Vocab, "max_position_embeddings": c.MaxPositions,
		"rope_type": rotarySplitHalves, "rms_norm_eps": c.Eps, "initializer_range": c.InitRange,
		"tied_embeddings": c.Tied, "param_count": c.Parameters(),
	}
	if len(c.Layers) > 0 {
		a := c.Layers[0].Attn
		m["num_heads"], m["num_kv_heads"], m["head_dim"], m["intermediate_size"] = a.Heads, a.KVHeads, a.HeadDim, c.Layers[0].FFN.Width
	}
	if len(c.Ropes) > 0 {
		m["rope_theta"] = c.Ropes[0].Theta
	}
	if c.BOS >= 0 {
		m["bos_token_id"] = c.BOS
	}
	if len(c.EOS) > 0 {
		m["eos_token_id"] = c.EOS[0]
	}
	if !saysAll(m, c) {
		m[configKey] = string(c.JSON())
	}
	if tok != nil {
		AddTokenizer(m, tok)
	}
	for k, v := range extra {
		m[k] = v
	}
	return m
}

// saysAll reports whether the flat keys of m make c.
func saysAll(m map[string]any, c arch.Config) bool {
	text, err := json.Marshal(m)
	if err != nil {
		return false
	}
	parsed, err := aprfile.ParseMetadata("", string(text))
	if err != nil {
		return false
	}
	back, err := aprConfig(parsed, "", c.Tied)
	return err == nil && back.Equal(c)
}

// AddTokenizer adds the keys of a tokenizer to the metadata of an .apr file.
func AddTokenizer(m map[string]any, tok *tokenizer.Tokenizer) {
	d := tok.Data()
	m["tokenizer.vocabulary"], m["tokenizer.merges"], m["tokenizer.token_type"] = d.Vocabulary, d.Merges, d.TokenType
	m["tokenizer.vocab_size"], m["tokenizer.model_type"], m["tokenizer.pre_type"] = len(d.Vocabulary), d.Model, d.PreType
	if d.Scores != nil {
		scores := make([]float64, len(d.Scores))
		for i, s := range d.Scores {
			scores[i] = float64(s)
		}
		m["tokenizer.scores"] = scores
	}
	if d.Settings != nil {
		m["tokenizer.settings"] = d.Settings
	}
	m["tokenizer.add_bos_token"] = d.AddBOS
	special := map[string]any{}
	for _, s := range []struct {
		id        int32
		key, name string
	}{{d.BOS, "tokenizer.bos_token_id", "bos_token"}, {d.EOS, "tokenizer.eos_token_id", "eos_token"}, {d.Pad, "tokenizer.padding_token_id", "pad_token"}} {
		if s.id != tokenizer.None {
			m[s.key], special[s.name] = int(s.id), d.Vocabulary[s.id]
		}
	}
	if len(special) > 0 {
		m["special_tokens"] = special
	}
	if d.ChatTemplate != "" {
		m["chat_template"] = d.ChatTemplate
	}
}

// SaveAPR writes an .apr file with configuration, tokenizer and, for a trained student, how it came to be
// (distillation, may be nil); it names writer as the program that wrote it. A tied head is a second name for the
// embedding's bytes.
func SaveAPR(path string, c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, distillation map[string]any, writer string, force bool) error {
	extra := map[string]any{}
	if distillation != nil {
		extra["distillation"] = distillation
	}
	return aprfile.Write(path, tensors, aprfile.Options{
		Force: force, Metadata: APRMetadata(c, tok, extra), Writer: writer, Tied: c.Tied,
	})
}
