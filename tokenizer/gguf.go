package tokenizer

import (
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
	d.Merges = r.strings("tokenizer.ggml.merges")
	if r.err != nil {
		return nil, r.err
	}
	return FromData(path, d)
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
	if model != "gpt2" {
		return fault.In(fault.Format, path, "tokenizer of type %q is not supported; supported: gpt2", clip(model)).
			At(`key "tokenizer.ggml.model"`).WithID("E-TOK-021")
	}
	return nil
}

// data reads everything but the vocabulary and the merges.
func (r *ggufReader) data() (d Data) {
	d.PreType = r.needed("tokenizer.ggml.pre")
	d.TokenType = r.types("tokenizer.ggml.token_type")
	d.BOS, d.EOS = r.id("tokenizer.ggml.bos_token_id"), r.id("tokenizer.ggml.eos_token_id")
	d.Pad = r.id("tokenizer.ggml.padding_token_id")
	d.AddBOS = r.boolean("tokenizer.ggml.add_bos_token")
	d.ChatTemplate, _ = r.str("tokenizer.chat_template")
	return d
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
