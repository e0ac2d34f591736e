package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/convert"
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
}

// Text prints sizes and, for each type, how many tensors and the largest error.
func (r quantizeResult) Text(p *cli.Page) {
	p.Pairs("scheme", r.Scheme, "output", r.Output, "size", cli.Bytes(r.OriginalSize)+" → "+cli.Bytes(r.OutputSize))
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
	printNotes(p, r.KeptBF16, r.Widened, r.Warnings)
	if r.Planned {
		p.Printf("nothing was written (--plan)\n")
	}
}

func quantizeCommand() *cli.Command {
	var file, output, scheme, format string
	var plan, force bool
	return &cli.Command{
		Name: "quantize", Short: "Quantise a model",
		Long: "Use quantize to make a model smaller, such as a 4-bit teacher: it prints the rounding error of every type. The\n" +
			"output's name decides the format, .apr or .gguf. q4_k_m has Q4_K and, where llama.cpp's mix of that name has it,\n" +
			"Q6_K; q4k and q6k use one type; mxfp4 is for experts and leaves other matrices BF16. Norms and biases stay F32.\n" +
			"A matrix whose last dimension is not divisible by 256 stays BF16 in .apr; in GGUF it gets the type that llama.cpp gives it. Blocks of q8_0 have 32 elements: rows of a\n" +
			"multiple of 32 have whole ones.",
		Example: "apr quantize model-folder -s q4_k_m -o model.apr\napr quantize model-folder -s q8_0 -o model.gguf",
		Exits:   append(openExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "file", Foreign: []string{"model", "input"}, Arg: true, Required: true, Model: true, Value: cli.String(&file, ""), Help: "model to quantise"},
			{Name: "scheme", Foreign: []string{"quantize", "quantization", "type", "outtype"}, Short: "s", Required: true, Value: schemeValue(&scheme, ""), Help: "quantisation scheme"},
			{Name: "output", Foreign: []string{"outfile", "out"}, Short: "o", Required: true, Path: true, Value: cli.String(&output, ""), Help: "file to write: .apr or .gguf"},
			{Name: "format", Value: cli.Enum(&format, "", "apr", "gguf").Unbuilt("safetensors"), Default: "by the output's name", Help: "format of the output"},
			{Name: "plan", Value: cli.Bool(&plan, false), Help: "say what would be written, and stop"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace an existing output"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			format, err := quantizeFormat(output, format)
			if err != nil {
				return nil, err
			}
			rep, err := quantise(ctx, e, file, output, convert.Options{Scheme: convert.Scheme(scheme), To: format, Force: force}, plan)
			if err != nil {
				return nil, err
			}
			warn(e, rep)
			return quantizeResult{
				Scheme: scheme, Output: output, OriginalSize: rep.OriginalSize, OutputSize: rep.OutputSize, KeptBF16: rep.KeptBF16,
				RMSE: rep.RMSE, DTypes: rep.DTypes, Planned: plan, Widened: rep.Widened, Warnings: rep.Warnings,
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

// quantise plans or writes.
func quantise(ctx context.Context, e *cli.Env, file, output string, opt convert.Options, plan bool) (*convert.Report, error) {
	if !plan {
		return rewrite(ctx, e, file, output, opt)
	}
	c, err := openModel(ctx, e, file)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_, rep, err := convert.Plan(c, output, opt)
	return rep, err
}
