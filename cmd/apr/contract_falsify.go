package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"apr/device/cuda"
	"apr/falsify"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/junit"
)

// falsified is the JSON of apr contract falsify.
type falsified struct{ *falsify.Falsification }

// Text prints a table of the contracts, and under it whatever is not upheld.
func (f falsified) Text(p *cli.Page) {
	var rows [][]string
	var cases uint64
	checks := 0
	for _, c := range f.Contracts {
		row := totals(c)
		checks, cases = checks+len(c.Checks), cases+row.cases
		rows = append(rows, []string{contractName(c), string(c.Status), fmt.Sprintf("%d/%d", c.Upheld, len(c.Checks)), strconv.Itoa(c.Falsified),
			strconv.Itoa(c.NeedHardware), strconv.Itoa(c.WithoutMutant), fmt.Sprintf("%d/%d", c.Killed, c.Mutants), strconv.Itoa(c.NotTried), cli.Count(int64(row.cases)), fmt.Sprintf("%.1f", row.seconds)})
	}
	p.Table([]string{"contract", "status", ">upheld", ">falsified", ">need hardware", ">no mutant", ">killed", ">not tried", ">cases", ">seconds"}, rows)
	for _, c := range f.Contracts {
		printDoubts(p, c)
	}
	p.Printf("\n%s\n%s, %s; %s; %s cases; %.0f s\n", f.Tally, numbered(len(f.Contracts), "contract"), numbered(checks, "check"),
		f.MutantTally, cli.Count(int64(cases)), f.Seconds)
}

// total is one row of the table.
type total struct {
	cases   uint64
	seconds float64 // of the checks and of the mutants, one after the other
}

// totals counts in one contract. Checks that one go command ran under a mutant have the same time, which counts once.
func totals(c falsify.ContractRun) (t total) {
	timed := map[string]bool{}
	for _, run := range c.Checks {
		t.cases += run.Cases
		t.seconds += run.Seconds
		for _, m := range run.Mutants {
			if key := fmt.Sprint(m.ID, m.Seconds); !timed[key] {
				timed[key] = true
				t.seconds += m.Seconds
			}
		}
	}
	return t
}

func contractName(c falsify.ContractRun) string {
	if c.ID == "" {
		return c.File
	}
	return c.ID
}

// printDoubts prints each check of a contract that is not upheld: what was predicted, what was seen, what it means.
func printDoubts(p *cli.Page, c falsify.ContractRun) {
	for _, v := range c.Violations {
		if v.Severity == falsify.Error {
			p.Printf("\n%s\n", p.Bad(v.String()))
		}
	}
	for _, run := range c.Checks {
		switch run.Status {
		case falsify.Upheld:
			continue
		case falsify.Unavailable:
			p.Printf("\n%s %s: %s\n", run.Status, cli.Clean(run.ID), cli.Clean(run.Observed))
			continue
		}
		p.Printf("\n%s %s of %s\n", p.Bad(string(run.Status)), cli.Clean(run.ID), cli.Clean(contractName(c)))
		p.Printf("  predicted  %s\n  observed   %s\n", lines(run.Prediction), lines(run.Observed))
		if run.IfFails != "" {
			p.Printf("  meaning    %s\n", lines(run.IfFails))
		}
		p.Printf("  command    %s\n", lines(run.Command))
		printTail(p, run.Tail)
		for _, m := range run.Mutants {
			if !m.Killed {
				p.Printf("  %s  %s\n", cli.Clean(m.ID), lines(m.Observed))
				printTail(p, m.Tail)
			}
		}
	}
}

// printTail prints the end of an output, each line without control characters.
func printTail(p *cli.Page, text string) {
	for line := range strings.Lines(text) {
		p.Printf("    %s\n", cli.Clean(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    ")))
	}
}

// thisMachine is what checks may need of this machine.
func thisMachine(models string) (m falsify.Machine) {
	m.Models = models
	if host, err := cuda.HostMemoryNow(); err == nil {
		m.MemAvailable = uint64(host.Available)
	}
	inv, err := cuda.TakeInventory()
	if err != nil {
		return m // no driver or no device: what needs one is unavailable
	}
	for _, c := range inv.Cards {
		if c.Unfit == nil {
			m.Devices = append(m.Devices, c.Name)
			m.Integrated = m.Integrated || c.Integrated == 1
		}
	}
	return m
}

func contractFalsifyCommand() *cli.Command {
	var names []string
	var dir, junit, models, evidence, prebuilt string
	var allow, force bool
	var timeout time.Duration
	var jobs int
	return &cli.Command{
		Name: "falsify", Short: "Run every check of contracts, and every mutant that it must find",
		Long: "Runs every check of the contracts on the source tree around them. Then it puts each mutant into the tree by an overlay, and\n" +
			"the checks that the mutant names have to fail. It needs the source tree and the go command. On a machine with a GPU and\n" +
			"without Go, --prebuilt runs the checks for a GPU and their mutants from the test programs of make gpu-binaries.\n" +
			"Statuses:\n" +
			"  UPHELD       every check passes\n" +
			"  FALSIFIED    a check failed\n" +
			"  VACUOUS      a check showed nothing\n" +
			"  SURVIVED     a check passes under a mutant\n" +
			"  BROKEN       a check cannot be run\n" +
			"  UNAVAILABLE  this machine lacks what a check needs",
		Example: "apr contract falsify --allow-unavailable\napr contract falsify distillation-loss-v1 --json",
		Exits:   append(contractExits, fault.Invalid, fault.Unavailable, fault.Stopped),
		Options: []cli.Option{
			{Name: "contract", Arg: true, Value: cli.Strings(&names), Default: "all of --dir", Help: "ids of contracts of the folder, files, or folders"},
			dirOption(&dir),
			{Name: "allow-unavailable", Value: cli.Bool(&allow, false), Help: "do not fail for checks that this machine cannot run"},
			{Name: "timeout", Value: cli.Duration(&timeout, 0), Default: "each check's own", Help: "time limit of each check and mutant"},
			{Name: "jobs", Value: cli.Int(&jobs, 0), Default: "half the processors, 2 to 8", Help: "go commands to run at a time"},
			{Name: "junit", Path: true, Value: cli.String(&junit, ""), Help: "also write the result as JUnit XML"},
			{Name: "evidence", Path: true, Value: cli.String(&evidence, ""), Help: "also write the result as JSON, for docs/trust.md"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace existing files of --junit and --evidence"},
			{Name: "prebuilt", Path: true, Value: cli.String(&prebuilt, ""), Help: "run the test programs of make gpu-binaries in this folder, on a GPU without a Go toolchain"},
			{Name: "models", EnvOnly: true, Path: true, Env: "APR_CONTRACT_MODELS", Value: cli.String(&models, ""), Help: "folder of models that checks need"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if force && junit == "" && evidence == "" {
				return nil, fault.New(fault.Usage, "--force has no effect without --junit or --evidence")
			}
			files, err := contractFiles(dir, names)
			if err != nil {
				return nil, err
			}
			for _, file := range []string{junit, evidence} {
				if file == "" || force {
					continue
				}
				if _, err := os.Lstat(file); err == nil { // before minutes of work
					return nil, fault.In(fault.Invalid, file, "exists").WithHint("--force replaces it")
				}
			}
			var show *cli.Progress
			defer func() { show.Close() }()
			f, err := falsify.Falsify(ctx, files, falsify.FalsifyOptions{
				Machine: thisMachine(models), AllowUnavailable: allow, Timeout: timeout, Jobs: jobs, Prebuilt: prebuilt,
				Progress: func(done, of int, id string) {
					if show == nil {
						show = e.Progress("falsify", int64(of), cli.Count)
					}
					show.Note(id)
					show.Add(1)
				},
			})
			if err != nil {
				return nil, err
			}
			keepEvidence(e, f)
			if junit != "" {
				if err := writeFalsifyJUnit(junit, force, f); err != nil {
					return falsified{f}, err
				}
			}
			if evidence != "" {
				text, err := json.MarshalIndent(f, "", " ")
				if err == nil {
					err = atomicfile.WriteFile(evidence, append(text, '\n'), force)
				}
				if err != nil {
					return falsified{f}, err
				}
			}
			return falsified{f}, f.Err()
		},
	}
}

// contractFiles are the files of contracts by id, file or folder; all of dir if none is named.
func contractFiles(dir string, names []string) (files []string, err error) {
	if len(names) == 0 {
		return falsify.Files(dir)
	}
	for _, name := range names {
		file := name
		if info, err := os.Stat(name); err != nil || !info.IsDir() {
			if file, err = contractFile(dir, name); err != nil {
				return nil, err
			}
		}
		more, err := falsify.Files(file)
		if err != nil {
			return nil, err
		}
		for _, m := range more {
			if !slices.Contains(files, m) {
				files = append(files, m)
			}
		}
	}
	return files, nil
}

// writeFalsifyJUnit writes the outcome as JUnit XML: a suite for each contract, a case for each check.
func writeFalsifyJUnit(path string, force bool, f *falsify.Falsification) error {
	var suites []junit.Suite
	for _, c := range f.Contracts {
		s := junit.Suite{Name: contractName(c)}
		checks := c.Checks
		if len(checks) == 0 {
			checks = []falsify.CheckRun{{ID: "form", Status: c.Status, Observed: "no check"}}
		}
		for _, run := range checks {
			t := junit.Case{Name: run.ID, Class: s.Name, Seconds: run.Seconds}
			m := &junit.Message{Line: string(run.Status) + ": " + run.Observed, Text: run.Tail}
			switch run.Status {
			case falsify.Upheld:
			case falsify.Unavailable:
				t.Skipped = m
			case falsify.Broken:
				t.Error = m
			default:
				t.Failure = m
			}
			s.Cases = append(s.Cases, t)
		}
		suites = append(suites, s)
	}
	return atomicfile.WriteFile(path, junit.Marshal("apr contract falsify", suites), force)
}
