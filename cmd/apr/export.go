package main

import (
	"context"
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
}

// Text prints what was written.
func (r exportResult) Text(p *cli.Page) {
	p.Pairs("format", r.Format, "output", r.Output, "size", cli.Bytes(r.Size), "types", typesText(countTypes(r.DTypes)))
	if len(r.Files) > 0 {
		p.Pairs("files", strings.Join(r.Files, ", "))
	}
	printNotes(p, nil, r.Widened, r.Warnings)
	if r.Planned {
		p.Printf("nothing was written (--plan)\n")
	}
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
	var file, output, format, quantize string
	var list, plan, force bool
	return &cli.Command{
		Name: "export", Short: "Write a model for other programs: a Hugging Face folder or a GGUF file",
		Long: "Use export when a model leaves apr: a folder for transformers, a GGUF file for llama.cpp and ollama, by the output's\n" +
			"name. Without --quantize every tensor keeps its type where the format can hold it. A tensor that has no name in the\n" +
			"format is an error.",
		Example: "apr export student.apr -o student-folder\napr export student.apr -o student.gguf --quantize q4_k_m",
		Exits:   append(openExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "file", Foreign: []string{"model", "model-path", "input"}, Arg: true, Model: true, Value: cli.String(&file, ""), Help: "model to export"},
			{Name: "format", Value: cli.Enum(&format, "", "hf", "gguf").Alias("safetensors", "hf").
				Unbuilt("onnx", "mlx", "openvino", "coreml", "torchscript"), Default: "by the output's name", Help: "what to write"},
			{Name: "output", Foreign: []string{"outfile", "out", "output-dir"}, Short: "o", Path: true, Value: cli.String(&output, ""), Help: "folder (hf) or file (gguf) to write"},
			{Name: "quantize", Foreign: []string{"outtype", "quantization", "scheme", "type"}, Value: schemeValue(&quantize, ""), Default: "types stay", Help: "quantise to this scheme; GGUF only for block types"},
			{Name: "list-formats", Value: cli.Bool(&list, false), Help: "list the formats, and stop"},
			{Name: "plan", Value: cli.Bool(&plan, false), Help: "say what would be written, and stop"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace an existing output"},
		},
		Run: func(ctx context.Context, e *cli.Env) (_ cli.Result, err error) {
			if list {
				if file != "" {
					return nil, fault.New(fault.Usage, "FILE has no effect with --list-formats")
				}
				for _, flag := range e.Settings.Asked("output", "format", "quantize", "plan", "force") {
					return nil, fault.New(fault.Usage, "%s has no effect with --list-formats", flag)
				}
				return formatList{exportFormats}, nil
			}
			if file == "" || output == "" {
				return nil, fault.New(fault.Usage, "FILE and --output are needed").WithHint("--list-formats needs neither")
			}
			if format, err = chooseExport(output, format); err != nil {
				return nil, err
			}
			rep, err := quantise(ctx, e, file, output, convert.Options{Scheme: convert.Scheme(quantize), To: format, Force: force}, plan)
			if err != nil {
				return nil, err
			}
			warn(e, rep)
			return exportResult{
				Format: format, Output: output, Files: rep.Files, Size: rep.OutputSize, Warnings: rep.Warnings, Widened: rep.Widened,
				DTypes: rep.DTypes, Planned: plan,
			}, nil
		},
	}
}
