package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/bench/randmodel"
	"apr/tokenizer"
)

// random is a row of the table of families: a random model, and what llama.cpp makes of it.
type random struct {
	randmodel.Model
	differs  string   // what llama.cpp computes otherwise; "": nothing
	otherIDs []int    // how many prompts may have other ids in llama.cpp
	refused  []string // files of llama.cpp's quantizer that cannot be read, as their blocks do not move

	unloadable bool // llama.cpp refuses the file, as differs says
}

// peculiar are the models of which llama.cpp makes something else.
var peculiar = map[string]random{
	"mistral_window":  {differs: "it has no windows in its architecture llama"},
	"phi3_window":     {differs: "its windows of phi3 are switched off"},
	"gemma4":          {otherIDs: []int{1}},
	"gemma4_kv":       {otherIDs: []int{1}},
	"gemma4_moe":      {otherIDs: []int{1}},
	"qwen3_moe_mixed": {unloadable: true, differs: "it needs experts in every layer, and divides their probabilities by their sum"},
	"gpt_oss_exact":   {differs: "it rounds the ends of YaRN's ramp (truncate is false, as in the public models)"},
	"qwen3_5":         {refused: []string{"Q4_K_M", "IQ4_XS"}},
}

// randoms are the rows of the table of families.
func randoms() (rows []random) {
	for _, m := range randmodel.Models {
		r := peculiar[m.Name]
		r.Model = m
		rows = append(rows, r)
	}
	return rows
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
)

// known returns the model of a name.
func known(name string) random {
	all := randoms()
	return all[slices.IndexFunc(all, func(m random) bool { return m.Name == name })]
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
