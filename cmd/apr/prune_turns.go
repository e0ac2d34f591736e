package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/prune"
	"apr/run/supervise"
)

// pruneTurn is one turn of a schedule: a cut and the run after it.
type pruneTurn struct {
	Layers []int    `json:"layers"` // of the model that was cut: the teacher, or the student of the turn before
	Start  string   `json:"start"`  // the cut model
	Run    string   `json:"run"`
	Loss   *float64 `json:"final_loss"`
	Nats   *float64 `json:"val_nats_per_token"` // null: nothing was held out
	KL     *float64 `json:"val_kl"`
}

// printTurns prints a line for each turn.
func printTurns(p *cli.Page, turns []pruneTurn) {
	if len(turns) == 0 {
		return
	}
	number := func(x *float64) string {
		if x == nil {
			return "–"
		}
		return fmt.Sprintf("%.4f", *x)
	}
	var rows [][]string
	for _, t := range turns {
		rows = append(rows, []string{strconv.Itoa(len(t.Layers)), number(t.Loss), number(t.Nats), number(t.KL), t.Run})
	}
	p.Printf("\n")
	p.Table([]string{">layers", ">loss", ">held-out nats", ">KL", "run"}, rows)
}

// turnsOnly refuses options of turns where there are none, and the other way round.
func (o *pruneOptions) turnsOnly(s cli.Settings) error {
	for _, name := range []string{"steps", "batch-size", "seq-len", "learning-rate"} {
		if o.schedule == "" && s.Given(name) {
			return fault.New(fault.Usage, "--%s has no effect without --schedule", name)
		}
	}
	switch {
	case o.schedule == "":
		return nil
	case o.layers != "" || o.target.Choice != prune.ByImportance && o.target.Choice != prune.Evenly:
		return fault.New(fault.Usage, "--schedule says how many layers stay: --layers and a list have no effect beside it")
	case o.steps == 0:
		return fault.New(fault.Usage, "--schedule needs --steps: how long each turn is distilled")
	case len(o.data) == 0:
		return fault.New(fault.Usage, "--data is missing: the text that each turn is distilled on")
	}
	return nil
}

// turns reads the schedule of a teacher with n layers.
func (o *pruneOptions) turns(n int) (layers []int, err error) {
	for word := range strings.SplitSeq(o.schedule, ",") {
		k, err := strconv.ParseUint(strings.TrimSpace(word), 10, 31)
		switch {
		case err != nil || k == 0:
			return nil, fault.In(fault.Usage, "--schedule", "%q is no number of layers", word).WithHint("such as 12,8,6")
		case int(k) > n || len(layers) > 0 && int(k) == n:
			return nil, fault.In(fault.Usage, "--schedule", "has %d layers after %d: each turn has fewer", k, n)
		}
		n = int(k)
		layers = append(layers, n)
	}
	return layers, nil
}

// inTurns cuts and distils in turns, and writes the last student.
func (o *pruneOptions) inTurns(ctx context.Context, e *cli.Env) (cli.Result, error) {
	teacher, err := source(ctx, e, o.teacher)
	if err != nil {
		return nil, err
	}
	layers, folder, err := o.firstLook(e, teacher)
	if err != nil {
		return nil, err
	}
	out, from, record := &pruneResult{}, teacher, convert.Pruned{}
	var turns []pruneTurn
	for _, n := range layers {
		t := pruneTurn{Start: filepath.Join(folder, fmt.Sprintf("%d-start.apr", n)), Run: filepath.Join(folder, strconv.Itoa(n))}
		one := *o
		one.teacher, one.output, one.format, one.target.Layers = from, t.Start, "apr", n
		if out, err = one.once(ctx, e); err != nil {
			return nil, err
		}
		if t.Layers = out.Layers; len(turns) == 0 {
			record = out.record
			record["schedule"], record["steps"] = o.schedule, o.steps
		}
		if err := o.distil(e, teacher, &t); err != nil {
			return nil, err
		}
		turns, from = append(turns, t), filepath.Join(t.Run, "student.apr")
	}
	c, err := convert.Open(from)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	opt := convert.Options{To: o.format, Force: o.force, Inputs: o.data, Pruned: record}
	rep, err := rewrite(e, c, o.output, opt, func(opt convert.Options) (*convert.Report, error) { return convert.Write(ctx, c, o.output, opt) })
	if err != nil {
		return nil, err
	}
	out.Teacher, out.Output, out.Turns, out.OutputSize, out.Files = o.teacher, o.output, turns, rep.OutputSize, rep.Files
	return *out, nil
}

// firstLook refuses what would fail after the first turn, and makes the folder of the turns.
func (o *pruneOptions) firstLook(e *cli.Env, teacher string) (layers []int, folder string, err error) {
	c, err := convert.Open(teacher, e.AllowConfigKeys...)
	if err != nil {
		return nil, "", err
	}
	defer c.Close()
	config, err := c.Config()
	if err != nil {
		return nil, "", err
	}
	if layers, err = o.turns(len(config.Layers)); err != nil {
		return nil, "", err
	}
	for _, n := range layers {
		target := o.target
		target.Layers = n
		if err := target.Check(config); err != nil {
			return nil, "", err
		}
	}
	if err := convert.CheckOutput(c, o.output, convert.Options{To: o.format, Force: o.force, Inputs: o.data}); err != nil {
		return nil, "", err
	}
	if folder = filepath.Clean(o.output); o.format != "hf" {
		folder = strings.TrimSuffix(folder, filepath.Ext(folder))
	}
	folder += "-turns"
	if entries, err := os.ReadDir(folder); err == nil && len(entries) > 0 && !o.force {
		return nil, "", fault.In(fault.Invalid, folder, "already exists").WithHint("give --force to replace it")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, "", fault.In(fault.IO, folder, "cannot be created").Because(err)
	}
	return layers, folder, nil
}

// distil runs apr distill on the start of a turn, in this process, with a command line that its manifest records.
func (o *pruneOptions) distil(e *cli.Env, teacher string, t *pruneTurn) error {
	args := []string{"distill", teacher, "--student", t.Start, "-o", t.Run, "--json", "--control", "none", "--samples", "0", "--backend", o.backend,
		"--steps", strconv.Itoa(o.steps), "--batch-size", strconv.Itoa(o.batchSize), "--seq-len", strconv.Itoa(o.seqLen),
		"--learning-rate", strconv.FormatFloat(o.learningRate, 'g', -1, 64)}
	for _, d := range o.data {
		args = append(args, "-d", d)
	}
	for _, key := range e.AllowConfigKeys {
		args = append(args, "--allow-config-key", key)
	}
	for _, f := range []struct {
		name string
		on   bool
	}{{"--force", o.force}, {"--quiet", e.Quiet}, {"--verbose", e.Verbose}, {"--offline", e.Offline}} {
		if f.on {
			args = append(args, f.name)
		}
	}
	var text bytes.Buffer
	app := &cli.App{
		Name: "apr", In: e.In, Out: &text, Err: e.Err, Environ: e.Environ(), Commands: []*cli.Command{distillCommand()},
		Supervised: e.Getenv(supervise.Variable) != "",
	}
	code := app.Main(args)
	var said struct {
		pruneTurn
		Error struct{ Message, Path, Hint string }
	}
	if err := json.Unmarshal(text.Bytes(), &said); err != nil {
		return fault.In(fault.Other, t.Run, "the run of this turn ended with exit %d and no result", code).Because(err)
	}
	if code != 0 {
		return fault.In(fault.Kind(code), t.Run, "the turn of %d layers ended with exit %d: %s", len(t.Layers), code, said.Error.Message).WithHint("%s", said.Error.Hint)
	}
	t.Loss, t.Nats, t.KL = said.Loss, said.Nats, said.KL
	return nil
}
