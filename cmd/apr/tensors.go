package main

import (
	"context"
	"fmt"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/tensor"
)

// tensorRow is one tensor; the statistics are null without --stats.
type tensorRow struct {
	Name      string   `json:"name"`
	Shape     []int    `json:"shape"`
	DType     string   `json:"dtype"`
	SizeBytes int64    `json:"size_bytes"`
	Mean      *float64 `json:"mean"`
	Std       *float64 `json:"std"`
	Min       *float64 `json:"min"`
	Max       *float64 `json:"max"`
	NaNCount  *int64   `json:"nan_count"`
	InfCount  *int64   `json:"inf_count"`
}

// tensorsResult is the JSON of apr tensors. Count and size are of the whole file, whatever the filter.
type tensorsResult struct {
	File          string      `json:"file"`
	FormatVersion *string     `json:"format_version"`
	TensorCount   int         `json:"tensor_count"`
	TotalSize     int64       `json:"total_size_bytes"`
	Matched       int         `json:"matched"`
	Tensors       []tensorRow `json:"tensors"`

	Content convert.Content `json:"content"` // checked only with --stats of all tensors, which reads everything
	stats   bool
}

// Text prints a table.
func (r tensorsResult) Text(p *cli.Page) {
	headers := []string{"name", "type", ">shape", ">size"}
	if r.stats {
		headers = append(headers, ">mean", ">std", ">min", ">max", ">nan", ">inf")
	}
	var rows [][]string
	for _, t := range r.Tensors {
		row := []string{t.Name, t.DType, shapeText(t.Shape), cli.Bytes(t.SizeBytes)}
		if r.stats && t.Mean != nil {
			for _, f := range []*float64{t.Mean, t.Std, t.Min, t.Max} {
				row = append(row, fmt.Sprintf("%.4g", *f))
			}
			row = append(row, fmt.Sprint(*t.NaNCount), fmt.Sprint(*t.InfCount))
		}
		rows = append(rows, row)
	}
	p.Table(headers, rows)
	p.Printf("%d of %d tensors, %s in all\n", len(r.Tensors), r.TensorCount, cli.Bytes(r.TotalSize))
	if r.Content == convert.NotChecked {
		p.Printf("content %s\n", contentText[r.Content])
	}
}

// shapeText prints 4160×256.
func shapeText(shape []int) string {
	if len(shape) == 0 {
		return "scalar"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", "×"), "[]")
}

func tensorsCommand() *cli.Command {
	var file, filter string
	var stats bool
	var limit int
	return &cli.Command{
		Name: "tensors", Short: "List the tensors of a model file",
		Example: "apr tensors model.apr\napr tensors model.apr --stats --filter '*.v_proj.weight'",
		Exits:   openExits,
		Options: []cli.Option{
			{Name: "file", Arg: true, Required: true, Model: true, Value: cli.String(&file, ""), Help: "model or run"},
			{Name: "stats", Value: cli.Bool(&stats, false), Help: "show mean, deviation, extremes and non-finite values of each tensor"},
			{Name: "filter", Value: cli.String(&filter, ""), Help: "glob of names; without wildcards, a part of the name"},
			{Name: "limit", Value: cli.Int(&limit, 0).AtLeast(0), Help: "tensors to list at most; 0 = all"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			c, err := openModel(ctx, e, file)
			if err != nil {
				return nil, err
			}
			defer c.Close()
			return listTensors(ctx, e, c, filter, limit, stats)
		},
	}
}

// listTensors collects the rows.
func listTensors(ctx context.Context, e *cli.Env, c *convert.Container, filter string, limit int, stats bool) (cli.Result, error) {
	all := c.File.Tensors()
	r := tensorsResult{File: c.Path, TensorCount: len(all), stats: stats}
	for _, t := range all {
		r.TotalSize += t.Held().Size
	}
	if c.Version != "" {
		r.FormatVersion = &c.Version
	}
	var chosen []tensor.Stored
	var size int64
	for _, t := range all {
		if !convert.Match(filter, t.Name) {
			continue
		}
		r.Matched++
		if limit == 0 || len(chosen) < limit {
			chosen = append(chosen, t)
			size += t.Size
		}
	}
	var bar *cli.Progress
	if stats {
		bar = e.Progress("reading "+c.Path, size, cli.Bytes)
		defer bar.Close()
	}
	for _, t := range chosen {
		row := tensorRow{Name: t.Name, Shape: t.Shape, DType: t.Held().DType.String(), SizeBytes: t.Held().Size}
		if stats && (t.DType.IsFloat() || t.DType.IsQuantized()) {
			s, err := convert.ReadStats(ctx, c.Path, t)
			if err != nil {
				return nil, err
			}
			row.Mean, row.Std, row.Min, row.Max = &s.Mean, &s.Std, &s.Min, &s.Max
			row.NaNCount, row.InfCount = &s.NaN, &s.Inf
		}
		bar.Add(t.Size)
		r.Tensors = append(r.Tensors, row)
	}
	if r.Content = c.Content(false); stats && len(chosen) == len(all) {
		if err := c.Verify(); err != nil {
			r.Content = convert.Damaged
			return r, err
		}
		r.Content = c.Content(true)
	}
	return r, nil
}
