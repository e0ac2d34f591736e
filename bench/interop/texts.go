package main

import (
	"apr/bench/randmodel"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// texts prints, for each tokenizer, how many of its texts become in llama.cpp the ids that Hugging Face's library makes,
// and why others do not.
func (p peer) texts(ctx context.Context, w io.Writer, dir string) error {
	fmt.Fprint(w, "\n| tokenizer | in GGUF | texts | same ids | a token that takes blanks beside it | not NFC | line breaks | others |\n|---|---|---|---|---|---|---|---|\n")
	var done []string
	for _, m := range randoms {
		if m.Unloadable || m.NoPrefix || slices.Contains(done, m.Tokenizer) {
			continue
		}
		done = append(done, m.Tokenizer)
		c, err := p.countTexts(ctx, m, filepath.Join(dir, m.FolderName()+".gguf"))
		if err != nil {
			return fmt.Errorf("tokenizer %s: %w", m.Tokenizer, err)
		}
		fmt.Fprintf(w, "| %s | %s | %d | %d | %d | %d | %d | %d |\n", m.Tokenizer, c.model, c.all, c.same, c.blanks, c.composed, c.breaks, c.others)
	}
	return nil
}

// counts are numbers of texts, by whether and why their ids differ.
type counts struct {
	model                                       string
	all, same, blanks, composed, breaks, others int
}

func (p peer) countTexts(ctx context.Context, m random, file string) (c counts, err error) {
	cases, greedy, composes, err := m.cases()
	if err != nil {
		return c, err
	}
	j, err := judge(file)
	if err != nil {
		return c, err
	}
	d := j.tok.Data()
	pieces := d.PreType == d.Model // its merges are of characters, in llama.cpp of those in one line
	c.model = strings.TrimSuffix(d.Model+", "+d.PreType, ", default")
	s, err := p.serve(ctx, file, length)
	if err != nil {
		return c, err
	}
	defer s.stop()
	for _, t := range cases {
		ids, err := s.tokenize(ctx, t.Text, false)
		if err != nil {
			return c, err
		}
		c.all++
		switch {
		case slices.Equal(ids, t.IDs):
			c.same++
		case slices.ContainsFunc(greedy, func(token string) bool { return strings.Contains(t.Text, token) }):
			c.blanks++
		case composes && !norm.NFC.IsNormalString(t.Text):
			c.composed++
		case pieces && strings.Contains(t.Text, "\n"):
			c.breaks++
		default:
			c.others++
		}
	}
	return c, nil
}

type textCase struct {
	Text string `json:"text"`
	IDs  []int  `json:"ids"`
}

// cases returns the texts of a tokenizer, the added tokens that take blanks before or behind them, and whether it composes
// characters.
func (m random) cases() (list []textCase, greedy []string, composes bool, err error) {
	f, err := os.Open(filepath.Join(randmodel.Tokenizers, m.Tokenizer, "cases.json.gz"))
	if err != nil {
		return nil, nil, false, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, nil, false, err
	}
	var all struct {
		Cases []textCase `json:"cases"`
	}
	if err := json.NewDecoder(z).Decode(&all); err != nil {
		return nil, nil, false, err
	}
	var tok struct {
		Normalizer struct {
			Type string `json:"type"`
		} `json:"normalizer"`
		Added []struct {
			Content string `json:"content"`
			Left    bool   `json:"lstrip"`
			Right   bool   `json:"rstrip"`
		} `json:"added_tokens"`
	}
	data, err := os.ReadFile(filepath.Join(randmodel.Tokenizers, m.Tokenizer, "tokenizer.json"))
	if err != nil {
		return nil, nil, false, err
	}
	if err := json.Unmarshal(data, &tok); err != nil {
		return nil, nil, false, err
	}
	for _, t := range tok.Added {
		if t.Left || t.Right {
			greedy = append(greedy, t.Content)
		}
	}
	return all.Cases, greedy, tok.Normalizer.Type == "NFC", nil
}
