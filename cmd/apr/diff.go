package main

import (
	"context"
	"fmt"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
)

// diffResult is the JSON of apr diff; tensors are cut to the limit, tensors_differ counts all.
type diffResult struct {
	A string `json:"a"`
	B string `json:"b"`
	*convert.DiffReport
	Differ    int      `json:"tensors_differ"`
	Threshold *float64 `json:"threshold"` // null: not applied
}

// Text prints what differs.
func (r diffResult) Text(p *cli.Page) {
	if r.Identical {
		p.Printf("%s: %d tensors and the metadata agree\n", p.Good("identical"), r.Compared)
		return
	}
	for _, m := range r.Metadata {
		p.Printf("%s: %v | %v\n", m.Key, orNone(m.A), orNone(m.B))
	}
	for _, n := range r.OnlyA {
		p.Printf("only in %s: %s\n", cli.Clean(r.A), cli.Clean(n))
	}
	for _, n := range r.OnlyB {
		p.Printf("only in %s: %s\n", cli.Clean(r.B), cli.Clean(n))
	}
	var rows [][]string
	for _, t := range r.Tensors {
		row := []string{t.Name, pair(t.DTypeA, t.DTypeB), pair(shapeText(t.ShapeA), shapeText(t.ShapeB)), "", "", ""}
		if t.SameValues != nil && *t.SameValues {
			row[1] += ", same values"
		}
		if t.Cosine != nil {
			row[3], row[4], row[5] = fmt.Sprintf("%.4g", *t.MaxAbs), fmt.Sprintf("%.4g", *t.RMSE), fmt.Sprintf("%.7f", *t.Cosine)
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		p.Table([]string{"tensor", "type", "shape", ">max abs", ">rmse", ">cosine"}, rows)
	}
	p.Printf("%d of %d common tensors differ, %d equal", r.Differ, r.Compared, r.Equal)
	if r.Retyped > 0 {
		p.Printf("; %d of those that differ hold the same values in another type", r.Retyped)
	}
	if r.Differ > len(r.Tensors) {
		p.Printf("; %d shown (--limit 0 shows all)", len(r.Tensors))
	}
	p.Printf("\n")
}

// orNone is a property as people read it.
func orNone(v any) any {
	if v == nil {
		return "none"
	}
	return v
}

// pair prints "a → b", or once what is equal.
func pair(a, b string) string {
	if a == b {
		return a
	}
	return strings.Join([]string{a, b}, " → ")
}

func diffCommand() *cli.Command {
	var a, b string
	var opt convert.DiffOptions
	var limit int
	var threshold float64
	var noThreshold bool
	return &cli.Command{
		Name: "diff", Short: "Compare two models",
		Long: "Compare names, types, shapes, bytes, configuration and tokenizer of two models of any format. With --values,\n" +
			"--weights or --quant-roundtrip the values are compared too, and a cosine below --threshold is exit 5.",
		Example: "apr diff model-folder model.apr --values\napr diff a.apr b.apr --weights --threshold 0.999",
		Exits:   append(openExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "a", Arg: true, Required: true, Model: true, Value: cli.String(&a, ""), Help: "first model or run"},
			{Name: "b", Arg: true, Required: true, Model: true, Value: cli.String(&b, ""), Help: "second model or run"},
			{Name: "values", Value: cli.Bool(&opt.Values, false), Help: "measure every tensor that differs"},
			{Name: "weights", Value: cli.Bool(&opt.Weights, false), Help: "measure the matrices that differ, and list no others"},
			{Name: "quant-roundtrip", Value: cli.Bool(&opt.RoundTrip, false), Help: "convert A's tensors to B's types before measuring"},
			{Name: "filter", Value: cli.String(&opt.Filter, ""), Help: "glob of names; without wildcards, a part of the name"},
			{Name: "limit", Value: cli.Int(&limit, 10).AtLeast(0), Help: "tensors to list at most; 0 = all"},
			{Name: "threshold", Replaces: []string{"no-threshold"}, Value: cli.Float(&threshold, 0.95).In(-1, 1), Help: "fail (exit 5) if the cosine of a measured tensor is below this"},
			{Name: "no-threshold", Value: cli.Bool(&noThreshold, false), Help: "measure, and never fail"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if noThreshold && e.Settings.Given("threshold") && !e.Settings.Over("no-threshold", "threshold") {
				return nil, fault.New(fault.Usage, "--threshold and --no-threshold contradict each other")
			}
			measures := opt.Values || opt.Weights || opt.RoundTrip
			if e.Settings.Given("threshold") && !measures {
				return nil, fault.New(fault.Usage, "--threshold needs --values, --weights or --quant-roundtrip")
			}
			rep, err := diff(ctx, e, a, b, opt)
			if rep == nil {
				return nil, err
			}
			res := diffResult{A: a, B: b, DiffReport: rep, Differ: len(rep.Tensors)}
			if measures && !noThreshold {
				res.Threshold = &threshold
				if err == nil {
					err = rep.Check(threshold)
				}
			}
			if limit > 0 && len(rep.Tensors) > limit {
				rep.Tensors = rep.Tensors[:limit]
			}
			return res, err
		},
	}
}

// diff opens both models and compares them.
func diff(ctx context.Context, e *cli.Env, a, b string, opt convert.DiffOptions) (*convert.DiffReport, error) {
	ca, err := openModel(ctx, e, a)
	if err != nil {
		return nil, err
	}
	defer ca.Close()
	cb, err := openModel(ctx, e, b)
	if err != nil {
		return nil, err
	}
	defer cb.Close()
	bar := e.Progress("comparing", ca.Bytes(), cli.Bytes)
	defer bar.Close()
	return convert.Diff(ctx, ca, cb, opt, bar.Add)
}
