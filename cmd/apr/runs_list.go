package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/internal/cli"
	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
)

// runsListResult is the JSON of apr runs list.
type runsListResult struct {
	Dir   string         `json:"dir"`
	Runs  []runs.Summary `json:"runs"`
	Total int            `json:"total"` // before --status and --limit

	status string // that was asked for
}

// Text prints the table.
func (r runsListResult) Text(p *cli.Page) {
	if len(r.Runs) == 0 {
		if r.Total > 0 {
			p.Printf("no run in %s is %s; %s lists all %d\n", cli.Clean(r.Dir), r.status, cli.AsCalled("apr runs list"), r.Total)
			return
		}
		p.Printf("no runs in %s\n", cli.Clean(r.Dir))
		return
	}
	heads, scores := scoreColumns(r.Runs)
	r.table(p, heads, scores)
	if len(heads) > 1 {
		p.Printf("%s\n", severalTexts)
	}
	for _, s := range r.Runs {
		if s.Problem != "" {
			p.Printf("%s: %s\n", cli.Clean(filepath.Base(s.Path)), cli.Clean(s.Problem))
		}
	}
}

// table prints the runs; on a page that is too narrow for all of it without the loss, the year and the seconds.
func (r runsListResult) table(p *cli.Page, heads []string, scores [][]string) {
	wide, narrow := []string{"run", "status", "started", ">steps", ">loss"}, []string{"run", "status", "started", ">steps"}
	var all, fewer [][]string
	for i, s := range r.Runs {
		name, steps := filepath.Base(s.Path), cli.Count(int64(s.Steps))
		all = append(all, append([]string{name, s.Status, when(s.Started, "2006-01-02 15:04:05"), steps, numberText(s.Loss)}, scores[i]...))
		fewer = append(fewer, append([]string{name, s.Status, when(s.Started, "01-02 15:04"), steps}, scores[i]...))
	}
	wide = append(wide, heads...)
	if p.Fits(wide, all) {
		p.Table(wide, all)
		return
	}
	for _, h := range heads {
		narrow = append(narrow, strings.Replace(strings.TrimSuffix(h, " nats"), "held-out ", "nats ", 1))
	}
	p.Table(narrow, fewer)
}

func when(t time.Time, layout string) string {
	if t.IsZero() {
		return "–"
	}
	return t.Local().Format(layout)
}

func numberText(n *runlog.Number) string {
	if n == nil {
		return "–"
	}
	return fmt.Sprintf("%.4f", *n)
}

func runsListCommand(name, short string) *cli.Command {
	var dir, status string
	var limit int
	var reindex bool
	return &cli.Command{
		Name: name, Short: short,
		Long: "Lists the runs of a folder, the newest first. The status follows from each run's receipt, lock and last event:\n" +
			"running, completed, stopped (by a signal, can be resumed) or failed.",
		Example: "apr runs list\napr runs list --status running --limit 5",
		Exits:   []fault.Kind{fault.NotFound, fault.IO},
		Options: []cli.Option{
			runsDirOption(&dir),
			{Name: "status", Value: cli.Enum(&status, "all", "all", runlog.Running, runlog.Completed, runlog.Stopped, runlog.Failed), Help: "only runs in this state"},
			{Name: "limit", Value: cli.Int(&limit, 50).AtLeast(0), Help: "runs to list at most; 0 = all"},
			{Name: "reindex", Value: cli.Bool(&reindex, false), Help: "rebuild the folder's index from the runs' records"},
		},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			if err := runsFolder(e.Settings, dir); err != nil {
				return nil, err
			}
			ix := runs.OpenIndex(dir, reindex)
			all, err := ix.List()
			if err != nil {
				return nil, err
			}
			if ix.Problem != nil && reindex {
				return nil, ix.Problem
			} else if ix.Problem != nil { // the list is right without it
				e.Log.Debug("the list has no index", "error", ix.Problem)
			}
			r := runsListResult{Dir: dir, Total: len(all), status: status}
			r.Runs = slices.DeleteFunc(all, func(s runs.Summary) bool { return status != "all" && s.Status != status })
			if limit > 0 && len(r.Runs) > limit {
				r.Runs = r.Runs[:limit]
			}
			return r, nil
		},
	}
}
