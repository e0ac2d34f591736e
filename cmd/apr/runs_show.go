package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"apr/internal/cli"
	runlog "apr/run/log"
	"apr/run/report"
)

// runsShowResult is the JSON of apr runs show.
type runsShowResult struct {
	RunID     string           `json:"run_id"`
	RunDir    string           `json:"run_dir"`
	RunStatus string           `json:"run_status"`
	Reason    string           `json:"reason,omitempty"`
	Manifest  *runlog.Manifest `json:"manifest"`
	Steps     []runlog.Step    `json:"steps"` // with --steps
	Decisions []runlog.Event   `json:"decisions"`
	Outcome   *runlog.Receipt  `json:"outcome"` // null while there is none
	Report    string           `json:"report"`  // its file; empty while there is none
	record    *runlog.Record
	dir       string // with the runs, as --dir names it
}

// Text prints the report's text: the verdict, the settings that somebody chose, and the steps if they were asked for.
func (r runsShowResult) Text(p *cli.Page) {
	v := report.New(r.record)
	printVerdict(p, v.Verdict)
	if len(v.Scores) > 0 {
		printScores(p, v.Verdict.Base, v.Scores, v.Canaries)
	}
	kv := []string{"run", r.RunID, "directory", r.RunDir, "status", r.RunStatus, "report", r.Report}
	for _, f := range v.Facts {
		kv = append(kv, f.Name, f.Value)
	}
	p.Pairs(append(kv, r.next()...)...)
	for _, s := range v.Origins {
		if s.Title != "Inputs" && s.Title != "Configuration" {
			continue
		}
		p.Printf("\n%s\n", p.Bold(s.Title))
		var rows []string
		for _, row := range s.Rows {
			if row.Note != "default" {
				rows = append(rows, "  "+row.Name, shortHashes(row.Value))
			}
		}
		p.Wrapped(rows...)
	}
	if len(v.Events) > 0 {
		p.Printf("\n%s\n", p.Bold("Decisions"))
	}
	p.Wrapped(decisionRows(v.Events)...)
	if len(r.Steps) > 0 {
		p.Printf("\n%s\n", p.Bold("Steps"))
	}
	for _, s := range r.Steps {
		p.Printf("%s\n", stepLine(s, report.StepsOf(r.record, s.Leg), p.Columns()))
	}
}

// next is what to do about a run that did not come to its end.
func (r runsShowResult) next() []string {
	switch r.RunStatus {
	case runlog.Stopped:
		return []string{"next", resumeCommand(r.RunDir, r.dir)}
	case runlog.Failed:
		if r.record.Receipt == nil { // killed: nothing is known to be wrong with it
			return []string{"next", resumeCommand(r.RunDir, r.dir), "", "apr runs diagnose " + runName(r.RunDir, r.dir)}
		}
		return []string{"next", "apr runs diagnose " + runName(r.RunDir, r.dir), "", resumeCommand(r.RunDir, r.dir)}
	}
	return nil
}

// decisionRows are the time and the text of decisions. One that a resumed run has taken again, for the same reason, is told once.
func decisionRows(all []report.EventRow) (rows []string) {
	told := map[string]bool{}
	for _, e := range all {
		text := strings.TrimSuffix(e.Name+": "+e.Reason, ": ")
		if e.Name == "backend" { // the reason alone does not say which
			text = e.Name + ": " + e.Sentence
		}
		if e.Kind != "decision" {
			text = e.Kind + " " + text
		} else if told[text] {
			continue
		}
		told[text] = true
		rows = append(rows, e.Time.Local().Format(time.TimeOnly), text)
	}
	return rows
}

// fullHash is a SHA-256 in hexadecimal.
var fullHash = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// shortHashes leaves of each hash what people compare; the manifest has all of it.
func shortHashes(text string) string {
	return fullHash.ReplaceAllStringFunc(text, func(sum string) string { return sum[:12] + "…" })
}

func fileThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func runsShowCommand() *cli.Command {
	var dir, id string
	var steps bool
	return &cli.Command{
		Name: "show", Short: "Show what a run was asked, what it decided and what it came to",
		Example: "apr runs show 20261120\napr runs show runs/mine --steps --json",
		Exits:   runsExits,
		Options: []cli.Option{runOption(&id), runsDirOption(&dir), {Name: "steps", Value: cli.Bool(&steps, false), Help: "list every step as well"}},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			rec, err := openRun(e.Settings, dir, id)
			if err != nil {
				return nil, err
			}
			r := runsShowResult{RunID: rec.ID(), RunDir: rec.Path, RunStatus: rec.Status, Reason: rec.Reason, Manifest: rec.Manifest,
				Steps: []runlog.Step{}, Decisions: []runlog.Event{}, Outcome: rec.Receipt, record: rec, dir: dir}
			if path := filepath.Join(rec.Path, "report.html"); fileThere(path) {
				r.Report = path
			}
			if steps {
				r.Steps = append(r.Steps, rec.Steps...)
			}
			for _, e := range rec.Events {
				if e.Kind == "decision" {
					r.Decisions = append(r.Decisions, e)
				}
			}
			return r, nil
		},
	}
}
