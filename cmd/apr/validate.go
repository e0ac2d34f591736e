package main

import (
	"context"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
)

// validateResult is the JSON of apr validate.
type validateResult struct {
	File string `json:"file"`
	*convert.Validation
}

// Text prints the checks and the verdict.
func (r validateResult) Text(p *cli.Page) {
	var rows [][]string
	for _, c := range r.Checks {
		message := c.Message
		if c.Tensor != "" {
			message = cli.Clean(c.Tensor) + ": " + message
		}
		rows = append(rows, []string{string(c.Status), c.ID, message})
	}
	p.Table([]string{"status", "check", "finding"}, rows)
	verdict := p.Good("valid")
	if !r.Valid {
		verdict = p.Bad("not valid")
	}
	p.Printf("%s: %s, %s, score %d\n", verdict, plural(r.Errors, "error"),
		plural(r.Validation.Warnings, "warning"), r.Score)
}

func validateCommand() *cli.Command {
	var file string
	var opt convert.ValidateOptions
	var minScore int
	return &cli.Command{
		Name: "validate", Short: "Check a model file: checksums, structure, content",
		Long:    "Check a model file. Structure errors are exit 4, errors of content exit 5.",
		Example: "apr validate model.apr\napr validate model.apr --strict --min-score 90",
		Exits:   append(openExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "file", Arg: true, Required: true, Model: true, Value: cli.String(&file, ""), Help: "model or run"},
			{Name: "strict", Value: cli.Bool(&opt.Strict, false), Help: "treat warnings as errors"},
			{Name: "quality", Value: cli.Bool(&opt.Quality, false), Help: "also judge the scale of the weights, and outliers"},
			{Name: "min-score", Value: cli.Int(&minScore, 0).In(0, 100), Help: "fail (exit 5) below this score: 100, less 20 per error and 2 per warning"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			v, err := validate(ctx, e, file, opt)
			if v == nil {
				return nil, err
			}
			if err == nil {
				err = v.Fault(file, minScore)
			}
			return validateResult{file, v}, err
		},
	}
}

// validate opens and judges; a file that does not open is one failed check, and its error.
func validate(ctx context.Context, e *cli.Env, file string, opt convert.ValidateOptions) (*convert.Validation, error) {
	c, err := openModel(ctx, e, file)
	if fault.KindOf(err) == fault.Format {
		return convert.Broken(err), err
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	bar := e.Progress("reading "+file, c.Bytes(), cli.Bytes)
	defer bar.Close()
	v, err := convert.Validate(ctx, c, opt, bar.Add)
	if fault.KindOf(err) == fault.Format {
		return convert.Broken(err), err
	}
	return v, err
}
