package aprfile

import (
	"fmt"
	"iter"

	"apr/internal/strictjson"
)

// Limits of the metadata.
const (
	maxMetadata      = 16 << 20 // bytes
	maxMetadataDepth = 32
)

// aliases lists, for each key with several names, the others. The canonical key wins; different values are an error.
var aliases = map[string][]string{
	"name":                    {"model_name"},
	"hidden_size":             {"hidden_dim", "d_model", "n_embd"},
	"num_layers":              {"n_layers", "num_hidden_layers", "n_layer"},
	"num_heads":               {"n_heads", "num_attention_heads", "n_head"},
	"num_kv_heads":            {"n_kv_heads", "num_key_value_heads"},
	"vocab_size":              {"n_vocab"},
	"intermediate_size":       {"ffn_dim", "intermediate_dim", "n_inner"},
	"max_position_embeddings": {"max_seq_len", "context_length", "n_ctx"},
	"rms_norm_eps":            {"layer_norm_eps", "norm_eps", "eps"},
	"chat_template":           {"tokenizer.chat_template"},
	"tokenizer.model_type":    {"tokenizer.model"},
}

// Metadata is the JSON object of a file, with the names of other writers resolved. A member that is null is absent.
type Metadata struct {
	path   string
	offset int // of the object in the file
	root   strictjson.Value
	config strictjson.Value // model_config of old checkpoints, for keys that are missing
}

// ParseMetadata parses the metadata of an .apr file from another place, such as a safetensors file that says what its
// weights are; path names that file in errors. A key given twice is refused.
func ParseMetadata(path, text string) (*Metadata, error) {
	if len(text) > maxMetadata {
		return nil, bad(path, 10, "metadata of %d bytes is over the limit of %d", len(text), maxMetadata)
	}
	return parseMetadata(path, text, 0, nil)
}

// parseMetadata reads the object; repeated is called with keys that occur again.
func parseMetadata(path, text string, offset int, repeated func(key string, offset int)) (*Metadata, error) {
	opt := strictjson.Options{MaxDepth: maxMetadataDepth, Repeated: repeated}
	root, err := strictjson.Parse(text, opt)
	if err == nil {
		err = root.Expect(strictjson.Object)
	}
	m := &Metadata{path: path, offset: offset, root: root}
	if err != nil {
		return nil, m.fault("", err)
	}
	if err := m.parseConfig(opt); err != nil {
		return nil, err
	}
	for key := range aliases {
		if _, _, err := m.lookup(key); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// parseConfig reads model_config, a string that holds JSON.
func (m *Metadata) parseConfig(opt strictjson.Options) error {
	v, ok := m.root.Get("model_config")
	if !ok || v.Kind() == strictjson.Null {
		return nil
	}
	if v.Kind() == strictjson.Object { // not seen, but it can mean one thing only
		m.config = v
		return nil
	}
	text, err := v.Str()
	if err != nil {
		return m.fault("model_config", err)
	}
	config, err := strictjson.Parse(text, opt)
	if err == nil {
		err = config.Expect(strictjson.Object)
	}
	if err != nil {
		return bad(m.path, 11, "text is not a JSON object: %s", err).At(`metadata key "model_config"`)
	}
	m.config = config
	return nil
}

// fault places an error of package strictjson in the file.
func (m *Metadata) fault(key string, err error) error {
	e, ok := err.(*strictjson.Error)
	if !ok {
		return err
	}
	f := bad(m.path, 10+int(e.Code), "%s", e.Msg)
	if key != "" {
		return f.At("metadata key %q", key)
	}
	return f.At("metadata, offset %d", m.offset+e.Offset)
}

// Root returns the whole object as the file has it.
func (m *Metadata) Root() strictjson.Value { return m.root }

// All yields the members that are not null, under the names of the file, in its order.
func (m *Metadata) All() iter.Seq2[string, strictjson.Value] {
	return func(yield func(string, strictjson.Value) bool) {
		for k, v := range m.root.Members() {
			if v.Kind() != strictjson.Null && !yield(k, v) {
				return
			}
		}
	}
}

// Map returns the members that are not null, to be changed and written again (Options.Metadata).
func (m *Metadata) Map() map[string]any {
	out := map[string]any{}
	for k, v := range m.All() {
		out[k] = v
	}
	return out
}

// Value returns the value of a key under any of its names, and false if there is none. model_config counts where the
// object itself has no value. Different values under several names are an error.
func (m *Metadata) Value(key string) (strictjson.Value, bool) {
	v, ok, _ := m.lookup(key) // conflicts were refused when the file was opened
	return v, ok
}

func (m *Metadata) lookup(key string) (strictjson.Value, bool, error) {
	names := append([]string{key}, aliases[key]...)
	for _, object := range []strictjson.Value{m.root, m.config} {
		var first strictjson.Value
		firstName := ""
		for _, name := range names {
			v, ok := object.Get(name)
			if !ok || v.Kind() == strictjson.Null {
				continue
			}
			if firstName == "" {
				first, firstName = v, name
				continue
			}
			if !equal(first, v) {
				return strictjson.Value{}, false, bad(m.path, 40, "differs from key %q, which means the same", name).At("metadata key %q", firstName)
			}
		}
		if firstName != "" {
			return first, true, nil
		}
	}
	return strictjson.Value{}, false, nil
}

// equal compares two values; numbers by value, not by how they are written.
func equal(a, b strictjson.Value) bool {
	if a.Kind() == strictjson.Number && b.Kind() == strictjson.Number {
		x, errX := a.Uint64()
		y, errY := b.Uint64()
		if errX == nil && errY == nil {
			return x == y
		}
		f, errF := a.Float64()
		g, errG := b.Float64()
		return errF == nil && errG == nil && f == g
	}
	x, errX := strictjson.AppendCanonical(nil, a)
	y, errY := strictjson.AppendCanonical(nil, b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// get converts the value of a key; a value of another type is a fault that names the key.
func get[T any](m *Metadata, key string, convert func(strictjson.Value) (T, error)) (T, bool, error) {
	var zero T
	v, ok := m.Value(key)
	if !ok {
		return zero, false, nil
	}
	out, err := convert(v)
	if err != nil {
		return zero, false, m.fault(key, err)
	}
	return out, true, nil
}

// Str returns a string, and false if the key is absent.
func (m *Metadata) Str(key string) (string, bool, error) {
	return get(m, key, strictjson.Value.Str)
}

// Bool returns a boolean, and false, false if the key is absent.
func (m *Metadata) Bool(key string) (value, ok bool, err error) {
	return get(m, key, strictjson.Value.Bool)
}

// Float returns a number, and false if the key is absent.
func (m *Metadata) Float(key string) (float64, bool, error) {
	return get(m, key, strictjson.Value.Float64)
}

// Uint returns a non-negative integer, and false if the key is absent. num_kv_heads defaults to num_heads, and
// head_dim to hidden_size / num_heads where that is whole.
func (m *Metadata) Uint(key string) (uint64, bool, error) {
	v, ok, err := get(m, key, strictjson.Value.Uint64)
	if ok || err != nil {
		return v, ok, err
	}
	switch key {
	case "num_kv_heads":
		return m.Uint("num_heads")
	case "head_dim":
		hidden, okHidden, err := m.Uint("hidden_size")
		if err != nil {
			return 0, false, err
		}
		heads, okHeads, err := m.Uint("num_heads")
		if err != nil || !okHidden || !okHeads || heads == 0 || hidden%heads != 0 {
			return 0, false, err
		}
		return hidden / heads, true, nil
	}
	return 0, false, nil
}

// kinds gives the type of each known key, for Check.
var kinds = map[strictjson.Kind][]string{
	strictjson.String: {"model_type", "name", "description", "author", "version", "license", "data_source", "data_license", "source",
		"original_format", "created_at", "architecture", "hf_architecture", "hf_model_type", "chat_template", "chat_format", "writer"},
	strictjson.Number: {"rope_theta", "rms_norm_eps"},
	strictjson.Bool:   {"tied_embeddings", "tokenizer.add_bos_token"},
	strictjson.Object: {"quantization", "sharding", "special_tokens", "tensor_shapes", "source_metadata", "distillation"},
}

// uintKeys are the known keys that hold a non-negative integer.
var uintKeys = []string{"total_size", "param_count", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
	"intermediate_size", "max_position_embeddings", "rope_type", "num_experts", "num_experts_per_tok", "moe_intermediate_size"}

// Check returns a fault for each known key whose value has another type than the format says; unknown keys are free.
func (m *Metadata) Check() []error {
	var errs []error
	for _, kind := range []strictjson.Kind{strictjson.String, strictjson.Number, strictjson.Bool, strictjson.Object} {
		for _, key := range kinds[kind] {
			if v, ok := m.Value(key); ok {
				if err := v.Expect(kind); err != nil {
					errs = append(errs, m.fault(key, err))
				}
			}
		}
	}
	for _, key := range uintKeys {
		if _, _, err := get(m, key, strictjson.Value.Uint64); err != nil {
			errs = append(errs, err)
		}
	}
	if _, _, err := m.Tokenizer(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// Tokenizer is the tokenizer in a file's metadata, as it stands there; package tokenizer makes one of it.
type Tokenizer struct {
	Vocabulary []string  // index = id, byte-level text
	Merges     []string  // "left right" in order of rank
	Scores     []float64 // of a SentencePiece model, one for each token
	TokenType  []uint64  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be absent
	ModelType  string    // bpe, gpt2, unigram, llama
	PreType    string    // qwen2, …
	BOS, EOS   *uint64   // nil if absent
	Padding    *uint64
	AddBOS     bool
	Settings   []string // "name=value": what the keys above do not say
	Template   string   // chat_template
}

// Tokenizer returns the embedded tokenizer, and false if the file has no vocabulary. A list whose length contradicts
// the vocabulary's, or a vocabulary longer than vocab_size, is an error.
func (m *Metadata) Tokenizer() (*Tokenizer, bool, error) {
	t := &Tokenizer{}
	var err error
	if t.Vocabulary, _, err = get(m, "tokenizer.vocabulary", strictjson.Value.Strings); err != nil || len(t.Vocabulary) == 0 {
		return nil, false, err
	}
	r := reader{m: m}
	t.Merges = read(&r, "tokenizer.merges", strictjson.Value.Strings)
	t.Scores = read(&r, "tokenizer.scores", floats)
	t.TokenType = read(&r, "tokenizer.token_type", strictjson.Value.Uints)
	t.ModelType = read(&r, "tokenizer.model_type", strictjson.Value.Str)
	t.PreType = read(&r, "tokenizer.pre_type", strictjson.Value.Str)
	t.BOS = read(&r, "tokenizer.bos_token_id", id)
	t.EOS = read(&r, "tokenizer.eos_token_id", id)
	t.Padding = read(&r, "tokenizer.padding_token_id", id)
	t.AddBOS = read(&r, "tokenizer.add_bos_token", strictjson.Value.Bool)
	t.Settings = read(&r, "tokenizer.settings", strictjson.Value.Strings)
	t.Template = read(&r, "chat_template", strictjson.Value.Str)
	declared := read(&r, "tokenizer.vocab_size", id)
	rows := read(&r, "vocab_size", id)
	if r.err != nil {
		return nil, false, r.err
	}
	n := len(t.Vocabulary)
	length := func(key string, have int, want string) error {
		return bad(m.path, 41, "%d, but the vocabulary has %d tokens (expected %s)", have, n, want).At("metadata key %q", key)
	}
	switch {
	case declared != nil && *declared != uint64(n):
		return nil, false, length("tokenizer.vocab_size", int(*declared), "the same")
	case rows != nil && *rows < uint64(n):
		return nil, false, length("vocab_size", int(*rows), "at least as many")
	case t.Scores != nil && len(t.Scores) != n:
		return nil, false, length("tokenizer.scores", len(t.Scores), "the same length")
	case t.TokenType != nil && len(t.TokenType) != n:
		return nil, false, length("tokenizer.token_type", len(t.TokenType), "the same length")
	}
	return t, true, nil
}

// reader keeps the first error of several reads.
type reader struct {
	m   *Metadata
	err error
}

func read[T any](r *reader, key string, convert func(strictjson.Value) (T, error)) T {
	v, _, err := get(r.m, key, convert)
	if r.err == nil {
		r.err = err
	}
	return v
}

func id(v strictjson.Value) (*uint64, error) {
	u, err := v.Uint64()
	if err != nil {
		return nil, err
	}
	return &u, nil
}

func floats(v strictjson.Value) ([]float64, error) {
	if err := v.Expect(strictjson.Array); err != nil {
		return nil, err
	}
	out := make([]float64, 0, v.Len())
	for e := range v.Items() {
		f, err := e.Float64()
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// sharding is the metadata object of that name.
type sharding struct {
	count, index uint64
	pattern      string
}

// sharding returns the place of the file among its shards.
func (m *Metadata) sharding() (sharding, error) {
	v, ok := m.Value("sharding")
	if !ok {
		return sharding{}, bad(m.path, 42, "flag SHARDED is set, but the metadata has no sharding").At("metadata")
	}
	f := strictjson.NewFields(v)
	s := sharding{count: f.Uint("shard_count"), index: f.Uint("shard_index"), pattern: f.StrOr("pattern", "")}
	if f.Err() != nil {
		return s, m.fault("sharding", f.Err())
	}
	if s.index >= s.count {
		return s, bad(m.path, 42, "shard_index %d is not below shard_count %d", s.index, s.count).At(`metadata key "sharding"`)
	}
	return s, nil
}

// repeatWarnings collects the warnings about repeated keys, the first few by name.
type repeatWarnings struct {
	count int
	list  []string
}

func (w *repeatWarnings) add(key string, offset int) {
	const most = 10
	if w.count++; w.count <= most {
		w.list = append(w.list, fmt.Sprintf("metadata key %q occurs again at offset %d of the metadata; the last value counts", key, offset))
	}
}

func (w *repeatWarnings) warnings() []string {
	if more := w.count - len(w.list); more > 0 {
		return append(w.list, fmt.Sprintf("%d more metadata keys are repeated", more))
	}
	return w.list
}
