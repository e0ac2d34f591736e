package tokenizer

import (
	"slices"
	"strconv"
	"strings"

	"apr/format/gguf"
	"apr/internal/fault"
)

// FromGGUF makes the tokenizer that the metadata of a GGUF file holds (keys tokenizer.ggml.* and
// tokenizer.chat_template); path names the file in errors. A file without one is a fault of kind Load, one that is not
// understood of kind Format. Ids without text are padding: llama.cpp lists one for every row of the embedding.
func FromGGUF(path string, m *gguf.Metadata) (*Tokenizer, error) {
	r := ggufReader{m: m}
	if err := r.checkModel(path); err != nil {
		return nil, err
	}
	d := r.data()
	d.Vocabulary = r.strings("tokenizer.ggml.tokens")
	if d.Model != "llama" || r.has("tokenizer.ggml.merges") {
		d.Merges = r.strings("tokenizer.ggml.merges")
	}
	d.Settings = append(d.Settings, r.phi3(d)...)
	if r.err != nil {
		return nil, r.err
	}
	return FromData(path, d)
}

// phi3 returns the setting that llama.cpp takes from the name of a Phi-3 model: its special tokens, but for three, take the
// white space behind them. Files that we wrote say so themselves.
func (r *ggufReader) phi3(d Data) []string {
	name, _ := r.str("general.name")
	name = strings.ToLower(name)
	if d.Model != "llama" || r.has(SettingsKey) || !strings.Contains(name, "phi-3") && !strings.Contains(name, "phi3") {
		return nil
	}
	var ids []int32
	for id, text := range d.Vocabulary[:min(len(d.Vocabulary), len(d.TokenType))] {
		kind := Kind(d.TokenType[id])
		if (kind == Control || kind == UserDefined) && text != "<unk>" && text != "<s>" && text != "<|endoftext|>" {
			ids = append(ids, int32(id))
		}
	}
	if ids == nil {
		return nil
	}
	return []string{"rstrip=" + joinIDs(ids)}
}

// checkModel refuses a file without a tokenizer, or with one of another type.
func (r *ggufReader) checkModel(path string) error {
	model, ok := r.str("tokenizer.ggml.model")
	if r.err != nil {
		return r.err
	}
	if !ok {
		return fault.In(fault.Load, path, "holds no tokenizer").WithID("E-TOK-020")
	}
	if !slices.Contains(models, model) {
		err := unknownModel(model).At(`key "tokenizer.ggml.model"`)
		err.Path = path
		return err
	}
	return nil
}

// data reads everything but the vocabulary and the merges.
func (r *ggufReader) data() (d Data) {
	if d.Model = r.needed("tokenizer.ggml.model"); d.Model == "gpt2" {
		d.PreType = r.needed("tokenizer.ggml.pre")
	} else {
		d.Scores = r.scores("tokenizer.ggml.scores", d.Model == "llama")
	}
	d.TokenType = r.types("tokenizer.ggml.token_type")
	d.BOS, d.EOS = r.id("tokenizer.ggml.bos_token_id"), r.id("tokenizer.ggml.eos_token_id")
	d.Pad = r.id("tokenizer.ggml.padding_token_id")
	r.begin(&d)
	d.ChatTemplate, _ = r.str("tokenizer.chat_template")
	d.Settings = r.settings(d)
	return d
}

// begin reads whether BOS goes in front. Where a file does not say so, llama.cpp's rules hold: SentencePiece puts it there, and
// is of the ids 0, 1 and 2, unless the file says otherwise; of byte-level BPE some pre-tokenizers do; Gemma 4 does whatever a
// file of others says.
func (r *ggufReader) begin(d *Data) {
	const key = "tokenizer.ggml.add_bos_token"
	d.AddBOS = r.boolean(key)
	switch pattern := patternNamed(d.PreType); {
	case d.Model == "llama":
		d.AddBOS = d.AddBOS || !r.has(key)
		for id, to := range map[int32]*int32{1: &d.BOS, 2: &d.EOS} {
			if *to == None && !r.has(SettingsKey) {
				*to = id
			}
		}
	case d.Model == "gemma4":
		d.AddBOS = d.AddBOS || !r.has(key) || !r.has(SettingsKey)
	case pattern != nil && pattern.begins && !r.has(key):
		if d.AddBOS = true; d.BOS == None { // llama.cpp would take id 11, whatever that is
			r.keep(r.m.Missing("tokenizer.ggml.bos_token_id"))
		}
	}
}

// SettingsKey is our key for the settings of a tokenizer in a GGUF file; others do not know it.
const SettingsKey = "apr.tokenizer.settings"

// GGUFSettings returns the keys of a GGUF file that say what type, pre-tokenizer, vocabulary, merges and special ids do
// not: llama.cpp's own, which it needs for SentencePiece, and ours. Scores are those of as many tokens as the embedding has
// rows.
func (t *Tokenizer) GGUFSettings(rows int) []gguf.KV {
	var list []gguf.KV
	add := func(key string, value any) { list = append(list, gguf.KV{Key: key, Value: value}) }
	if t.addEOS {
		add("tokenizer.ggml.add_eos_token", true)
	}
	if p := t.pieces; p != nil {
		add("tokenizer.ggml.add_space_prefix", p.prefix.inFront())
		if p.unk != None {
			add("tokenizer.ggml.unknown_token_id", uint32(p.unk))
		}
		if _, scores := t.stored(); scores != nil {
			add("tokenizer.ggml.scores", append(slices.Clone(scores), make([]float32, max(0, rows-len(scores)))...))
		}
	}
	if s := t.settings(); s != nil {
		add(SettingsKey, s)
	}
	return list
}

// settings reads our own settings, and those that llama.cpp's keys stand for where ours do not say them.
func (r *ggufReader) settings(d Data) []string {
	var list []string
	if r.has(SettingsKey) {
		list = r.strings(SettingsKey)
	}
	add := func(name, value string) {
		if !slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, name+"=") }) {
			list = append(list, name+"="+value)
		}
	}
	if r.boolean("tokenizer.ggml.add_eos_token") {
		add("add_eos", "true")
	}
	if d.Model == "llama" && r.has("tokenizer.ggml.add_space_prefix") && !r.boolean("tokenizer.ggml.add_space_prefix") {
		add("prefix", string(prefixNone))
	}
	if id := r.id("tokenizer.ggml.unknown_token_id"); id != None && d.Model != "gpt2" {
		add("unknown", strconv.Itoa(int(id)))
	} else if d.Model == "llama" && len(d.TokenType) > 0 && Kind(d.TokenType[0]) == Unknown && !r.has(SettingsKey) {
		add("unknown", "0")
	}
	var ends []int32
	for _, name := range []string{"eot", "eom"} {
		if id := r.id("tokenizer.ggml." + name + "_token_id"); id != None && id != d.EOS && !slices.Contains(ends, id) {
			ends = append(ends, id)
		}
	}
	if len(ends) > 0 {
		add("ends", joinIDs(ends))
	}
	if r.boolean("tokenizer.ggml.remove_extra_whitespaces") {
		r.keep(refuse("E-TOK-009", `key "tokenizer.ggml.remove_extra_whitespaces"`, "true is not supported: spaces in a row would become one"))
	}
	return list
}

// has reports whether the file has a key.
func (r *ggufReader) has(key string) bool {
	_, _, _, ok := r.m.Type(key)
	return ok
}

// scores reads one score per token.
func (r *ggufReader) scores(key string, needed bool) []float32 {
	if !needed && !r.has(key) {
		return nil
	}
	list, ok, err := r.m.Floats(key)
	if err == nil && !ok {
		err = r.m.Missing(key)
	}
	r.keep(err)
	return list
}

// count returns the length of an array of strings that must be there.
func (r *ggufReader) count(key string) int {
	n, ok, err := r.m.Count(key)
	if err == nil && !ok {
		err = r.m.Missing(key)
	}
	r.keep(err)
	return n
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

func (r *ggufReader) str(key string) (string, bool) {
	s, ok, err := r.m.Str(key)
	r.keep(err)
	return s, ok
}

func (r *ggufReader) needed(key string) string {
	s, ok := r.str(key)
	if !ok {
		r.keep(r.m.Missing(key))
	}
	return s
}

func (r *ggufReader) strings(key string) []string {
	list, ok, err := r.m.Strings(key)
	if err == nil && !ok {
		err = r.m.Missing(key)
	}
	r.keep(err)
	return list
}

// types reads one kind per token, nil if the file has none.
func (r *ggufReader) types(key string) []int {
	list, ok, err := r.m.Ints(key)
	r.keep(err)
	if !ok {
		return nil
	}
	kinds := make([]int, len(list))
	for i, k := range list {
		kinds[i] = int(max(min(k, MaxID), -1))
	}
	return kinds
}

// id reads a token id, or None.
func (r *ggufReader) id(key string) int32 {
	n, ok, err := r.m.Uint(key)
	r.keep(err)
	if !ok {
		return None
	}
	return int32(min(n, MaxID))
}

func (r *ggufReader) boolean(key string) bool {
	b, _, err := r.m.Bool(key)
	r.keep(err)
	return b
}
