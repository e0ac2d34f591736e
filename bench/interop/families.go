package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/bench/randmodel"
	"apr/tokenizer"
)

// random is a row of the table of families.
type random struct{ randmodel.Model }

// randoms are the rows.
var randoms = func() (list []random) {
	for _, m := range randmodel.Models {
		list = append(list, random{m})
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
