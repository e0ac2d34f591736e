package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
	"apr/run/verify"
)

func verifyCommand() *cli.Command {
	var run string
	var steps int
	return &cli.Command{
		Name: "verify", Short: "Recompute what a run wrote down, from its inputs",
		Long: "Recomputes what a run wrote down, in the folder that the run was started in:\n" +
			"  hashes of inputs, outputs and code, and those of the records in the receipt\n" +
			"  the arithmetic of every logged step\n" +
			"  loss and gradient norm in float64 of the steps after the initial weights and after each kept checkpoint\n" +
			"  the steps after these on the device, and the first ones in other micro-batches\n" +
			"  the final weights and the held-out scores\n" +
			"  what records say of each other\n" +
			"If another build of this program trained, the result says \"program: differs\"; the exit code depends on the recomputed figures\n" +
			"alone. Keys that --allow-config-key let the run leave unread are left unread again. A run that went on with\n" +
			"another device or program (--allow-changed) is verified on its last device; one that went on with other\n" +
			"settings is refused.",
		Example: "apr verify runs/mine\napr verify runs/mine --steps 0 --json",
		Exits:   []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "run", Arg: true, Required: true, Path: true, Complete: runPaths, Value: cli.String(&run, ""), Help: "a run: its directory, or the beginning of its name"},
			{Name: "steps", Value: cli.Int(&steps, 8).AtLeast(0), Help: "steps to recompute from each known state; 0 = all up to the next"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runVerify(ctx, e, run, steps) },
	}
}

// verifyResult is the JSON of apr verify.
type verifyResult struct {
	Run    string         `json:"run"`
	RunID  string         `json:"run_id"`
	Checks []verify.Check `json:"checks"`
	Passed bool           `json:"passed"`
	Absent int            `json:"not_recorded"` // values that the run did not write down, so that nothing is known of them
	// Program is whether this is the program that trained: "same", "differs", or "not recorded". It decides nothing.
	Program string `json:"program"`
	Device  string `json:"device"`
}

func runVerify(ctx context.Context, e *cli.Env, path string, steps int) (cli.Result, error) {
	path, err := runs.Find(runsFolderOf(e), path)
	if err != nil {
		return nil, err
	}
	record, err := runlog.Read(path)
	if err != nil {
		return nil, err
	}
	o := &distillOptions{}
	c, err := o.recorded(ctx, e, record)
	if err != nil {
		return nil, fmt.Errorf("%s: the run's settings: %w", path, err)
	}
	dev, err := backend{name: o.Backend, dtype: o.DType, index: o.Device, expand: o.keepExpanded()}.open(e)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	show := newDistillDisplay(e, 0)
	defer show.close()
	r := &verifyResult{Run: path, RunID: record.ID(), Device: dev.Info().Kind}
	r.Checks, err = verify.Run(ctx, verify.Options{
		Record: record, Config: c, Device: dev.Device, Steps: steps, Observer: show,
		Version: codeOf(versionInfo()),
	})
	show.close()
	return r, r.judge(err)
}

// recorded restores the settings that a run was started with, but for its last device, and makes its configuration
// of them.
func (o *distillOptions) recorded(ctx context.Context, e *cli.Env, record *runlog.Record) (c distill.Config, err error) {
	was, allowed := map[string]cli.Setting{}, slices.Clone(e.AllowConfigKeys)
	for key, v := range record.Manifest.Config {
		switch key {
		case "print_config":
		case strings.ReplaceAll(cli.AllowConfigKey, "-", "_"): // of all commands
			keys, _ := v.Value.([]any)
			for _, key := range keys {
				allowed = append(allowed, fmt.Sprint(key))
			}
		default:
			was[key] = cli.Setting{Value: v.Value, Origin: v.Origin}
		}
	}
	for _, key := range []string{"backend", "dtype", "device"} {
		if v, ok := record.InForce.Config[key]; ok {
			was[key] = cli.Setting{Value: v.Value, Origin: v.Origin}
		}
	}
	settings, err := cli.Restore(o.table(), was)
	if err != nil {
		return c, err
	}
	o.Resume, o.Output = "", record.Path
	if c, err = o.config(settings); err != nil {
		return c, err
	}
	c.Output, c.Export, c.AllowKeys = record.Path, "", allowed
	if kind, ok := record.InForce.Device["kind"].(string); ok && o.Backend == "auto" {
		o.Backend = kind
	}
	err = bringInputs(ctx, e, &c)
	return c, err
}

// judge fails with the first disagreement, before whatever kept the rest from being recomputed.
func (r *verifyResult) judge(err error) error {
	bad, judged := 0, 0
	var first verify.Check
	for _, c := range r.Checks {
		switch {
		case c.NotRecorded:
			r.Absent++
		case c.Differs:
		default:
			judged++
			if !c.OK {
				if bad++; bad == 1 {
					first = c
				}
			}
		}
	}
	r.Program = programOf(r.Checks)
	switch {
	case bad > 0:
		return fault.In(fault.Invalid, r.Run, "%s: %s: logged %v, recomputed %v (%d of %d checks disagree)", first.Name, first.Field, shown(first.Logged), shown(first.Recomputed), bad, judged).WithID("E-VERIFY-010")
	case err != nil:
		return err
	case judged == 0:
		return fault.In(fault.Invalid, r.Run, "nothing was recomputed").WithID("E-VERIFY-011")
	}
	r.Passed = true
	return nil
}

// programOf says whether the run was made by this program.
func programOf(checks []verify.Check) string {
	switch {
	case slices.ContainsFunc(checks, func(c verify.Check) bool { return c.Differs }):
		return "differs"
	case slices.ContainsFunc(checks, func(c verify.Check) bool { return c.Field == verify.ProgramField && c.OK }):
		return "same"
	}
	return "not recorded"
}

// shown returns a value as JSON.
func shown(v any) string {
	b, err := cli.MarshalJSON(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// Text prints the checks: those that disagree, and of the others how many.
func (r *verifyResult) Text(p *cli.Page) {
	names, good, absent, others := []string{}, map[string]int{}, map[string]int{}, []string{}
	var rows [][]string
	judged := 0
	for _, c := range r.Checks {
		if !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
		switch {
		case c.NotRecorded:
			absent[c.Name]++
		case c.Differs:
			others = append(others, c.Field)
		case c.OK:
			good[c.Name]++
			judged++
		default:
			rows = append(rows, []string{c.Name, c.Field, shown(c.Logged), shown(c.Recomputed)})
		}
	}
	var counts []string
	for _, n := range names {
		text := fmt.Sprintf("%d agree", good[n])
		if absent[n] > 0 {
			text += fmt.Sprintf(", %d not recorded", absent[n])
		}
		counts = append(counts, n, text)
	}
	p.Pairs(counts...)
	if len(others) > 0 {
		p.Printf("program: differs: this is not the build that trained (%s); it has recomputed what follows\n", strings.Join(others, ", "))
	}
	for _, c := range r.Checks {
		if c.NotRecorded {
			p.Printf("not recorded, so not verified: %s\n", c.Field)
		}
	}
	if len(rows) > 0 {
		p.Printf("\n")
		p.Table([]string{"disagrees", "field", "logged", "recomputed"}, rows)
	}
	switch {
	case r.Passed && r.Absent == 0:
		p.Printf("\n%s\n", p.Good(fmt.Sprintf("All %d checks agree.", judged)))
	case r.Passed:
		p.Printf("\n%s %d values were not recorded.\n", p.Good(fmt.Sprintf("%d checks agree.", judged)), r.Absent)
	}
}
