package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/teacher/cache"
)

// inspectResult is the JSON of apr inspect; vocab, weights and quality are there only when asked for.
type inspectResult struct {
	*convert.Summary
	Vocab   []convert.Token     `json:"vocab,omitempty"`
	Weights []tensorRow         `json:"weights,omitempty"`
	Quality *convert.Validation `json:"quality,omitempty"`
}

// Text prints the summary, then what was asked for.
func (r inspectResult) Text(p *cli.Page) {
	format := r.Format
	if r.Version != nil {
		format += " " + *r.Version
	}
	if len(r.Flags) > 0 {
		format += " (" + strings.Join(r.Flags, ", ") + ")"
	}
	pairs := []string{"file", r.File, "format", format, "architecture", r.Architecture,
		"parameters", cli.Count(r.ParamCount),
		"tensors", cli.Count(int64(r.TensorCount)), "size", cli.Bytes(r.SizeBytes), "types", typesText(r.DTypes)}
	if r.NotComputed != "" {
		pairs = append(pairs, "computed", "not yet: the model has "+r.NotComputed+", and can be inspected and converted only")
	}
	if r.SHA256 != nil {
		pairs = append(pairs, "sha256", *r.SHA256)
	}
	p.Pairs(append(pairs, "content", contentText[r.Content])...)
	printFields(p, "configuration", r.Config)
	printFields(p, "tokenizer", r.Tokenizer)
	printFields(p, "provenance", r.Provenance)
	if len(r.Weights) > 0 {
		p.Printf("\n")
		tensorsResult{Tensors: r.Weights, TensorCount: r.TensorCount, TotalSize: r.SizeBytes}.Text(p)
	}
	if len(r.Vocab) > 0 {
		var rows [][]string
		for _, t := range r.Vocab {
			rows = append(rows, []string{fmt.Sprint(t.ID), t.Kind, fmt.Sprintf("%q", t.Text)})
		}
		p.Printf("\n")
		p.Table([]string{">id", "kind", "text"}, rows)
	}
	if r.Quality != nil {
		p.Printf("\n")
		validateResult{File: r.File, Validation: r.Quality}.Text(p)
	}
	if n := len(r.Left); n > 0 {
		p.Printf("not read: %d tensors of other parts of the model, %s\n", n, leftText(r.Left))
	}
}

// leftText names the parts that tensors are of: the first words of their names.
func leftText(names []string) string {
	var parts []string
	for _, name := range names {
		words := strings.SplitN(name, ".", 3)
		part := strings.Join(words[:min(2, len(words))], ".")
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	const most = 4
	if len(parts) > most {
		return strings.Join(parts[:most], ", ") + " …"
	}
	return strings.Join(parts, ", ")
}

// contentText says what is known of a model's payloads.
var contentText = map[convert.Content]string{
	convert.Checked:    "as it was written, by the checksum over the file",
	convert.NotChecked: "not checked: headers alone were read; apr validate reads all of it",
	convert.NoChecksum: "not to be checked: the file has no checksum",
}

// typesText prints "q4_k 31, f32 31".
func typesText(dtypes map[string]int) string {
	var parts []string
	for d, n := range dtypes {
		parts = append(parts, fmt.Sprintf("%s %d", d, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// printFields prints a titled block of pairs.
func printFields(p *cli.Page, title string, fields map[string]any) {
	if len(fields) == 0 {
		return
	}
	fields = flatten(fields)
	keys := slices.Sorted(maps.Keys(fields))
	p.Printf("\n%s\n", p.Bold(title))
	var kv []string
	for _, k := range keys {
		kv = append(kv, "  "+cli.Clean(k), shorten(fmt.Sprint(fields[k])))
	}
	p.Pairs(kv...)
}

// flatten puts the fields of objects in fields in their place, named outer.inner.
func flatten(fields map[string]any) map[string]any {
	flat := map[string]any{}
	for k, v := range fields {
		object, ok := v.(map[string]any)
		if !ok {
			flat[k] = v
			continue
		}
		for inner, v := range flatten(object) {
			flat[k+"."+inner] = v
		}
	}
	return flat
}

// shorten cuts a long value to a line.
func shorten(s string) string {
	if r := []rune(s); len(r) > 100 {
		return string(r[:99]) + "…"
	}
	return s
}

func inspectCommand() *cli.Command {
	var file string
	var vocab, weights, quality, hash bool
	return &cli.Command{
		Name: "inspect", Short: "Describe a model file, or a teacher's cache",
		Long: "Describes a model from its headers alone, so that its size does not matter. It counts the tokens; whether vocabulary and\n" +
			"merges can be used, apr validate checks.",
		Example: "apr inspect model.apr\napr inspect model-folder --hash --json",
		Exits:   openExits,
		Options: []cli.Option{
			{Name: "file", Arg: true, Required: true, Model: true, Value: cli.String(&file, ""), Help: "model or run"},
			{Name: "vocab", Value: cli.Bool(&vocab, false), Help: "list the vocabulary"},
			{Name: "weights", Value: cli.Bool(&weights, false), Help: "list the tensors"},
			{Name: "quality", Value: cli.Bool(&quality, false), Help: "judge the content, as apr validate --quality does"},
			{Name: "hash", Value: cli.Bool(&hash, false), Help: "print the SHA-256 of the file; of a cache, check all of it"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if cache.Is(file) {
				return inspectCache(file, hash)
			}
			c, err := openModel(ctx, e, file)
			if err != nil {
				return nil, err
			}
			defer c.Close()
			r := inspectResult{}
			if r.Summary, err = convert.Summarize(ctx, c, hash); err != nil {
				return nil, err
			}
			warn(e, r.Warnings)
			if vocab {
				if r.Vocab, err = convert.Vocabulary(c); err != nil {
					return nil, err
				}
			}
			if weights {
				for _, t := range c.File.Tensors() {
					r.Weights = append(r.Weights, tensorRow{Name: t.Name, Shape: t.Shape, DType: t.Held().DType.String(), SizeBytes: t.Held().Size})
				}
			}
			if quality {
				bar := e.Progress("reading "+file, c.Bytes(), cli.Bytes)
				defer bar.Close()
				if r.Quality, err = convert.Validate(ctx, c, convert.ValidateOptions{Quality: true}, bar.Add); err == nil {
					r.Content = c.Content(true)
				}
			}
			return r, err
		},
	}
}
