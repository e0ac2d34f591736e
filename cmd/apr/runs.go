package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
	"apr/run/report"
)

// runsExits are the exit codes of every command that reads a run.
var runsExits = slices.Clip([]fault.Kind{fault.NotFound, fault.Format, fault.IO})

func runsCommand() *cli.Command {
	return &cli.Command{
		Name: "runs", Short: "List, show, compare, follow, resume, stop and remove runs", Long: topicRuns,
		Example: "apr runs list\napr runs show 20261120\napr runs resume mine\napr runs report 20261120 -o report.html\napr runs serve",
		Sub: []*cli.Command{
			runsListCommand("list", "List the runs"), runsListCommand("ls", "List the runs: the same as list"), runsShowCommand(),
			runsCompareCommand("compare", "Show where runs differ, and what they came to"),
			runsCompareCommand("diff", "Show where runs differ: the same as compare"), runsTailCommand(), diagnoseCommand(), runsReportCommand(), runsServeCommand(),
			runsResumeCommand(), runsStopCommand(), runsRemoveCommand(),
		},
	}
}

// runsDirOption is --dir.
func runsDirOption(p *string) cli.Option {
	return cli.Option{Name: "dir", Env: "APR_RUNS_DIR", Path: true, Value: cli.String(p, "runs"), Help: "folder with the runs"}
}

// runsFolder refuses a folder that --dir names and that is not there. Where none was named, there are no runs yet.
func runsFolder(s cli.Settings, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && s.Origin("dir") == "flag" {
		return fault.In(fault.NotFound, dir, "there is no such folder").WithHint("--dir names a folder with runs; apr distill makes one").WithID("E-RUN-008")
	}
	return nil
}

// runOption is the argument that names a run.
func runOption(p *string) cli.Option {
	return cli.Option{Name: "id", Arg: true, Required: true, Complete: runNames, Value: cli.String(p, ""), Help: "a run: its directory, or the beginning of its name or identity"}
}

// findRun finds a run. What an error advises to call has the --dir that was given.
func findRun(s cli.Settings, dir, id string) (string, error) {
	path, err := runs.Find(dir, id)
	if f := (*fault.Error)(nil); errors.As(err, &f) && s.Origin("dir") == "flag" {
		const list = "apr runs list"
		f.Hint = strings.Replace(f.Hint, list, list+" --dir "+dir, 1)
	}
	return path, err
}

// openRun finds and reads a run.
func openRun(s cli.Settings, dir, id string) (*runlog.Record, error) {
	path, err := findRun(s, dir, id)
	if err != nil {
		return nil, err
	}
	return runlog.Read(path)
}

// runsCompareResult is the JSON of apr runs compare.
type runsCompareResult struct {
	runs.Comparison
	Output string `json:"output,omitempty"` // the page that was written
	Size   int    `json:"size_bytes,omitempty"`
}

// Text prints both tables, a column for each run, or where the page is.
func (r runsCompareResult) Text(p *cli.Page) {
	if r.Output != "" {
		p.Printf("%s (%s)\n", cli.Clean(r.Output), cli.Bytes(int64(r.Size)))
		return
	}
	heads := append([]string{""}, r.Runs...)
	if len(r.Differences) > 0 {
		var rows [][]string
		for _, d := range r.Differences {
			row := []string{d.Name()}
			for i := range d.Values {
				row = append(row, shorten(d.Typed(i)))
			}
			rows = append(rows, row)
		}
		p.Table(heads, rows)
	} else {
		p.Printf("no setting, input, version or device differs\n")
	}
	p.Printf("\n")
	for i := range heads[1:] {
		heads[i+1] = ">" + heads[i+1]
	}
	p.Table(heads, r.metricRows())
	if len(runs.TextsOf(r.HeldOut)) > 1 {
		p.Printf("%s\n", severalTexts)
	}
}

func runsCompareCommand(name, short string) *cli.Command {
	var dir, output string
	var ids, metrics []string
	var force bool
	return &cli.Command{
		Name: name, Short: short,
		Long: "Compares the settings, inputs, versions and devices of runs, and their numbers: those of the last steps, times, and\n" +
			"scores on held-out text. Numbers of the control begin with \"control.\". Scores on different held-out texts stand in\n" +
			"rows of their own. With -o it writes a page instead: curves over each other, verdicts, and settings that differ.",
		Example: "apr runs compare 20261120T1447 20261120T1502\napr runs compare runs/a runs/b -o compare.html\n" +
			"apr runs compare runs/a runs/b runs/c --metric loss --metric val_nats.distilled_student",
		Exits: append(runsExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "id", Arg: true, Required: true, Complete: runNames, Value: cli.Strings(&ids), Help: "two runs or more"},
			runsDirOption(&dir),
			{Name: "metric", Value: cli.Strings(&metrics), Default: "all", Help: "compare only this number; repeatable"},
			{Name: "output", Short: "o", Path: true, Value: cli.String(&output, ""), Help: "write an HTML page with curves to this file instead of printing tables"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace an existing output"},
		},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			if len(ids) < 2 {
				return nil, fault.New(fault.Usage, "two runs or more are compared, %d given", len(ids))
			}
			var records []*runlog.Record
			for _, id := range ids {
				r, err := openRun(e.Settings, dir, id)
				if err != nil {
					return nil, err
				}
				records = append(records, r)
			}
			c := runs.Compare(records)
			if err := chooseMetrics(&c, metrics); err != nil {
				return nil, err
			}
			res := runsCompareResult{Comparison: c, Output: output}
			var err error
			if output == "" {
				err = refuseIdle([]idle{{"force", force, "without --output"}})
			} else {
				res.Size, err = writeComparison(records, output, len(metrics) > 0, force)
			}
			if err != nil {
				return nil, err
			}
			return res, nil
		},
	}
}

// chooseMetrics keeps the metrics of those names, if there are any; one that no run has is refused.
func chooseMetrics(c *runs.Comparison, names []string) error {
	known := slices.Sorted(maps.Keys(c.Metrics))
	for _, name := range names {
		if !slices.Contains(known, name) {
			f := fault.New(fault.Usage, "no run has a metric %q", name)
			if near := fault.Nearest(name, known); near != "" {
				return f.WithHint("did you mean %s?", near)
			}
			return f.WithHint("apr runs compare without --metric shows all")
		}
	}
	if len(names) > 0 {
		maps.DeleteFunc(c.Metrics, func(name string, _ []*runlog.Number) bool { return !slices.Contains(names, name) })
	}
	return nil
}

// runsReportResult is the JSON of apr runs report.
type runsReportResult struct {
	RunID  string `json:"run_id"`
	Output string `json:"output"`
	Format string `json:"format"`
	Size   int    `json:"size_bytes"`
}

// Text prints where the report is.
func (r runsReportResult) Text(p *cli.Page) {
	p.Printf("%s (%s)\n", cli.Clean(r.Output), cli.Bytes(int64(r.Size)))
}

func runsReportCommand() *cli.Command {
	var dir, id, output, format string
	var force bool
	return &cli.Command{
		Name: "report", Short: "Write the report of a run: one file, which opens without a network",
		Long: "Writes what a run was worth: a verdict, curves, scores, texts token by token, time and memory, decisions and\n" +
			"provenance. Runs at work and failed runs have a report too. apr distill writes report.html into the run itself.",
		Example: "apr runs report 20261120T1447\napr runs report runs/mine --format md -o report.md",
		Exits:   append(runsExits, fault.Invalid),
		Options: []cli.Option{
			runOption(&id), runsDirOption(&dir),
			{Name: "output", Short: "o", Path: true, Value: cli.String(&output, ""), Default: "report.html", Help: "file to write"},
			{Name: "format", Value: cli.Enum(&format, "", "html", "md"), Default: "by the output's name, else html", Help: "html, or md: text and tables"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace an existing output"},
		},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			var err error
			if output, format, err = reportFormats.choose(output, format, "html"); err != nil {
				return nil, err
			}
			output = cmp.Or(output, "report."+format)
			rec, err := openRun(e.Settings, dir, id)
			if err != nil {
				return nil, err
			}
			if err := keepRecord(rec, output); err != nil {
				return nil, err
			}
			n, err := writeReport(rec, output, format, force)
			if err != nil {
				return nil, err
			}
			return runsReportResult{rec.ID(), output, format, n}, nil
		},
	}
}

// reportFormats are what a report may be called.
var reportFormats = formats{{"html", []string{".html", ".htm"}}, {"md", []string{".md", ".markdown"}}}

// writeReport writes a run's report and returns its size.
func writeReport(r *runlog.Record, path, format string, force bool) (int, error) {
	write := report.WriteHTML
	if format == "md" {
		write = report.WriteMarkdown
	}
	var b bytes.Buffer
	if err := write(&b, r); err != nil {
		return 0, err
	}
	return b.Len(), atomicfile.WriteFile(path, b.Bytes(), force)
}

// reportRun writes report.html into the directory of a run that has just ended, and returns the verdict in it. A run is not
// judged by its report: if there can be none, a line says why, and the verdict is nil.
func reportRun(e *cli.Env, path string) *report.Verdict {
	rec, err := runlog.Read(path)
	var b bytes.Buffer
	if err == nil {
		err = report.WriteHTML(&b, rec)
	}
	if err == nil {
		err = atomicfile.WritePrivate(filepath.Join(path, "report.html"), b.Bytes(), true)
	}
	if err != nil {
		e.Log.Warn("no report was written: " + err.Error())
	}
	if rec == nil {
		return nil
	}
	return &report.New(rec).Verdict
}
