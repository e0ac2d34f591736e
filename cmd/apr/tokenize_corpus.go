package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apr/corpus"
	"apr/hub"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/keep"
	"apr/tokenizer"
)

var kindNames = map[tokenizer.Kind]string{
	tokenizer.Normal: "normal", tokenizer.Unknown: "unknown", tokenizer.Control: "control",
	tokenizer.UserDefined: "user-defined", tokenizer.Unused: "unused", tokenizer.Byte: "byte",
}

func tokenizeInspect() *cli.Command {
	var model, template, textField, messagesField string
	var text textOptions
	var record int
	return &cli.Command{
		Name: "inspect", Short: "Show each token of a training document with its mask",
		Long: "Show the tokens of a document as training sees them, with the end-of-text id behind it, each with its\n" +
			"mask: 1 where it counts as a target. In a file of records, such as .jsonl, .parquet and .csv,\n" +
			"--record chooses one. In a conversation only the assistant's turns are targets.",
		Example: "apr tokenize inspect model-folder -p 'func main() {'\n" +
			"apr tokenize inspect model-folder -f chat.jsonl --record 3\n" +
			"apr tokenize inspect model-folder -f table.csv --text-field body",
		Exits: tokenizeExits,
		Options: append(append([]cli.Option{
			{Name: "model", Arg: true, Required: true, Model: true, Value: cli.String(&model, ""), Help: "model, or folder with tokenizer.json"},
			{Name: "record", Value: cli.Int(&record, 1).AtLeast(1), Help: "take this record of the file, from 1"},
			{Name: "chat-template", Path: true, Keywords: []string{"auto", "none", "chatml"}, Value: cli.String(&template, "auto"), Help: "chat template: auto (the model's own), chatml, none, or a file with a Jinja template"},
		}, fieldOptions(&textField, &messagesField)...), text.table()...),
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if text.file == "" || text.file == "-" {
				why := "with a text that is no file"
				err := refuseIdle([]idle{
					{"record", e.Settings.Changed("record"), why},
					{"chat-template", e.Settings.Changed("chat-template") && template != "none", why},
					{"text-field", e.Settings.Given("text-field"), why}, {"messages-field", e.Settings.Given("messages-field"), why},
				})
				if err != nil {
					return nil, err
				}
			}
			tok, err := findTokenizer(ctx, e, model)
			if err != nil {
				return nil, err
			}
			enc, err := corpus.ForTokenizer(tok, template)
			if err != nil {
				return nil, err
			}
			doc, err := document(ctx, e, &text, record, readOptions(e.Settings, textField, messagesField))
			if err != nil {
				return nil, err
			}
			return inspectTokens(tok, enc, doc)
		},
	}
}

// errFound stops reading at the wanted document.
var errFound = errors.New("found")

// document returns the text of the options, or one record of the file.
func document(ctx context.Context, e *cli.Env, text *textOptions, record int, fields corpus.ReadOptions) (
	doc corpus.Document, _ error,
) {
	if e.Settings.Given("prompt") || text.file == "-" || text.file == "" {
		s, err := text.text(e)
		return corpus.Document{Text: s}, err
	}
	n := 0
	fields.AnyText = true
	report, err := corpus.Read(ctx, []string{text.file}, fields, func(d corpus.Document) error {
		n++
		if n == record {
			doc = d
			return errFound
		}
		return nil
	})
	switch {
	case errors.Is(err, errFound):
		return doc, report.Idle(nil, e.Settings.Asked("text-field", "messages-field"))
	case err != nil:
		return doc, err
	}
	return doc, fault.In(fault.Usage, "--record", "%d is past the last of %d documents", record, n)
}

// inspectTokens encodes a document and describes its tokens.
func inspectTokens(tok *tokenizer.Tokenizer, enc *corpus.TextEncoder, doc corpus.Document) (cli.Result, error) {
	var ids []int32
	var mask []uint8
	var err error
	if doc.Messages != nil {
		if ids, mask, err = enc.AppendChat(nil, nil, doc.Messages); err != nil {
			return nil, err
		}
	} else {
		ids = enc.AppendText(nil, doc.Text)
		mask = make([]uint8, len(ids))
		for i := range mask {
			mask[i] = 1
		}
	}
	if eos, err := corpus.EndOfText(tok); err == nil { // as corpus joins documents: a target behind a text, none behind a conversation
		ids = append(ids, eos)
		var target uint8
		if doc.Messages == nil {
			target = 1
		}
		mask = append(mask, target)
	}
	r := inspectTokensResult{IDs: ids, Count: len(ids)}
	for i, id := range ids {
		s, _ := tok.Bytes(id)
		r.Tokens = append(r.Tokens, tokenRow{id, strings.ToValidUTF8(s, "\uFFFD"), kindNames[tok.Kind(id)], mask[i]})
		r.Targets += int(mask[i])
	}
	return r, nil
}

// corpusResult is the JSON of tokenize encode-corpus.
type corpusResult struct {
	Output string `json:"output"`
	*corpus.ShardReport
}

// Text prints the shards and totals.
func (r corpusResult) Text(p *cli.Page) {
	var rows [][]string
	for _, s := range r.Shards {
		rows = append(rows, []string{s.Name, cli.Count(s.Tokens), s.SHA256})
	}
	p.Table([]string{"shard", ">tokens", "sha256"}, rows)
	p.Printf("%s tokens of %s documents in %s\n", cli.Count(r.TotalTokens), cli.Count(r.Source.Documents), r.Output)
}

// normalizing applies NFC before encoding, also for tokenizers that have no normaliser of their own.
type normalizing struct{ *corpus.TextEncoder }

// AppendText implements corpus.Encoder.
func (n normalizing) AppendText(ids []int32, text string) []int32 {
	return n.TextEncoder.AppendText(ids, tokenizer.NFC(text))
}

func tokenizeCorpus() *cli.Command {
	var paths []string
	var tokPath, output, field, normalization, policy string
	var shard int64
	var workers int
	var force bool
	return &cli.Command{
		Name: "encode-corpus", Short: "Encode documents into token shards",
		Long: "Encode documents into shards of little-endian 32-bit ids, with a manifest. Texts are plain text: what looks like a\n" +
			"special token in them is text. The bytes depend on the data, the tokenizer and the options only.",
		Example: "apr tokenize encode-corpus --corpus data.jsonl --tokenizer model-folder --output shards", Exits: tokenizeExits,
		Options: []cli.Option{
			{Name: "corpus", Required: true, Path: true, Value: cli.Strings(&paths), Help: "text to encode: .jsonl, .parquet, .csv, .txt, a folder, or hf://datasets/ORG/NAME; repeatable"},
			{Name: "tokenizer", Required: true, Model: true, Value: cli.String(&tokPath, ""), Help: "model, or folder with tokenizer.json"},
			{Name: "output", Short: "o", Required: true, Path: true, Value: cli.String(&output, ""), Help: "folder to write"},
			{Name: "shard-tokens", Value: cli.Int64(&shard, corpus.DefaultShardTokens).AtLeast(1), Help: "ids per shard"},
			{Name: "content-field", Aliases: []string{"text-field"}, Value: cli.String(&field, "content"), Default: "text, content: the first present", Help: "field that holds the text"},
			{Name: "normalization", Value: cli.Enum(&normalization, "nfc", "nfc").Unbuilt("none", "nfkc"), Help: "Unicode normalisation"},
			{Name: "eos-policy", Value: cli.Enum(&policy, string(corpus.EOSBetween), string(corpus.EOSBetween), string(corpus.EOSNone)), Help: "put end-of-text ids between documents, or none"},
			{Name: "num-workers", Value: cli.Int(&workers, 0).AtLeast(0), Default: "one per CPU", Help: "goroutines that encode; the result does not depend on it"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace existing shards"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if err := alone(e); err != nil {
				return nil, err
			}
			tokPath, err := find(ctx, e, tokPath, hub.Tokenizer)
			if err != nil {
				return nil, err
			}
			tok, err := openTokenizer(e, tokPath)
			if err != nil {
				return nil, err
			}
			if paths, err = dataFiles(ctx, e, paths); err != nil {
				return nil, err
			}
			if err := keep.Inputs(output, append(keep.ModelFiles(tokPath), paths...)...); err != nil {
				return nil, err
			}
			enc, err := corpus.ForTokenizer(tok, "auto")
			if err != nil {
				return nil, err
			}
			eos, err := corpus.EndOfText(tok)
			if err != nil {
				return nil, err
			}
			opt := corpus.ShardOptions{
				Encode:      corpus.EncodeOptions{EOS: eos, Vocab: tok.RealIDs(), Workers: workers},
				ShardTokens: shard, EOSPolicy: corpus.EOSPolicy(policy), Tokenizer: tok.IDsSHA256(), Force: force, ForRecords: e.Settings.Asked("content-field"),
			}
			if e.Settings.Given("content-field") {
				opt.Encode.Read.TextField = field
			}
			rep, err := corpus.EncodeCorpus(ctx, paths, output, normalizing{enc}, opt)
			if err != nil {
				return nil, err
			}
			for _, bad := range rep.Source.Bad {
				e.Log.Warn("record left out", "error", bad)
			}
			if note := rep.Source.NotText(); note != "" {
				e.Log.Warn(note)
			}
			if note := rep.Source.RecordsAsText(); note != "" {
				e.Log.Warn(note)
			}
			return corpusResult{output, rep}, nil
		},
	}
}

// importResult is the JSON of tokenize import-hf.
type importResult struct {
	Input  string   `json:"input"`
	Output string   `json:"output"`
	Files  []string `json:"files"`
	Count  int      `json:"count"` // real ids
	Merges int      `json:"merges"`
	EOS    *int32   `json:"eos_id"`
}

// Text prints what was written.
func (r importResult) Text(p *cli.Page) {
	p.Printf("%d tokens and %d merges written to %s: %s\n", r.Count, r.Merges, r.Output, strings.Join(r.Files, ", "))
}

func tokenizeImport() *cli.Command {
	var input, output string
	var force bool
	return &cli.Command{
		Name: "import-hf", Short: "Check a tokenizer.json and write it as a tokenizer folder",
		Long: "Read a tokenizer.json (or the tokenizer of a model), refuse what cannot be tokenised exactly, and write tokenizer.json,\n" +
			"tokenizer_config.json, vocab.json and merges.txt.",
		Example: "apr tokenize import-hf --input tokenizer.json --output tokenizer", Exits: tokenizeExits,
		Options: []cli.Option{
			{Name: "input", Required: true, Model: true, Value: cli.String(&input, ""), Help: "tokenizer.json, folder or model"},
			{Name: "output", Short: "o", Required: true, Path: true, Value: cli.String(&output, ""), Help: "folder to write"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace existing files"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if err := alone(e); err != nil {
				return nil, err
			}
			path, err := find(ctx, e, input, hub.Tokenizer)
			if err != nil {
				return nil, err
			}
			tok, err := openTokenizer(e, path)
			if err != nil {
				return nil, err
			}
			return importTokenizer(tok, path, output, force)
		},
	}
}

// importTokenizer writes the four files of a tokenizer folder.
func importTokenizer(tok *tokenizer.Tokenizer, input, output string, force bool) (cli.Result, error) {
	data := tok.Data()
	vocab := map[string]int{}
	for id, text := range data.Vocabulary {
		if tok.Kind(int32(id)) == tokenizer.Normal {
			vocab[text] = id
		}
	}
	vocabJSON, err := json.MarshalIndent(vocab, "", " ")
	if err != nil {
		return nil, fmt.Errorf("vocab.json: %w", err)
	}
	for _, name := range []string{"vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.json"} {
		if err := keep.Inputs(filepath.Join(output, name), keep.ModelFiles(input)...); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return nil, fault.In(fault.IO, output, "cannot be created").Because(err)
	}
	r := importResult{Input: input, Output: output, Count: tok.RealIDs(), Merges: len(data.Merges)}
	if tok.EOS() != tokenizer.None {
		eos := tok.EOS()
		r.EOS = &eos
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"vocab.json", append(vocabJSON, '\n')},
		{"merges.txt", []byte("#version: 0.2\n" + strings.Join(data.Merges, "\n") + "\n")},
		{"tokenizer_config.json", tok.MarshalConfig(0)},
		{"tokenizer.json", tok.MarshalTokenizer()},
	} {
		if err := atomicfile.WriteFile(filepath.Join(output, f.name), f.data, force); err != nil {
			return nil, err
		}
		r.Files = append(r.Files, f.name)
	}
	return r, nil
}
