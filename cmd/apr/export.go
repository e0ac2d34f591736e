package main

import (
	"cmp"
	"context"
	"path/filepath"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
)

// exportFormats are what apr export writes.
var exportFormats = []exportFormat{
	{"hf", "Hugging Face folder: config.json, safetensors (sharded above 5 GB), tokenizer and generation files", []string{"bf16", "f16", "f32"}},
	{"gguf", "GGUF file with tokenizer and chat template, as llama.cpp reads it", convert.Schemes()},
}

type exportFormat struct {
	Name     string   `json:"name"`
	Help     string   `json:"description"`
	Quantize []string `json:"quantize"`
}

// exportResult is the JSON of apr export; files are relative to the output's folder.
type exportResult struct {
	Format   string            `json:"format"`
	Output   string            `json:"output"`
	Files    []string          `json:"files"`
	Size     int64             `json:"size_bytes"` // with --plan: of the payloads
	Warnings []string          `json:"warnings"`
	Widened  []string          `json:"widened"`
	DTypes   map[string]string `json:"dtypes"`
	Planned  bool              `json:"planned"` // true: nothing was written
	Ollama   *string           `json:"modelfile"`

	Exceptions []string `json:"exceptions"` // to the scheme: how many, which type, why

	scheme           string
	refused          bool // by llama.cpp, as a warning says
	templated, chats bool // the Modelfile has a TEMPLATE; the model has a chat template, and learned conversations
}

// Text prints what was written.
func (r exportResult) Text(p *cli.Page) {
	p.Pairs(append([]string{"format", r.Format, "output", r.Output, "files", strings.Join(r.Files, ", "), "size", cli.Bytes(r.Size)},
		typePairs(r.DTypes, r.scheme, r.Exceptions, r.Widened)...)...)
	printPlanned(p, r.Planned)
	r.printUse(p)
}

// countTypes counts the tensors of each type.
func countTypes(dtypes map[string]string) map[string]int {
	count := map[string]int{}
	for _, d := range dtypes {
		count[d]++
	}
	return count
}

// formatList is the JSON of apr export --list-formats.
type formatList struct {
	Formats []exportFormat `json:"formats"`
}

// Text prints the formats.
func (l formatList) Text(p *cli.Page) {
	var rows [][]string
	for _, f := range l.Formats {
		rows = append(rows, []string{f.Name, strings.Join(f.Quantize, " "), f.Help})
	}
	p.Table([]string{"format", "--quantize", ""}, rows)
}

// modelEndings are what a model may be called; the first two are exported.
var modelEndings = formats{{"hf", nil}, {"gguf", []string{".gguf"}}, {"apr", []string{".apr"}}, {"safetensors", []string{".safetensors"}}}

// chooseExport returns the format of an export: by its flag, or by the output's name.
func chooseExport(output, format string) (string, error) {
	_, chosen, err := modelEndings[:2].choose(output, format, "hf")
	if _, named, _ := modelEndings.choose(output, "", "hf"); named == "apr" || named == "safetensors" {
		return "", fault.In(fault.Usage, "--output", "%q is the name of a %s file, which is not exported: hf is a folder, gguf a file", output, named).
			WithHint("apr convert writes %s files", named)
	}
	return chosen, err
}

func exportCommand() *cli.Command {
	w := &rewriting{}
	var list bool
	file, output := w.fileOption("export"), w.outputOption("folder (hf) or file (gguf) to write")
	file.Required, output.Required = false, false
	return &cli.Command{
		Name: "export", Short: "Write a model for other programs: a GGUF file for llama.cpp and ollama, or a Hugging Face folder",
		Long: "Use export when a model leaves apr. The output's name decides: .gguf for llama.cpp and ollama, a folder for\n" +
			"transformers. A GGUF file holds tokenizer and chat template; beside it stands a Modelfile for ollama (NAME.Modelfile).\n" +
			"Without --quantize every tensor keeps its type where the format can hold it; block types such as q4_k_m are for GGUF\n" +
			"only. A tensor that has no name in the format is an error.\n" + whichCommand,
		Example: "apr export 20261120 -o student.gguf --quantize q4_k_m\napr export student.apr -o student-folder\n" +
			"apr export base.gguf --adapter runs/mine -o merged.gguf\napr export base/ --adapter adapter/ --adapter-only -o adapter.gguf",
		Exits: append(openExits, fault.Invalid),
		Options: append([]cli.Option{
			file, output, w.schemeOption(), adapterOption(&w.adapter),
			{Name: "adapter-only", Value: cli.Bool(&w.adapterOnly, false),
				Help: "write only the adapter (from --adapter, or from a run that was trained with --lora), for PEFT (a folder) or llama.cpp (.gguf)"},
			{Name: "format", Value: cli.Enum(&w.format, "", "hf", "gguf").Alias("safetensors", "hf").
				Unbuilt("onnx", "mlx", "openvino", "coreml", "torchscript"), Default: "by the output's name", Help: "what to write"},
			{Name: "list-formats", Value: cli.Bool(&list, false), Help: "list the formats, and stop"},
		}, append(w.importanceOptions(), w.lastOptions()...)...),
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if list {
				return w.listFormats(e)
			}
			return w.export(ctx, e)
		},
	}
}

// listFormats refuses flags that would do nothing.
func (w *rewriting) listFormats(e *cli.Env) (cli.Result, error) {
	if w.file != "" {
		return nil, fault.New(fault.Usage, "FILE has no effect with --list-formats")
	}
	for _, flag := range e.Settings.Asked("output", "format", "quantize", "imatrix", "data", "plan", "force", "adapter", "adapter-only") {
		return nil, fault.New(fault.Usage, "%s has no effect with --list-formats", flag)
	}
	return formatList{exportFormats}, nil
}

// missing says which argument of an export is missing, with a command that has all.
func (w *rewriting) missing() error {
	model, scheme := cmp.Or(w.file, "MODEL"), ""
	if w.scheme != "" {
		scheme = " --quantize " + w.scheme
	}
	name := strings.TrimSuffix(filepath.Base(model), filepath.Ext(model))
	output := cmp.Or(w.output, strings.ToLower(name)+".gguf")
	if w.output == "" && w.format == "hf" {
		output = name + "-folder"
	}
	err := fault.New(fault.Usage, "missing --output: folder (hf) or file (gguf) to write")
	if w.file == "" {
		err = fault.New(fault.Usage, "missing argument FILE: model or run to export")
	}
	return err.WithHint("apr export %s -o %s%s", quoted(model), quoted(output), scheme)
}

// export writes a folder, or a GGUF file and a Modelfile.
func (w *rewriting) export(ctx context.Context, e *cli.Env) (_ cli.Result, err error) {
	if w.file == "" || w.output == "" {
		return nil, w.missing()
	}
	if w.format, err = chooseExport(w.output, w.format); err != nil {
		return nil, err
	}
	if err := w.alone(e); err != nil {
		return nil, err
	}
	if w.adapterOnly {
		return w.writeAdapter(ctx, e)
	}
	c, err := w.open(ctx, e)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ollama := w.format == "gguf" && !w.plan
	if ollama {
		if err := w.checkModelfile(c); err != nil {
			return nil, err
		}
	}
	rep, err := w.writeOpened(ctx, e, c)
	if err != nil {
		return nil, err
	}
	warn(e, rep.Warnings)
	r := exportResult{
		Format: w.format, Output: w.output, Files: rep.Files, Size: rep.OutputSize, Warnings: rep.Warnings, Widened: rep.Widened,
		DTypes: rep.DTypes, Planned: w.plan, Exceptions: rep.Exceptions, scheme: w.scheme, refused: rep.NotInLlamaCpp != "",
	}
	if ollama {
		err = w.addModelfile(c, &r)
	}
	return r, err
}
