package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/prune"
)

// pruneOptions are the options of apr prune.
type pruneOptions struct {
	teacher, output, format, layers, backend string
	target                                   prune.Target
	data                                     []string
	tokens                                   int
	force                                    bool

	schedule          string // layers of each turn
	steps             int    // of each turn, as the following
	batchSize, seqLen int
	learningRate      float64
}

// pruneResult is the JSON of apr prune. Numbers that were not measured are null.
type pruneResult struct {
	Teacher    string      `json:"teacher"`
	Output     string      `json:"output"`
	Backend    string      `json:"backend"`
	Tokens     int64       `json:"tokens"` // of calibration
	Layers     []int       `json:"layers"` // of the teacher, that stay
	Cuts       []prune.Cut `json:"cuts"`
	Before     pruneSide   `json:"before"`
	After      pruneSide   `json:"after"`
	KL         *float64    `json:"kl"`     // of the output from the teacher, on text of calibration
	Scored     int64       `json:"scored"` // targets that nats and kl are means of
	OutputSize int64       `json:"output_size"`
	Files      []string    `json:"files"`
	Warnings   []string    `json:"warnings"`
	Turns      []pruneTurn `json:"turns,omitempty"` // of --schedule; what is above is of the last cut, but for output and files

	record convert.Pruned
	data   []string // as given
}

// pruneSide is what is known of the teacher or the output.
type pruneSide struct {
	Parameters int64    `json:"parameters"`
	Nats       *float64 `json:"nats_per_token"` // on text of calibration
}

// Text prints what stays, sizes and what the cut costs.
func (r pruneResult) Text(p *cli.Page) {
	var layers []string
	for _, i := range r.Layers {
		layers = append(layers, strconv.Itoa(i))
	}
	p.Pairs("teacher", r.Teacher, "output", r.Output, "layers", strings.Join(layers, " "))
	var rows [][]string
	for _, c := range r.Cuts {
		share := "–"
		if c.Share != nil {
			share = fmt.Sprintf("%.1f %%", 100**c.Share)
		}
		rows = append(rows, []string{c.What, cli.Count(int64(c.Kept)), cli.Count(int64(c.Of)), share})
	}
	p.Table([]string{"what", ">kept", ">of", ">importance kept"}, rows)
	p.Printf("parameters  %s → %s\n", cli.Count(r.Before.Parameters), cli.Count(r.After.Parameters))
	if r.Before.Nats != nil && r.After.Nats != nil {
		p.Printf("loss        %.4f → %.4f nats per token of calibration text\n", *r.Before.Nats, *r.After.Nats)
	}
	printTurns(p, r.Turns)
	p.Printf("\n")
	p.Pairs(r.next()...)
}

// OfFiles says that the output is what counts.
func (pruneResult) OfFiles() {}

// next is what to do with the output: a cut model is distilled, and one that was distilled in turns can be used.
func (r pruneResult) next() []string {
	if len(r.Turns) > 0 {
		return []string{"next", "apr run " + quoted(r.Output),
			"", "apr export " + quoted(r.Output) + " -o student.gguf --quantize q4_k_m"}
	}
	data := " -d DATA"
	for i, d := range r.data {
		if data += " -d "; i == 0 {
			data = " -d "
		}
		data += quoted(d)
	}
	name := strings.TrimSuffix(filepath.Base(r.Output), filepath.Ext(r.Output))
	return []string{"next", "apr distill " + quoted(r.Teacher) + " --student " + quoted(r.Output) + data +
		" -o " + quoted(filepath.Join("runs", name))}
}

func pruneCommand() *cli.Command {
	o := &pruneOptions{}
	size := func(p *int) cli.Value { return cli.Int(p, 0).AtLeast(1) }
	return &cli.Command{
		Name: "prune", Short: "Cut a student out of a teacher",
		Long: "Use prune to make a student that starts from the teacher's weights: fewer layers, a narrower residual stream, fewer\n" +
			"neurons, query heads and experts. One pass of the teacher over the text of --data says which of them matter. The output is\n" +
			"a model for apr distill --student: a cut model predicts badly until it has been distilled. Heads of keys and values, of a\n" +
			"Gated DeltaNet, and widths of heads and of experts stay. Blocks of a quantised teacher are decoded to f32.\n" +
			"With --schedule the student of each turn is cut for the next, and the teacher teaches all of them; OUTPUT-turns holds the\n" +
			"start of each turn and its run. llama.cpp takes a Qwen2, OLMo or Phi-3 student only where --hidden is its heads\n" +
			"times the width of a head: cut --heads as well, or layers and neurons alone.",
		Example: "apr prune teacher -d corpus.jsonl -o student.apr --layers 14 --intermediate 2816\n" +
			"apr distill teacher --student student.apr -d corpus.jsonl -o runs/mine\n" +
			"apr prune teacher -d corpus.jsonl -o student.apr --schedule 12,8,6 --steps 500",
		Exits: append(openExits, fault.Invalid, fault.Inference, fault.Diverged, fault.Hung, fault.Memory),
		Options: []cli.Option{
			{Name: "teacher", Foreign: []string{"model", "model-path", "input"}, Arg: true, Required: true, Model: true, Value: cli.String(&o.teacher, ""), Help: "model or run to cut"},
			{Name: "output", Foreign: []string{"outfile", "out", "output-dir"}, Short: "o", Required: true, Path: true, Value: cli.String(&o.output, ""), Help: "file to write, its format by the ending; another name is a folder"},
			{Name: "data", Short: "d", Path: true, Value: cli.Strings(&o.data), Help: "text that importance is measured on: .jsonl, .parquet, .txt, a folder; repeatable"},
			{Name: "layers", Value: cli.String(&o.layers, ""), Default: "all", Help: "layers to keep: how many, or which, such as 0,1,5-9"},
			{Name: "layer-choice", Value: cli.String(&o.target.Choice, prune.ByImportance), Help: "which layers to keep: importance (those that turn the stream most), even, or a list such as 0,1,5-9"},
			{Name: "hidden", Value: size(&o.target.Hidden), Default: "all", Help: "channels of the residual stream to keep"},
			{Name: "intermediate", Value: size(&o.target.Intermediate), Default: "all", Help: "neurons of each feed-forward network to keep"},
			{Name: "heads", Value: size(&o.target.Heads), Default: "all", Help: "query heads of each layer to keep, the same number in each group"},
			{Name: "experts", Value: size(&o.target.Experts), Default: "all", Help: "experts of each layer to keep"},
			{Name: "calibration-tokens", Value: cli.Int(&o.tokens, importanceTokens).AtLeast(1), Help: "tokens of --data to measure on, at most"},
			{Name: "backend", Aliases: []string{"device"}, Value: backendValue(&o.backend),
				Help: backendHelp},
			{Name: "schedule", Value: cli.String(&o.schedule, ""), Help: "cut to these numbers of layers in turns, such as 12,8,6, and distil after each"},
			{Name: "steps", Value: cli.Int(&o.steps, 0).AtLeast(1), Help: "optimiser steps of each turn of --schedule"},
			{Name: "batch-size", Value: cli.Int(&o.batchSize, 16).AtLeast(1), Help: "rows of a step of --schedule"},
			{Name: "seq-len", Value: cli.Int(&o.seqLen, 512).AtLeast(8), Help: "tokens per row of --schedule"},
			{Name: "learning-rate", Aliases: []string{"lr"}, Value: cli.Float(&o.learningRate, 3e-4).Above(0), Help: "peak learning rate of each turn of --schedule"},
			{Name: "force", Value: cli.Bool(&o.force, false), Help: "replace an existing output"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runPrune(ctx, e, o) },
	}
}

// read makes a target of the options.
func (o *pruneOptions) read() (err error) {
	if _, o.format, err = modelEndings.choose(o.output, "", "hf"); err != nil {
		return err
	}
	t := &o.target
	switch n, bad := strconv.ParseUint(o.layers, 10, 31); {
	case o.layers == "":
	case bad == nil && n == 0:
		return fault.In(fault.Usage, "--layers", "is 0: a model has at least one")
	case bad == nil:
		t.Layers = int(n)
	case t.Choice != prune.ByImportance:
		return fault.In(fault.Usage, "--layers", "%q is no number, and --layer-choice says which layers", o.layers)
	default:
		t.Choice = o.layers
	}
	if o.schedule != "" {
		return nil
	}
	switch {
	case t.Empty():
		return fault.New(fault.Usage, "nothing is to be cut").WithHint("--layers, --hidden, --intermediate, --heads or --experts")
	case t.Measured() && len(o.data) == 0:
		return fault.New(fault.Usage, "--data is missing: importance is measured on text").WithHint("--layer-choice even, or a list of layers, needs none")
	}
	return nil
}

func runPrune(ctx context.Context, e *cli.Env, o *pruneOptions) (cli.Result, error) {
	if err := errors.Join(o.read(), o.turnsOnly(e.Settings)); err != nil {
		return nil, err
	}
	if err := alone(e); err != nil {
		return nil, err
	}
	if o.schedule != "" {
		return o.inTurns(ctx, e)
	}
	r, err := o.once(ctx, e)
	if err != nil {
		return nil, err
	}
	return *r, nil
}

// once cuts the teacher and writes what stays.
func (o *pruneOptions) once(ctx context.Context, e *cli.Env) (*pruneResult, error) {
	beat := phases(e)
	defer beat.close()
	beat.doing("opening and hashing the teacher …")
	c, err := openModel(ctx, e, o.teacher)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	opt := convert.Options{To: o.format, Force: o.force, Inputs: o.data}
	f := &modelfile.Files{Container: c.Container, Warn: func(line string) { e.Log.Warn(line) }}
	if f.Config, err = c.Config(); err != nil {
		return nil, err
	}
	if err := errors.Join(model.Computed(f.Config), o.target.Check(f.Config)); err != nil {
		return nil, err
	}
	if err := convert.CheckOutput(c, o.output, opt); err != nil {
		return nil, err
	}
	if err := f.CheckTensors(); err != nil {
		return nil, err
	}
	if err := c.CheckHead(); err != nil {
		return nil, err
	}
	sum, err := f.WeightsSHA256()
	if err != nil {
		return nil, err
	}
	r := &pruneResult{Teacher: o.teacher, Output: o.output, data: o.data,
		Before: pruneSide{Parameters: f.Config.Parameters()}}
	teacher := f.Config
	kept, err := o.cut(ctx, e, f, r, beat)
	if err != nil {
		return nil, err
	}
	r.record = o.record(sum, teacher, kept, r)
	beat.doing("writing the student …")
	opt.Pruned = r.record
	rep, err := rewrite(e, c, o.output, opt, func(opt convert.Options) (*convert.Report, error) { return convert.Write(ctx, c, o.output, opt) })
	if err != nil {
		return nil, err
	}
	r.OutputSize, r.Files, r.Warnings = rep.OutputSize, rep.Files, append(o.narrow(f.Config, teacher), rep.Warnings...)
	warn(e, r.Warnings)
	return r, nil
}
