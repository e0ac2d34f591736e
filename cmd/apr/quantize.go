package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/internal/cli"
	"apr/internal/fault"
)

// quantizeResult is the JSON of apr quantize.
type quantizeResult struct {
	Scheme       string             `json:"scheme"`
	Output       string             `json:"output"`
	OriginalSize int64              `json:"original_size"`
	OutputSize   int64              `json:"output_size"` // with --plan: of the payloads
	KeptBF16     []string           `json:"kept_bf16"`
	RMSE         map[string]float64 `json:"rmse"` // tensors whose new type may lose something
	DTypes       map[string]string  `json:"dtypes"`
	Planned      bool               `json:"planned"` // true: nothing was written
	Widened      []string           `json:"widened"`
	Warnings     []string           `json:"warnings"`
	Exceptions   []string           `json:"exceptions"` // to the scheme: how many, which type, why
}

// Text prints sizes and, for each type, how many tensors and the largest error.
func (r quantizeResult) Text(p *cli.Page) {
	p.Pairs("scheme", r.Scheme, "output", r.Output, "size", sizes(r.OriginalSize, r.OutputSize, r.Planned))
	type group struct {
		dtype, worst string
		count        int
		rmse         float64
	}
	groups := map[string]*group{}
	for name, d := range r.DTypes {
		g := groups[d]
		if g == nil {
			g = &group{dtype: d}
			groups[d] = g
		}
		g.count++
		if e := r.RMSE[name]; e > g.rmse || e == g.rmse && e > 0 && name < g.worst {
			g.rmse, g.worst = e, name
		}
	}
	var rows [][]string
	for _, g := range groups {
		row := []string{g.dtype, fmt.Sprint(g.count), "", ""}
		if g.rmse > 0 {
			row[2], row[3] = fmt.Sprintf("%.3g", g.rmse), g.worst
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	p.Table([]string{"type", ">tensors", ">largest rmse", "of"}, rows)
	for _, line := range r.Exceptions {
		p.Printf("%s\n", line)
	}
	if n := len(r.Widened); n > 0 {
		p.Printf("%d widened to f32: the output cannot hold their type\n", n)
	}
	printPlanned(p, r.Planned)
}

func quantizeCommand() *cli.Command {
	w := &rewriting{}
	scheme := w.schemeOption()
	scheme.Name, scheme.Short, scheme.Required, scheme.Default, scheme.Foreign = "scheme", "s", true, "", []string{"quantize", "quantization", "type", "outtype"}
	scheme.Help = "quantisation scheme, in any letter case"
	return &cli.Command{
		Name: "quantize", Short: "Quantise a model",
		Long: "Use quantize to make a model smaller, such as a 4-bit teacher: it prints the rounding error of every type. The\n" +
			"output's name decides the format, .apr or .gguf. q4_k_m, q5_k_m, q3_k_m, q2_k, q4_0 and q5_0 are llama.cpp's mixes:\n" +
			"mostly the type they are named after, Q6_K for the output matrix and other types for some others. q3k, q4k, q5k and\n" +
			"q6k use one type; mxfp4 is for experts and leaves other matrices BF16. Norms and biases stay F32. A matrix whose rows are not\n" +
			"whole blocks (256 elements of the K types, 32 of the others) stays BF16 in .apr and gets llama.cpp's choice in GGUF.\n" +
			"--imatrix and --data weigh errors by how large the inputs of a column are. A model that is taught its own blocks loses\n" +
			"less still: apr distill MODEL --quantize-aware TYPE.\n" +
			whichCommand,
		Example: "apr quantize model-folder -s q4_k_m -o model.apr\napr quantize model-folder -s q8_0 -o model.gguf",
		Exits:   append(openExits, fault.Invalid),
		Options: append([]cli.Option{
			w.fileOption("quantise"), scheme, w.outputOption("file to write: .apr or .gguf"), adapterOption(&w.adapter),
			{Name: "format", Value: cli.Enum(&w.format, "", "apr", "gguf").Unbuilt("safetensors"), Default: "by the output's name", Help: "format of the output"},
		}, append(w.importanceOptions(), w.lastOptions()...)...),
		Run: func(ctx context.Context, e *cli.Env) (_ cli.Result, err error) {
			if w.format, err = quantizeFormat(w.output, w.format); err != nil {
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
			return quantizeResult{
				Scheme: w.scheme, Output: w.output, OriginalSize: rep.OriginalSize, OutputSize: rep.OutputSize, KeptBF16: rep.KeptBF16,
				RMSE: rep.RMSE, DTypes: rep.DTypes, Planned: w.plan, Widened: rep.Widened, Warnings: rep.Warnings, Exceptions: rep.Exceptions,
			}, nil
		},
	}
}

// quantizeFormat returns the format to write: by its flag, or by the output's name. A quantised model is one file, so the name has an
// ending.
func quantizeFormat(output, format string) (string, error) {
	if format == "" {
		if _, format, _ = modelEndings.choose(output, "", ""); format != "apr" && format != "gguf" {
			return "", fault.In(fault.Usage, "--output", "%q ends in neither .apr nor .gguf, the formats to write", output)
		}
	}
	if !strings.HasSuffix(strings.ToLower(output), "."+format) {
		return "", fault.In(fault.Usage, "--output", "%q does not end in .%s, the format to write", output, format)
	}
	return format, nil
}
