package main

import (
	"context"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"apr/internal/cli"
	"apr/internal/fault"
	runlog "apr/run/log"
	"apr/run/report"
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
	f, of := runlog.Follow(path), legSteps{path: path}
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
			fmt.Fprintln(e.Out, stepLine(steps[i], of.steps(steps[i].Leg), e.Page().Columns()))
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

// legSteps knows how many steps a run's students are to have.
type legSteps struct {
	path  string
	known map[string]int
}

// steps reads the run's events when it first meets a leg; 0: they do not say.
func (l *legSteps) steps(leg string) int {
	n, known := l.known[leg]
	if known {
		return n
	}
	if rec, err := runlog.Read(l.path); err == nil {
		n = report.StepsOf(rec, leg)
	}
	if l.known == nil {
		l.known = map[string]int{}
	}
	l.known[leg] = n
	return n
}

// stepLine prints a step of so many in so many columns: what matters, and as much more as fits. 0 columns are no limit.
func stepLine(s runlog.Step, of, columns int) string {
	line := fmt.Sprintf("%s step %s", cli.Clean(s.Leg), cli.Count(int64(s.Step+1)))
	if of > 0 {
		line += "/" + cli.Count(int64(of))
	}
	line += fmt.Sprintf("  loss %.3f", s.Loss)
	more := []string{cli.Count(int64(s.TokensPerSecond)) + " tok/s", fmt.Sprintf("|g| %.2f", s.GradNorm), fmt.Sprintf("lr %.1e", s.LR), cli.Bytes(s.MemoryBytes)}
	if s.KL.Finite() {
		more = append([]string{fmt.Sprintf("CE %.3f", s.CE), fmt.Sprintf("KL %.3f", s.KL)}, more...)
	}
	for _, m := range more {
		if columns > 0 && utf8.RuneCountInString(line)+2+utf8.RuneCountInString(m) > columns {
			break
		}
		line += "  " + m
	}
	return line
}
