package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"apr/convert"
	"apr/hub"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/keep"
	"apr/tensor"
	"apr/tokenizer"
)

// importOptions are the flags of apr import.
type importOptions struct {
	rewriting
	arch, dtype, tokenizer string
	preserve, strict, bare bool
}

// importedModel is the JSON of apr import.
type importedModel struct {
	Source       string            `json:"source"`
	Output       string            `json:"output"`
	Architecture string            `json:"architecture"`
	TensorCount  int               `json:"tensor_count"` // of the output
	SHA256       string            `json:"sha256"`       // of the output
	Warnings     []string          `json:"warnings"`
	Format       string            `json:"format"` // of the source
	Preserved    []string          `json:"preserved"`
	Widened      []string          `json:"widened"`
	DTypes       map[string]string `json:"dtypes"`
	Size         int64             `json:"size_bytes"`
}

// Text prints what was written, and every tensor whose blocks could not be kept.
func (r importedModel) Text(p *cli.Page) {
	p.Pairs("source", r.Source, "output", r.Output, "architecture", r.Architecture, "tensors", fmt.Sprint(r.TensorCount),
		"types", typesText(countTypes(r.DTypes)), "size", cli.Bytes(r.Size), "sha256", r.SHA256)
	if len(r.Preserved) > 0 {
		p.Printf("%d tensors keep their blocks byte for byte\n", len(r.Preserved))
	}
	for _, name := range r.Widened {
		p.Printf("widened to %s: %s\n", r.DTypes[name], cli.Clean(name))
	}
}

func importCommand() *cli.Command {
	var o importOptions
	source := o.fileOption("import")
	source.Name = "source"
	return &cli.Command{
		Name: "import", Short: "Import a Hugging Face folder, safetensors or GGUF as .apr",
		Long: "Use import to take a model of another program into one .apr file; architecture, tokenizer and every tensor are checked.\n" +
			"distill, eval and run read the original as well. Blocks of GGUF are kept byte for byte. Aprender's AprQ4 and AprQ8,\n" +
			"rows that are not whole blocks, and FP8 matrices are widened to F32, or to --dtype, and listed.\n" + whichCommand,
		Example: "apr import model-folder -o model.apr\napr import model.gguf -o model.apr --no-preserve-quant --dtype bf16",
		Exits:   append(openExits, fault.Invalid),
		Options: []cli.Option{
			source, o.outputOption("file to write"),
			{Name: "arch", Value: cli.Enum(&o.arch, "auto", convert.Supported()...), Help: "require this architecture"},
			o.schemeOption(),
			{Name: "dtype", Replaces: []string{"quantize"}, Value: cli.Enum(&o.dtype, "", "f32", "bf16", "f16"), Default: "as in the source, F32 for what is widened",
				Help: "type of matrices that are not kept as blocks"},
			{Name: "preserve-quant", Aliases: []string{"preserve-q4k"}, Negatable: true, Value: cli.Bool(&o.preserve, true),
				Help: "keep quantised blocks byte for byte"},
			{Name: "tokenizer", Model: true, Value: cli.String(&o.tokenizer, ""), Default: "the source's",
				Help: "take the tokenizer from this tokenizer.json, folder or model"},
			{Name: "strict", Value: cli.Bool(&o.strict, false), Help: "warnings are errors"},
			{Name: "allow-no-config", Value: cli.Bool(&o.bare, false), Help: "import tensors without a config.json, to inspect them"},
			o.oddOption(),
			{Name: "force", Value: cli.Bool(&o.force, false), Help: "replace an existing output"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			switch {
			case !strings.EqualFold(filepath.Ext(o.output), ".apr"):
				return nil, fault.In(fault.Usage, "--output", "%q does not end in .apr, the format to write", o.output)
			case o.scheme != "" && o.dtype != "":
				return nil, fault.New(fault.Usage, "--quantize and --dtype contradict each other")
			case o.scheme != "" && e.Settings.Given("preserve-quant") && o.preserve:
				return nil, fault.New(fault.Usage, "--quantize and --preserve-quant contradict each other")
			}
			if err := alone(e); err != nil {
				return nil, err
			}
			return o.run(ctx, e)
		},
	}
}

// run opens the source, checks it and writes it.
func (o *importOptions) run(ctx context.Context, e *cli.Env) (cli.Result, error) {
	c, err := o.open(ctx, e)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var inputs []string
	if o.tokenizer != "" {
		path, err := find(ctx, e, o.tokenizer, hub.Tokenizer)
		if err != nil {
			return nil, err
		}
		tok, err := openTokenizer(e, path)
		if err != nil {
			return nil, err
		}
		inputs = keep.ModelFiles(path)
		c.ReadTokenizer = func() (*tokenizer.Tokenizer, error) { return tok, nil }
	}
	opt := convert.Options{
		Scheme: convert.Scheme(o.scheme), To: "apr", Expand: !o.preserve, DType: tensor.ParseDType(o.dtype), Force: o.force, AllowOdd: o.odd, Inputs: inputs,
	}
	rep, err := rewrite(e, c, o.output, opt, func(opt convert.Options) (*convert.Report, error) { return o.write(ctx, c, opt) })
	if err != nil {
		return nil, err
	}
	warn(e, rep.Warnings)
	return o.report(ctx, c, rep)
}

// write writes the output, without a configuration where that is allowed and there is none.
func (o *importOptions) write(ctx context.Context, c *convert.Container, opt convert.Options) (*convert.Report, error) {
	if _, err := c.Config(); err != nil && o.bare {
		arch := o.arch
		if arch == "auto" {
			arch = ""
		}
		if o.strict {
			return nil, fault.In(fault.Invalid, o.file, "has no configuration, and --strict makes the warning of --allow-no-config an error").Because(err)
		}
		return convert.WriteBare(ctx, c, o.output, arch, opt)
	}
	if err := convert.CheckImport(c, o.output, o.arch, o.strict, opt); err != nil {
		return nil, err
	}
	return convert.Write(ctx, c, o.output, opt)
}

// report reads the output back for its hash.
func (o *importOptions) report(ctx context.Context, c *convert.Container, rep *convert.Report) (cli.Result, error) {
	written, err := convert.Open(o.output)
	if err != nil {
		return nil, err
	}
	defer written.Close()
	s, err := convert.Summarize(ctx, written, true)
	if err != nil {
		return nil, err
	}
	r := importedModel{
		Source: o.file, Output: o.output, Architecture: s.Architecture, TensorCount: s.TensorCount, SHA256: *s.SHA256,
		Warnings: rep.Warnings, Format: c.Format, Widened: rep.Widened, DTypes: rep.DTypes, Size: rep.OutputSize,
	}
	for _, t := range c.File.Tensors() {
		if t.DType.IsQuantized() && rep.DTypes[t.Name] == t.DType.String() && o.scheme == "" {
			r.Preserved = append(r.Preserved, t.Name)
		}
	}
	return r, nil
}
