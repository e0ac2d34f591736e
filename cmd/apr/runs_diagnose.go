package main

import (
	"context"
	"fmt"
	"path/filepath"

	"apr/distill"
	"apr/internal/cli"
	"apr/run/diagnose"
	runlog "apr/run/log"
)

// diagnoseCommand is apr runs diagnose.
func diagnoseCommand() *cli.Command {
	var dir, id string
	return &cli.Command{
		Name: "diagnose", Short: "Say what happened to a run, with the evidence",
		Long: "Follows a run's records from symptom to cause (out of memory, killed, hung, diverged, disk full, nothing to learn,\n" +
			"damaged checkpoint, crash, started again after a death, stopped in order) and writes findings.json into its directory: every finding with the lines\n" +
			"it rests on. What the records do not show has the cause \"unknown\".",
		Example: "apr runs diagnose 20261120\napr runs diagnose runs/mine --json",
		Exits:   runsExits,
		Options: []cli.Option{runsDirOption(&dir), runOption(&id)},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			path, err := findRun(e.Settings, dir, id)
			if err != nil {
				return nil, err
			}
			f, err := diagnose.Run(path, distill.VerifyCheckpoint)
			if err != nil {
				return nil, err
			}
			return diagnosis{f.RunID, f.RunDir, f.Status, f.Cause, f.Incident, f.Findings, filepath.Join(path, diagnose.File)}, f.Write()
		},
	}
}

// diagnosis is the JSON of apr runs diagnose: findings.json, with the run's status under a name of its own.
type diagnosis struct {
	RunID     string `json:"run_id"`
	RunDir    string `json:"run_dir"`
	RunStatus string `json:"run_status"`
	Cause     string `json:"cause"` // empty: nothing to explain
	diagnose.Incident
	Findings []diagnose.Finding `json:"findings"`
	Output   string             `json:"output"`
}

// longest is how much of a line is shown.
const longest = 160

// Text prints the chain of findings.
func (d diagnosis) Text(p *cli.Page) {
	p.Printf("%s: %s\n", cli.Clean(d.RunID), d.RunStatus)
	switch {
	case d.Cause != "":
		p.Printf("cause: %s\n", cli.Clean(d.Cause))
	case d.RunStatus == runlog.Running:
		p.Printf("it goes on\n")
	case len(d.Findings) == 0:
		p.Printf("nothing to explain\n")
	}
	for _, x := range d.Findings {
		p.Printf("\n%s: %s\n  cause: %s\n", x.ID, cli.Clean(x.Symptom), cli.Clean(x.Cause))
		for _, e := range x.Evidence {
			text := []rune(cli.Clean(e.Text))
			if len(text) > longest {
				text = append(text[:longest], '…')
			}
			at := e.File
			if e.Line > 0 {
				at = fmt.Sprintf("%s:%d", e.File, e.Line)
			}
			p.Printf("  %s  %s\n", at, string(text))
		}
		if x.Advice != "" {
			p.Printf("  %s\n", cli.Clean(x.Advice))
		}
	}
}
