package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"apr/tokenizer"
)

// random is a row of the table of families: a configuration with random weights.
type random struct {
	Name       string   `json:"name"`       // of its config.json in families
	Title      string   `json:"title"`      // of the model, if not Name: llama.cpp wants a token <|endoftext|> of one that is called phi3
	Tokenizer  string   `json:"tokenizer"`  // a folder of testdata/tokenizers
	NoPrefix   bool     `json:"no_prefix"`  // the way with spaces of tokenizers that put none before a text
	Differs    string   `json:"differs"`    // what llama.cpp computes otherwise; "": nothing
	Unloadable bool     `json:"unloadable"` // llama.cpp refuses the file, as Differs says
	OtherIDs   int      `json:"other_ids"`  // prompts that have other ids in llama.cpp
	Refused    []string `json:"refused"`    // files of llama.cpp's quantizer that cannot be read, as their blocks do not move
	Fixture    string   `json:"fixture"`    // the type of the file in testdata/gguf; "": none
	Deep       bool     `json:"deep"`       // too many layers for TestFeaturesMatter

	thin bool // few different rows
}

//go:embed models.json
var modelsJSON []byte

// randoms are the rows. They are data beside the configurations, for no code but arch's names a family.
var randoms = func() (list []random) {
	if err := json.Unmarshal(modelsJSON, &list); err != nil {
		panic(err)
	}
	return list
}()

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
			return total, fmt.Errorf("the peer continues %q by %d tokens only", text, len(made.tokens))
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
