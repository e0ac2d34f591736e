package main

import (
	"context"
	"fmt"
	"math"
	"os"

	"apr/device/cpu"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/selfcheck"
)

func checkCommand() *cli.Command {
	var file string
	var noGPU bool
	var name string
	return &cli.Command{
		Name: "check", Short: "Try this installation on this machine and device, in ten stages",
		Long: "Ten stages: loads and tokenises; compares logits, gradients and a step with float64, and losses with known values; stops\n" +
			"and continues a run; generates; compares the devices; writes to the disk of temporary files. Without FILE the model is a\n" +
			"tiny one that is built in.",
		Example: "apr check\napr check student.apr --no-gpu --json\napr check --backend vulkan",
		Exits:   []fault.Kind{fault.NotFound, fault.Invalid, fault.IO, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "file", Arg: true, Model: true, Value: cli.String(&file, ""), Help: "model or run"},
			{Name: "backend", Value: backendValue(&name),
				Help: "what to check: auto takes a GPU if there is one, vulkan:NAME an adapter by its name; alias wgpu"},
			{Name: "no-gpu", Aliases: []string{"cpu"}, Value: cli.Bool(&noGPU, false), Help: "check the CPU alone, even if there is a GPU"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runCheck(ctx, e, file, name, noGPU) },
	}
}

// checkResult is the JSON of apr check.
type checkResult struct {
	Device string            `json:"device"`
	File   *string           `json:"file"`
	Stages []selfcheck.Stage `json:"stages"`
	Passed bool              `json:"passed"`
}

func runCheck(ctx context.Context, e *cli.Env, file, name string, noGPU bool) (_ cli.Result, err error) {
	r := &checkResult{}
	if file != "" {
		if file, err = source(ctx, e, file); err != nil {
			return nil, err
		}
		r.File = &file
	}
	b := backend{name: name, expand: 1 << 30}
	if noGPU {
		b.name = "cpu"
	}
	dev, err := b.open(e)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := dev.prewarm(); err != nil {
		return nil, err
	}
	other, name, err := otherDevice(dev)
	if err != nil {
		return nil, err
	}
	defer other.Close()
	dir, err := os.MkdirTemp("", "apr-check-")
	if err != nil {
		return nil, fault.New(fault.IO, "no directory for temporary files").Because(err)
	}
	defer os.RemoveAll(dir)
	bar := e.Progress("checking", int64(len(selfcheck.Names())), cli.Count)
	defer bar.Close()
	r.Device = fmt.Sprintf("%s, %s, %s", dev.Info().Kind, dev.Info().Name, dev.Info().ISA)
	first := true
	r.Stages, err = selfcheck.Run(ctx, selfcheck.Options{Device: dev.Device, Other: other, OtherName: name, File: file, Dir: dir, Warn: func(line string) { e.Log.Warn(line) }, Progress: func(stage string) {
		if !first {
			bar.Add(1)
		}
		first = false
		bar.Note(stage)
	}})
	if err != nil {
		return nil, err
	}
	return r, r.judge()
}

// otherDevice is what the device is compared with: portable code on the CPU.
func otherDevice(dev *opened) (*cpu.Device, string, error) {
	o := cpu.Options{ISA: "generic"}
	if dev.gpu == nil && dev.Info().ISA == "generic" {
		o.Workers = 1
		other, err := cpu.New(o)
		return other, "the CPU with one worker", err
	}
	other, err := cpu.New(o)
	return other, "portable code on the CPU", err
}

// judge fails if a stage did, or if not all ran.
func (r *checkResult) judge() error {
	if n, want := len(r.Stages), len(selfcheck.Names()); n != want {
		return fault.New(fault.Other, "%d of %d stages ran", n, want)
	}
	for _, s := range r.Stages {
		if s.Unavailable {
			return fault.New(fault.Unavailable, "stage %q failed: %s", s.Name, s.Detail).WithID("E-CHECK-001")
		}
		if !s.OK {
			return fault.New(fault.Invalid, "stage %q failed: %s", s.Name, s.Detail).WithHint("%s", s.Hint).WithID("E-CHECK-001")
		}
	}
	r.Passed = true
	return nil
}

// Text prints a line for each stage.
func (r *checkResult) Text(p *cli.Page) {
	var rows [][]string
	for _, s := range r.Stages {
		verdict, figure := "ok", fmt.Sprintf("%.2g ≤ %.2g", s.MaxError, s.Allowed)
		if !s.OK {
			verdict = "FAILED"
		}
		if math.IsNaN(s.MaxError) {
			figure = "–"
		}
		rows = append(rows, []string{s.Name, verdict, figure, fmt.Sprintf("%.1f s", s.Seconds), s.Detail})
	}
	p.Printf("%s\n\n", r.Device)
	p.Table([]string{"stage", "", "error", ">time", "what"}, rows)
	for _, s := range r.Stages {
		if !s.OK {
			p.Printf("\n%s %s\n", p.Bad(s.Name+":"), s.Hint)
		}
	}
	if r.Passed {
		p.Printf("\n%s\n", p.Good("All ten stages passed."))
	}
}
