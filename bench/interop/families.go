package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/tokenizer"
)

// random is a row of the table of families: a configuration with random weights.
type random struct {
	name      string // of its config.json in families
	tokenizer string // a folder of testdata/tokenizers
	covers    string
	length    int    // llama.cpp's context; 0 means 256
	differs   string // what llama.cpp computes otherwise
}

var randoms = []random{
	{name: "qwen2", tokenizer: "qwen2"},
	{name: "qwen3", tokenizer: "qwen2"},
	{name: "qwen3_yarn", tokenizer: "qwen2-plain"},
	{name: "llama", tokenizer: "llama-bpe"},
	{name: "llama_linear", tokenizer: "mistral-scores"},
	{name: "mistral", tokenizer: "mistral-scores"},
	{name: "mistral_window", tokenizer: "mistral-scores"},
	{name: "ministral3", tokenizer: "tekken"},
	{name: "smollm3", tokenizer: "llama-bpe"},
	{name: "phi3", tokenizer: "mistral-scores"},
	{name: "phi3_window", tokenizer: "mistral-scores"},
	{name: "phi3_long", tokenizer: "mistral-scores"},
	{name: "phi3_short", tokenizer: "gpt-4o"},
	{name: "olmo2", tokenizer: "dbrx"},
	{name: "olmo3", tokenizer: "dbrx"},
	{name: "granite", tokenizer: "refact"},
	{name: "granitemoehybrid", tokenizer: "dbrx"},
	{name: "granite_nope", tokenizer: "dbrx"},
	{name: "gemma2", tokenizer: "gemma"},
	{name: "gemma3", tokenizer: "gemma"},
	{name: "gemma4", tokenizer: "gemma"},
	{name: "gemma4_kv", tokenizer: "gemma"},
	{name: "gemma4_moe", tokenizer: "gemma"},
	{name: "qwen3_moe", tokenizer: "qwen2"},
	{name: "qwen3_moe_mixed", tokenizer: "qwen2"},
	{name: "gpt_oss", tokenizer: "gpt-4o"},
	{name: "gpt_oss_exact", tokenizer: "gpt-4o"},
	{name: "qwen3_5", tokenizer: "qwen35"},
}

// prompts have more tokens than any window, digits, line breaks and characters of several bytes.
var prompts = []string{
	"func (r *Reader) Read(p []byte) (n int, err error) {\n\treturn r.fill(len(p)), nil\n}",
	"In 1905 the three of them measured 12345.678 times, and again;  it wasn't the same as before, they'd say.",
	"Ünïcode: 東京 是 首都, привет мир, x² ≤ ½, 🙂 and\ttabs.\n\nThe end of it all",
}

const generated = 24 // tokens after each prompt

func (p peer) families(ctx context.Context, dir string, names []string) error {
	for _, m := range randoms {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		c, err := p.family(ctx, m, dir)
		if err != nil {
			fmt.Printf("%s: %v\n", m.name, err)
			continue
		}
		fmt.Printf("%-18s tokens %d differ %d close %d least margin %.2g largest %.2g\n", m.name, c.tokens, c.differ, c.close, c.least, c.largest)
	}
	return nil
}

func (p peer) family(ctx context.Context, m random, dir string) (comparison, error) {
	none := comparison{}
	text, err := configs.ReadFile("families/" + m.name + ".json")
	if err != nil {
		return none, err
	}
	c, err := arch.Parse(m.name+".json", string(text), arch.Options{})
	if err != nil {
		return none, err
	}
	tok, err := tokenizer.Load(filepath.Join("testdata/tokenizers", m.tokenizer))
	if err != nil {
		return none, err
	}
	file := filepath.Join(dir, m.name+".gguf")
	if err := writeRaw(file, c, tok, randomModel(c, tok, 1)); err != nil {
		return none, err
	}
	return p.judged(ctx, file, max(m.length, 256))
}

func (p peer) judged(ctx context.Context, file string, length int) (comparison, error) {
	total := comparison{least: math.Inf(1)}
	j, err := judge(file)
	if err != nil {
		return total, err
	}
	s, err := p.serve(ctx, file, length)
	if err != nil {
		return total, err
	}
	defer s.stop()
	_ = os.WriteFile(file+".log", s.log.Bytes(), 0o644)
	for _, text := range prompts {
		ids, err := s.tokenize(ctx, text)
		if err != nil {
			return total, err
		}
		if own := encode(j.tok, text); !slices.Equal(ids, own) {
			fmt.Fprintf(os.Stdout, "  %s: tokens of %q: llama.cpp %v, ours %v\n", file, text, ids, own)
		}
		made, err := s.greedy(ctx, ids, generated, j.config.Vocab)
		if err != nil {
			return total, err
		}
		if len(made.tokens) < 16 {
			fmt.Fprintf(os.Stdout, "  %s: only %d tokens\n", file, len(made.tokens))
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
