package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/modelfile"
	"apr/tokenizer"
)

func tokenizeCommand() *cli.Command {
	return &cli.Command{
		Name: "tokenize", Short: "Encode, decode and inspect text; make token shards",
		Example: "apr tokenize encode model-folder -p 'package main'\napr tokenize encode-corpus --corpus data.jsonl --tokenizer model-folder --output shards",
		Sub:     []*cli.Command{tokenizeEncode(), tokenizeDecode(), tokenizeInspect(), tokenizeCorpus(), tokenizeImport()},
	}
}

var tokenizeExits = append(openExits, fault.Invalid)

// maxText bounds a text given to encode and decode.
const maxText = 1 << 30

// textOptions are --prompt and --file.
type textOptions struct{ prompt, file string }

func (o *textOptions) table() []cli.Option {
	return []cli.Option{
		{Name: "prompt", Short: "p", Value: cli.String(&o.prompt, ""), Help: "the text"},
		{Name: "file", Short: "f", Path: true, Keywords: []string{"-"}, Value: cli.String(&o.file, ""), Help: "file that holds the text; - is stdin"},
	}
}

// text returns the text that the options name.
func (o *textOptions) text(e *cli.Env) (string, error) {
	prompt, file := e.Settings.Given("prompt"), e.Settings.Given("file")
	switch {
	case prompt && file:
		return "", fault.New(fault.Usage, "--prompt and --file exclude each other")
	case prompt:
		return o.prompt, nil
	case !file:
		return "", fault.New(fault.Usage, "missing --prompt TEXT or --file FILE")
	case o.file != "-":
		return readfile.String(o.file, maxText)
	}
	data, err := io.ReadAll(io.LimitReader(e.In, maxText+1))
	switch {
	case err != nil:
		return "", fault.In(fault.IO, "stdin", "cannot be read").Because(err)
	case len(data) > maxText:
		return "", fault.In(fault.Format, "stdin", "is longer than %d bytes", maxText)
	}
	return string(data), nil
}

// openTokenizer reads the tokenizer of a model, of a folder that holds tokenizer.json, or of a tokenizer.json.
func openTokenizer(e *cli.Env, path string) (*tokenizer.Tokenizer, error) {
	tok, err := readTokenizer(path)
	if err != nil {
		return nil, err
	}
	warning, err := modelfile.CheckTokenizer(path, tok, tok.RealIDs())
	if warning != "" {
		e.Log.Warn(warning)
	}
	return tok, err
}

// readTokenizer is openTokenizer without a look at what it is good for.
func readTokenizer(path string) (*tokenizer.Tokenizer, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, readfile.Fault(path, err)
	}
	if st.IsDir() {
		if _, err := os.Stat(filepath.Join(path, "tokenizer.json")); err == nil {
			return tokenizer.Load(path)
		}
	} else if filepath.Base(path) == "tokenizer.json" {
		return tokenizer.Load(filepath.Dir(path))
	}
	c, err := convert.Open(path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Tokenizer()
}

// encodeResult is the JSON of tokenize encode.
type encodeResult struct {
	IDs   []int32 `json:"ids"`
	Count int     `json:"count"`
}

// Text prints the ids on one line.
func (r encodeResult) Text(p *cli.Page) {
	for i, id := range r.IDs {
		if i > 0 {
			p.Printf(" ")
		}
		p.Printf("%d", id)
	}
	p.Printf("\n")
}

func tokenizeEncode() *cli.Command {
	var model string
	var text textOptions
	return &cli.Command{
		Name: "encode", Short: "Print the ids of a text",
		Long:    "Print the ids of a text. The text of a special token, such as <|endoftext|>, becomes its id; nothing is added.",
		Example: "apr tokenize encode model-folder -p 'package main'\napr tokenize encode model.apr -f main.go --json", Exits: tokenizeExits,
		Options: append([]cli.Option{
			{Name: "model", Arg: true, Required: true, Model: true, Value: cli.String(&model, ""), Help: "model, or folder with tokenizer.json"},
		}, text.table()...),
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			s, err := text.text(e)
			if err != nil {
				return nil, err
			}
			tok, err := findTokenizer(ctx, e, model)
			if err != nil {
				return nil, err
			}
			ids := tok.Encode(s, tokenizer.Recognise)
			return encodeResult{ids, len(ids)}, nil
		},
	}
}

// decodeResult is the JSON of tokenize decode.
type decodeResult struct {
	Decoded string `json:"text"`
	Count   int    `json:"count"`
}

// Text prints the text and nothing else.
func (r decodeResult) Text(p *cli.Page) { p.Raw(r.Decoded) }

func tokenizeDecode() *cli.Command {
	var model string
	var text textOptions
	return &cli.Command{
		Name: "decode", Short: "Print the text of ids",
		Long:    "Print the text of ids, given as numbers with blanks or commas between them. Nothing is added to the text.",
		Example: "apr tokenize decode model-folder -p '939 2331 404'\napr tokenize decode model.apr -f ids.txt", Exits: tokenizeExits,
		Options: append([]cli.Option{
			{Name: "model", Arg: true, Required: true, Model: true, Value: cli.String(&model, ""), Help: "model, or folder with tokenizer.json"},
		}, text.table()...),
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			s, err := text.text(e)
			if err != nil {
				return nil, err
			}
			ids, err := parseIDs(s)
			if err != nil {
				return nil, err
			}
			tok, err := findTokenizer(ctx, e, model)
			if err != nil {
				return nil, err
			}
			out, err := tok.Decode(ids)
			if err != nil {
				return nil, err
			}
			return decodeResult{out, len(ids)}, nil
		},
	}
}

// parseIDs reads token ids separated by blanks or commas; brackets around them are allowed, as JSON has them.
func parseIDs(s string) ([]int32, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		s = s[1 : len(s)-1]
	}
	var ids []int32
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n,", r) }) {
		n, err := strconv.ParseUint(f, 10, 31)
		if err != nil || n > tokenizer.MaxID {
			return nil, fault.New(fault.Usage, "%q is not a token id", f)
		}
		ids = append(ids, int32(n))
	}
	return ids, nil
}

// tokenRow is one token with what training makes of it.
type tokenRow struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
	Kind string `json:"kind"`
	Mask uint8  `json:"mask"` // 1: counts in the loss as a target
}

// inspectTokensResult is the JSON of tokenize inspect.
type inspectTokensResult struct {
	IDs     []int32    `json:"ids"`
	Count   int        `json:"count"`
	Targets int        `json:"targets"`
	Tokens  []tokenRow `json:"tokens"`
}

// Text prints one token a line.
func (r inspectTokensResult) Text(p *cli.Page) {
	var rows [][]string
	for i, t := range r.Tokens {
		rows = append(rows, []string{fmt.Sprint(i), fmt.Sprint(t.ID), fmt.Sprint(t.Mask), t.Kind, strconv.Quote(t.Text)})
	}
	p.Table([]string{">position", ">id", ">mask", "kind", "text"}, rows)
	p.Printf("%s, %d of them targets\n", plural(r.Count, "token"), r.Targets)
}
