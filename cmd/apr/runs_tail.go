package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"apr/internal/cli"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// runsTailResult is the JSON of apr runs tail.
type runsTailResult struct {
	RunID     string       `json:"run_id"`
	RunStatus string       `json:"run_status"`
	Shown     int          `json:"steps_shown"`
	Last      *runlog.Step `json:"last_step"`
	reason    string
}

// Text prints how the run ended, if it did.
func (r runsTailResult) Text(p *cli.Page) {
	p.Printf("%s: %s", cli.Clean(r.RunID), r.RunStatus)
	if r.reason != "" {
		p.Printf(": %s", cli.Clean(r.reason))
	}
	p.Printf("\n")
}

func runsTailCommand() *cli.Command {
	var dir, id string
	var lines int
	var follow bool
	return &cli.Command{
		Name: "tail", Short: "Follow the steps of a run",
		Long: "Prints the last steps of a run, then each new one, until the run ends or Ctrl-C.",
		Example: "apr runs tail 20261120T1447\n" +
			"apr runs tail runs/mine -n 100 --no-follow",
		Exits: runsExits,
		Options: []cli.Option{
			runOption(&id), runsDirOption(&dir),
			{Name: "lines", Short: "n", Value: cli.Int(&lines, 10).AtLeast(0), Help: "print this many past steps first"},
			{Name: "follow", Value: cli.Bool(&follow, true), Negatable: true, Help: "wait for new steps"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			path, err := findRun(e.Settings, dir, id)
			if err != nil {
				return nil, err
			}
			return tail(ctx, e, path, lines, follow, time.Second/2)
		},
	}
}

// tail prints steps until the run is over.
func tail(ctx context.Context, e *cli.Env, path string, lines int, follow bool, every time.Duration) (cli.Result, error) {
	f := runlog.Follow(path)
	r := runsTailResult{}
	for first := true; ; first = false {
		// The status is asked for before the steps: what was written until then is then printed.
		rec, err := runlog.ReadStatus(path)
		if err != nil {
			return nil, err
		}
		r.RunID, r.RunStatus, r.reason = rec.ID(), rec.Status, rec.Reason
		steps, again, err := f.Next()
		if err != nil {
			return nil, err
		}
		if first || again {
			steps = steps[max(0, len(steps)-lines):]
		}
		for i := range steps {
			fmt.Fprintln(e.Out, stepLine(steps[i]))
			r.Shown++
			r.Last = &steps[i]
		}
		if err := flush(e.Out); err != nil {
			return nil, err
		}
		if !follow || rec.Status != runlog.Running {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return r, nil
		case <-time.After(every):
		}
	}
}

// flush writes out what was printed, so that readers see it now.
func flush(w io.Writer) error {
	if f, ok := w.(interface{ Flush() error }); ok {
		if err := f.Flush(); err != nil {
			return fault.In(fault.IO, "stdout", "cannot be written").Because(err)
		}
	}
	return nil
}
