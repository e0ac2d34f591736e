package main

import (
	"context"
	"path/filepath"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
)

// schemeValue is the option of a type scheme, for convert and quantize.
func schemeValue(p *string, def string) *cli.EnumValue {
	return cli.Enum(p, def, convert.Schemes()...).Alias("q4_k", "q4k").Alias("q6_k", "q6k").Unbuilt(convert.UnbuiltSchemes()...)
}

// convertResult is the JSON of apr convert.
type convertResult struct {
	Input        string            `json:"input"`
	Output       string            `json:"output"`
	OriginalSize int64             `json:"original_size"`
	OutputSize   int64             `json:"output_size"`
	Tensors      map[string]string `json:"tensors"` // name → type in the output
	Files        []string          `json:"files"`
	Widened      []string          `json:"widened"`
	Warnings     []string          `json:"warnings"`
}

// Text prints sizes and what was widened.
func (r convertResult) Text(p *cli.Page) {
	p.Pairs("input", r.Input, "output", r.Output,
		"size", cli.Bytes(r.OriginalSize)+" → "+cli.Bytes(r.OutputSize), "tensors", cli.Count(int64(len(r.Tensors))))
	printNotes(p, nil, r.Widened, r.Warnings)
}

func convertCommand() *cli.Command {
	var file, output, quantize, compress string
	var force bool
	return &cli.Command{
		Name: "convert", Short: "Convert a model to .apr, GGUF, safetensors or a Hugging Face folder",
		Long: "Use convert to keep a model as it is in another format. The output's name decides: .apr, .gguf, .safetensors (one\n" +
			"file), else a Hugging Face folder. To shrink a model see apr quantize, which prints the rounding errors. Without\n" +
			"--quantize every tensor keeps its type where the output can hold it.",
		Example: "apr convert model-folder -o model.apr\napr convert model.apr -o model-folder --quantize bf16",
		Exits:   append(openExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "file", Foreign: []string{"model", "input"}, Arg: true, Required: true, Model: true, Value: cli.String(&file, ""), Help: "model to convert"},
			{Name: "output", Foreign: []string{"outfile", "out"}, Short: "o", Required: true, Path: true, Value: cli.String(&output, ""), Help: "file to write, its format by the ending; another name is a folder"},
			{Name: "quantize", Foreign: []string{"outtype", "scheme", "type"}, Value: schemeValue(&quantize, ""), Default: "types stay", Help: "quantise to this scheme"},
			{Name: "compress", Value: cli.Enum(&compress, "none", "none").Unbuilt("zstd", "lz4"), Help: "compression"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace an existing output"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if _, _, err := modelEndings.choose(output, "", "hf"); err != nil {
				return nil, err
			}
			rep, err := rewrite(ctx, e, file, output, convert.Options{Scheme: convert.Scheme(quantize), Force: force})
			if err != nil {
				return nil, err
			}
			warn(e, rep)
			return convertResult{
				Input: file, Output: output, OriginalSize: rep.OriginalSize, OutputSize: rep.OutputSize, Tensors: rep.DTypes,
				Files: rep.Files, Widened: rep.Widened, Warnings: rep.Warnings,
			}, nil
		},
	}
}

// rewrite opens a model and writes it anew, with a progress bar.
func rewrite(ctx context.Context, e *cli.Env, file, output string, opt convert.Options) (*convert.Report, error) {
	c, err := openModel(ctx, e, file)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	bar := e.Progress("writing "+filepath.Base(output), c.Bytes(), cli.Bytes)
	defer bar.Close()
	opt.Progress, opt.Version = bar.Add, version
	return convert.Write(ctx, c, output, opt)
}

// printNotes prints the lists of a conversion that deserve attention.
func printNotes(p *cli.Page, kept, widened, warnings []string) {
	if len(kept) > 0 {
		p.Printf("%d matrices stay BF16: their last dimension is not divisible by 256\n", len(kept))
	}
	if len(widened) > 0 {
		p.Printf("%d tensors are widened to F32: the output cannot hold their type\n", len(widened))
	}
	for _, w := range warnings {
		p.Printf("warning: %s\n", w)
	}
}

// warn says which signs of damage a conversion met, also where nobody reads its report.
func warn(e *cli.Env, rep *convert.Report) {
	for _, w := range rep.Doubts {
		e.Log.Warn(w)
	}
}
