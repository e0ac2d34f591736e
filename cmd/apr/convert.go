package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/tensor"
)

// rewriting holds the options that export, convert, quantize and import share. Each of them reads a model and writes it
// in another form.
type rewriting struct {
	file, output, format, scheme string
	plan, force, odd             bool
	imatrix                      string   // see importance
	data                         []string //

	adapter     string // of export and quantize
	adapterOnly bool
	dtype       tensor.DType // of matrices that are merged; Invalid: float32
}

// fileOption is the model's argument.
func (w *rewriting) fileOption(verb string) cli.Option {
	return cli.Option{Name: "file", Foreign: []string{"model", "model-path", "input"}, Arg: true, Required: true, Model: true, Value: cli.String(&w.file, ""), Help: "model or run to " + verb}
}

// outputOption is --output.
func (w *rewriting) outputOption(help string) cli.Option {
	return cli.Option{Name: "output", Foreign: []string{"outfile", "out", "output-dir"}, Short: "o", Required: true, Path: true, Value: cli.String(&w.output, ""), Help: help}
}

// schemeOption is --quantize; apr quantize calls it --scheme.
func (w *rewriting) schemeOption() cli.Option {
	return cli.Option{Name: "quantize", Foreign: []string{"outtype", "quantization", "scheme", "type"}, Value: w.schemeValue(), Default: "types stay", Help: "quantise to this scheme, in any letter case"}
}

func (w *rewriting) schemeValue() *cli.EnumValue {
	return cli.Enum(&w.scheme, "", convert.Schemes()...).Alias("q4_k", "q4k").Alias("q5_k", "q5k").Alias("q6_k", "q6k").Alias("q3_k", "q3k").Alias("q2k", "q2_k").Unbuilt(convert.UnbuiltSchemes()...).AnyCase()
}

// alone refuses to be one of several processes that write the same output; with --plan nothing is written.
func (w *rewriting) alone(e *cli.Env) error {
	if w.plan {
		return nil
	}
	return alone(e)
}

// lastOptions are --plan and --force.
func (w *rewriting) lastOptions() []cli.Option {
	return []cli.Option{
		w.oddOption(),
		{Name: "plan", Value: cli.Bool(&w.plan, false), Help: "say what would be written, and stop"},
		{Name: "force", Value: cli.Bool(&w.force, false), Help: "replace an existing output"},
	}
}

// oddWeights is the flag that lets weights pass which no trained model has.
const (
	oddWeights     = "allow-odd-weights"
	oddWeightsHelp = "warn of weights that `apr validate` refuses, such as a matrix that is there twice, and go on"
)

// oddOption is --allow-odd-weights.
func (w *rewriting) oddOption() cli.Option {
	return cli.Option{Name: oddWeights, Value: cli.Bool(&w.odd, false), Help: oddWeightsHelp}
}

// open opens the model.
func (w *rewriting) open(ctx context.Context, e *cli.Env) (*convert.Container, error) {
	c, err := openModel(ctx, e, w.file)
	if err != nil {
		return nil, err
	}
	if err := w.mergeContainer(e, c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// write opens the model and writes it, or plans to.
func (w *rewriting) write(ctx context.Context, e *cli.Env) (*convert.Report, error) {
	c, err := w.open(ctx, e)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return w.writeOpened(ctx, e, c)
}

// writeOpened is write for an opened model.
func (w *rewriting) writeOpened(ctx context.Context, e *cli.Env, c *convert.Container) (*convert.Report, error) {
	importance, err := w.importance(ctx, e, c)
	if err != nil {
		return nil, err
	}
	opt := convert.Options{Scheme: convert.Scheme(w.scheme), To: w.format, Force: w.force, AllowOdd: w.odd, DType: w.dtype, Inputs: w.adapterFiles(), Importance: importance}
	if w.imatrix != "" {
		opt.Inputs = append(opt.Inputs, w.imatrix)
	}
	if w.plan {
		_, rep, err := convert.Plan(c, w.output, opt)
		return rep, err
	}
	return rewrite(e, c, w.output, opt, func(opt convert.Options) (*convert.Report, error) { return convert.Write(ctx, c, w.output, opt) })
}

// rewrite shows the progress of a writer of models.
func rewrite(e *cli.Env, c *convert.Container, output string, opt convert.Options, write func(convert.Options) (*convert.Report, error)) (*convert.Report, error) {
	bar := e.Progress("writing "+filepath.Base(output), c.Bytes(), cli.Bytes)
	defer bar.Close()
	opt.Progress, opt.Version = bar.Add, version
	return write(opt)
}

// convertResult is the JSON of apr convert.
type convertResult struct {
	Input        string            `json:"input"`
	Output       string            `json:"output"`
	OriginalSize int64             `json:"original_size"`
	OutputSize   int64             `json:"output_size"`
	Tensors      map[string]string `json:"tensors"` // name → type in the output
	Files        []string          `json:"files"`
	Planned      bool              `json:"planned"` // true: nothing was written
	Widened      []string          `json:"widened"`
	Warnings     []string          `json:"warnings"`
	Exceptions   []string          `json:"exceptions"` // to the scheme: how many, which type, why

	scheme string
}

// Text prints sizes and types.
func (r convertResult) Text(p *cli.Page) {
	p.Pairs(append([]string{"input", r.Input, "output", r.Output, "size", sizes(r.OriginalSize, r.OutputSize, r.Planned)},
		typePairs(r.Tensors, r.scheme, r.Exceptions, r.Widened)...)...)
	printPlanned(p, r.Planned)
}

func convertCommand() *cli.Command {
	w := &rewriting{}
	var compress string
	return &cli.Command{
		Name: "convert", Short: "Convert a model to .apr, GGUF, safetensors or a Hugging Face folder",
		Long: "Use convert to keep a model as it is in another format. The output's name decides: .apr, .gguf, .safetensors (one\n" +
			"file), else a Hugging Face folder. Without --quantize every tensor keeps its type where the output can hold it.\n" +
			whichCommand,
		Example: "apr convert model-folder -o model.apr\napr convert model.apr -o model-folder --quantize bf16",
		Exits:   append(openExits, fault.Invalid),
		Options: append([]cli.Option{
			w.fileOption("convert"), w.outputOption("file to write, its format by the ending; another name is a folder"), w.schemeOption(),
			{Name: "compress", Value: cli.Enum(&compress, "none", "none").Unbuilt("zstd", "lz4"), Help: "compression"},
		}, w.lastOptions()...),
		Run: func(ctx context.Context, e *cli.Env) (_ cli.Result, err error) {
			if _, w.format, err = modelEndings.choose(w.output, "", "hf"); err != nil {
				return nil, err
			}
			if err := w.alone(e); err != nil {
				return nil, err
			}
			rep, err := w.write(ctx, e)
			if err != nil {
				return nil, err
			}
			warn(e, rep.Warnings)
			return convertResult{
				Input: w.file, Output: w.output, OriginalSize: rep.OriginalSize, OutputSize: rep.OutputSize, Tensors: rep.DTypes,
				Files: rep.Files, Planned: w.plan, Widened: rep.Widened, Warnings: rep.Warnings, Exceptions: rep.Exceptions, scheme: w.scheme,
			}, nil
		},
	}
}

// whichCommand is the paragraph of their help that says when to use which.
const whichCommand = "Which command? export: the model leaves apr, for llama.cpp, ollama or transformers. quantize: make it smaller and see\n" +
	"the rounding errors. convert: the same model in another format. import: check a model of another program and keep it\n" +
	"as one .apr file."

// sizes returns the sizes of input and output as text. from is the bytes of the input's tensors. to is the bytes of the
// output's tensors where the output is only planned, else of its whole files.
func sizes(from, to int64, planned bool) string {
	if planned {
		return cli.Bytes(from) + " → " + cli.Bytes(to) + " of tensors"
	}
	return cli.Bytes(from) + " of tensors → " + cli.Bytes(to) + " in all"
}

// printPlanned says that nothing was written.
func printPlanned(p *cli.Page, planned bool) {
	if planned {
		p.Printf("nothing was written (--plan)\n")
	}
}

// typePairs returns lines for the summary: the number of tensors of each type, the most frequent type first, and the
// reasons why tensors have another type than the scheme's.
func typePairs(dtypes map[string]string, scheme string, exceptions, widened []string) []string {
	count := countTypes(dtypes)
	types := slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(count[b]-count[a], strings.Compare(a, b)) })
	var parts []string
	for i, d := range types {
		parts = append(parts, fmt.Sprintf("%s %s", cli.Count(int64(count[d])), d))
		if i == 0 {
			parts[0] = fmt.Sprintf("%s tensors %s", cli.Count(int64(count[d])), d)
		}
	}
	pairs := []string{"types", strings.Join(parts, ", ")}
	for _, line := range exceptions {
		pairs = append(pairs, "", line)
	}
	if d := convert.Scheme(scheme).Type(); len(exceptions) > 0 && count[d] == 0 {
		pairs = append(pairs, "", "so none is "+d)
	}
	if len(widened) > 0 {
		pairs = append(pairs, "", fmt.Sprintf("%d widened to f32: the output cannot hold their type", len(widened)))
	}
	return pairs
}

// warn writes warnings to stderr: a reader sees them even if stdout goes to a file or another program.
func warn(e *cli.Env, warnings []string) {
	for _, w := range warnings {
		e.Log.Warn(w)
	}
}
