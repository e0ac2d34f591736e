package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/tokenizer"
)

// random is a row of the table of families: a configuration with random weights.
type random struct {
	name      string   // of its config.json in families
	tokenizer string   // a folder of testdata/tokenizers
	noPrefix  bool     // Gemma's way with spaces
	differs   string   // what llama.cpp computes otherwise; "": nothing
	otherIDs  []int    // how many prompts may have other ids in llama.cpp
	thin      bool     // few different rows
	refused   []string // files of llama.cpp's quantizer that cannot be read, as their blocks do not move
	deep      bool     // too many layers for TestFeaturesMatter

	unloadable bool // llama.cpp refuses the file, as differs says
}

var randoms = []random{
	{name: "qwen2", tokenizer: "qwen2"},
	{name: "qwen3", tokenizer: "qwen2"},
	{name: "qwen3_yarn", tokenizer: "qwen2-plain"},
	{name: "llama", tokenizer: "llama-bpe"},
	{name: "llama_linear", tokenizer: "mistral-scores"},
	{name: "mistral", tokenizer: "mistral-scores"},
	{name: "mistral_window", tokenizer: "mistral-scores", differs: "it has no windows in its architecture llama"},
	{name: "ministral3", tokenizer: "tekken"},
	{name: "smollm3", tokenizer: "llama-bpe"},
	{name: "phi3", tokenizer: "mistral-scores"},
	{name: "phi3_window", tokenizer: "mistral-scores", differs: "its windows of phi3 are switched off"},
	{name: "phi3_long", tokenizer: "mistral-scores"},
	{name: "phi3_short", tokenizer: "gpt-4o"},
	{name: "olmo2", tokenizer: "dbrx"},
	{name: "olmo3", tokenizer: "dbrx"},
	{name: "granite", tokenizer: "refact"},
	{name: "granitemoehybrid", tokenizer: "dbrx"},
	{name: "granite_nope", tokenizer: "dbrx"},
	{name: "gemma2", tokenizer: "mistral-scores", noPrefix: true},
	{name: "gemma2_27b", tokenizer: "mistral-scores", noPrefix: true, deep: true},
	{name: "gemma3", tokenizer: "mistral-scores", noPrefix: true},
	{name: "gemma3_layers", tokenizer: "mistral-scores", noPrefix: true},
	{name: "gemma4", tokenizer: "gemma", otherIDs: []int{1}},
	{name: "gemma4_kv", tokenizer: "gemma", otherIDs: []int{1}},
	{name: "gemma4_moe", tokenizer: "gemma", otherIDs: []int{1}},
	{name: "qwen3_moe", tokenizer: "qwen2"},
	{name: "qwen3_moe_mixed", tokenizer: "qwen2", unloadable: true, differs: "it needs experts in every layer, and divides their probabilities by their sum"},
	{name: "gpt_oss", tokenizer: "gpt-4o"},
	{name: "gpt_oss_exact", tokenizer: "gpt-4o", differs: "it rounds the ends of YaRN's ramp (truncate is false, as in the public models)"},
	{name: "qwen3_5", tokenizer: "qwen35", refused: []string{"Q4_K_M", "IQ4_XS"}},
}

// prompts have more tokens than any window, digits, line breaks and characters of several bytes.
var prompts = []string{
	"In 1905 the three of them measured 12345.678 times, and again;  it wasn't the same as before, they'd say.",
	"func (r *Reader) Read(p []byte) (n int, err error) {\n\treturn r.fill(len(p)), nil\n}",
	"Ünïcode: 東京 是 首都, привет мир, x² ≤ ½, 🙂 and\ttabs.\n\nThe end of it all",
}

const (
	generated = 24  // tokens after each prompt
	length    = 256 // of llama.cpp's context, the least that it has
	seed      = 1   // of the weights
)

// known returns the model of a name.
func known(name string) random {
	return randoms[slices.IndexFunc(randoms, func(m random) bool { return m.name == name })]
}

// judged lets llama.cpp continue prompts from file, and compares with j.
func (p peer) judged(ctx context.Context, j *judged, file string, prompts []string) (comparison, error) {
	total := comparison{least: math.Inf(1)}
	s, err := p.serve(ctx, file, length)
	if err != nil {
		return total, err
	}
	defer s.stop()
	for _, text := range prompts {
		ids := encode(j.tok, text)
		theirs, err := s.tokenize(ctx, text, true)
		if err != nil {
			return total, err
		}
		total.prompts++
		if slices.Equal(ids, theirs) {
			total.sameIDs++
		}
		made, err := s.greedy(ctx, ids, generated, j.config.Vocab)
		if err != nil {
			return total, err
		}
		if len(made.tokens) < generated {
			return total, fmt.Errorf("llama.cpp continues %q by %d tokens only", text, len(made.tokens))
		}
		one, err := j.compare(ids, made)
		if err != nil {
			return total, err
		}
		total.add(one)
	}
	return total, nil
}

// encode returns the ids of a text with what the tokenizer adds.
func encode(t *tokenizer.Tokenizer, text string) (ids []int) {
	if t.AddBOS() {
		ids = append(ids, int(t.BOS()))
	}
	for _, id := range t.Encode(text, tokenizer.Recognise) {
		ids = append(ids, int(id))
	}
	if t.AddEOS() {
		ids = append(ids, int(t.EOS()))
	}
	return ids
}
