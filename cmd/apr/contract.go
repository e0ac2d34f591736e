package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"apr/falsify"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/junit"
)

// contractExits are the exit codes of every contract command.
var contractExits = slices.Clip([]fault.Kind{fault.NotFound, fault.IO, fault.Vacuous})

func contractCommand() *cli.Command {
	return &cli.Command{
		Name: "contract", Short: "Check and show contracts: claims with what would show them false",
		Example: "apr contract validate contracts\napr contract list",
		Sub:     []*cli.Command{contractValidateCommand(), contractListCommand(), contractShowCommand(), contractGraphCommand(), contractFalsifyCommand()},
	}
}

// contractReport is the JSON of apr contract validate.
type contractReport struct{ *falsify.Report }

// Text prints the violations and the counts.
func (r contractReport) Text(p *cli.Page) { p.Printf("%s", r.String()) }

// rulesOption is --rules.
func rulesOption(p *string) cli.Option {
	return cli.Option{Name: "rules", Value: cli.Enum(p, "ours", "ours", "later", "earlier"),
		Help: "rule set: aprender's earlier or later format, or later and that claims can be run"}
}

func contractValidateCommand() *cli.Command {
	var paths []string
	var rules, junit string
	var force bool
	return &cli.Command{
		Name: "validate", Short: "Check the form of contracts",
		Long: "Check the form of contracts: files, or folders of .yaml files. One line a violation, with file, line and column.\n" +
			"The form says nothing about the truth of a claim.",
		Example: "apr contract validate contracts\napr contract validate kernel-v1.yaml --rules earlier",
		Exits:   append(contractExits, fault.Invalid),
		Options: []cli.Option{
			{Name: "path", Arg: true, Path: true, Value: cli.Strings(&paths), Default: contractsDir, Help: "files or folders"},
			rulesOption(&rules),
			{Name: "junit", Path: true, Value: cli.String(&junit, ""), Help: "also write the result as JUnit XML"},
			{Name: "force", Value: cli.Bool(&force, false), Help: "replace an existing file of --junit"},
		},
		Run: func(context.Context, *cli.Env) (cli.Result, error) {
			if force && junit == "" {
				return nil, fault.New(fault.Usage, "--force has no effect without --junit")
			}
			set, err := falsify.ParseRules(rules)
			if err != nil {
				return nil, err
			}
			if len(paths) == 0 {
				paths = []string{contractsDir}
			}
			r, err := falsify.ValidatePaths(paths, set)
			if err != nil {
				return nil, err
			}
			if junit != "" {
				if err := writeJUnit(junit, force, r); err != nil {
					return nil, err
				}
			}
			return contractReport{r}, r.Err()
		},
	}
}

// writeJUnit writes a report as JUnit XML: a test case for each contract.
func writeJUnit(path string, force bool, r *falsify.Report) error {
	s := junit.Suite{Name: "apr contract validate"}
	for _, c := range r.Contracts {
		t := junit.Case{Name: cmp.Or(c.ID, filepath.Base(c.File)), Class: "contract", File: c.File}
		var lines []string
		for _, v := range c.Violations {
			lines = append(lines, v.String())
		}
		if !c.Valid {
			t.Failure = &junit.Message{Line: lines[0], Text: strings.Join(lines, "\n")}
		}
		s.Cases = append(s.Cases, t)
	}
	return atomicfile.WriteFile(path, junit.Marshal(s.Name, []junit.Suite{s}), force)
}

// loadContracts reads the contracts of a folder; one that cannot be parsed is an error.
func loadContracts(dir string) (all []*falsify.Document, err error) {
	files, err := falsify.Files(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		doc, err := falsify.Read(file, falsify.Ours)
		if err != nil {
			return nil, err
		}
		all = append(all, doc)
	}
	return all, nil
}

// contractsDir is the folder of the contracts where none is named.
const contractsDir = "contracts"

// dirOption is --dir.
func dirOption(p *string) cli.Option {
	return cli.Option{Name: "dir", Path: true, Value: cli.String(p, contractsDir), Help: "folder of the contracts"}
}

// contractItem is one row of apr contract list.
type contractItem struct {
	ID          string `json:"id"`
	Version     string `json:"version"`
	Kind        string `json:"kind"`
	Claims      int    `json:"claims"`
	Obligations int    `json:"obligations"`
	Tests       int    `json:"tests"`
	Harnesses   int    `json:"harnesses"`
	Mutants     int    `json:"mutants"`
	Description string `json:"description"`
	File        string `json:"file"`

	Evidence *evidence `json:"evidence"` // null: none at the present commit
}

// contractList is the JSON of apr contract list.
type contractList struct {
	Contracts []contractItem `json:"contracts"`
	Claims    int            `json:"claims"`
	Note      string         `json:"note,omitempty"` // why there is no evidence
}

// Text prints a table.
func (l contractList) Text(p *cli.Page) {
	var rows [][]string
	for _, c := range l.Contracts {
		rows = append(rows, []string{c.ID, c.Version, c.Kind, strconv.Itoa(c.Obligations), strconv.Itoa(c.Tests), strconv.Itoa(c.Harnesses), strconv.Itoa(c.Mutants), evidenceText(c.Evidence)})
	}
	p.Table([]string{"contract", "version", "kind", ">obligations", ">tests", ">harnesses", ">mutants", "last evidence"}, rows)
	p.Printf("%s, %s\n", numbered(len(l.Contracts), "contract"), numbered(l.Claims, "claim"))
	if l.Note != "" {
		p.Printf("%s\n", l.Note)
	}
}

// numbered is a count with its noun.
func numbered(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func contractListCommand() *cli.Command {
	var dir string
	return &cli.Command{
		Name: "list", Short: "List contracts and what they claim",
		Long: "List the contracts of a folder. A claim is a falsification test or a harness. The last evidence is what apr contract\n" +
			"falsify found here at the present commit of an unchanged tree.",
		Example: "apr contract list\napr contract list --dir contracts --json",
		Exits:   contractExits,
		Options: []cli.Option{dirOption(&dir)},
		Run: func(context.Context, *cli.Env) (cli.Result, error) {
			all, err := loadContracts(dir)
			if err != nil {
				return nil, err
			}
			known, note := presentEvidence(dir)
			l := contractList{Contracts: []contractItem{}, Note: note}
			for _, doc := range all {
				c := doc.Contract
				l.Claims += c.Claims()
				l.Contracts = append(l.Contracts, contractItem{
					ID: c.ID, Version: c.Metadata.Version, Kind: c.Kind(), Claims: c.Claims(), Obligations: len(c.ProofObligations),
					Tests: len(c.FalsificationTests), Harnesses: len(c.KaniHarnesses), Mutants: len(c.Mutants),
					Description: c.Metadata.Description, File: c.Path, Evidence: about(doc, known),
				})
			}
			return l, nil
		},
	}
}

func contractShowCommand() *cli.Command {
	var dir, name string
	return &cli.Command{
		Name: "show", Short: "Show one contract",
		Example: "apr contract show distillation-loss-v1\napr contract show ./other/kernel-v1.yaml --json",
		Exits:   contractExits,
		Options: []cli.Option{
			{Name: "contract", Arg: true, Required: true, Value: cli.String(&name, ""), Help: "id of a contract of the folder, or a file"},
			dirOption(&dir),
		},
		Run: func(context.Context, *cli.Env) (cli.Result, error) {
			file, err := contractFile(dir, name)
			if err != nil {
				return nil, err
			}
			doc, err := falsify.Read(file, falsify.Ours)
			if err != nil {
				return nil, err
			}
			c := doc.Contract
			return contractShown{c.ID, c.Path, c.Kind(), c.Claims(), c}, nil
		},
	}
}

// contractFile finds a contract by id or path.
func contractFile(dir, name string) (string, error) {
	if ext := filepath.Ext(name); ext == ".yaml" || ext == ".yml" || strings.ContainsRune(name, filepath.Separator) {
		return name, nil
	}
	files, err := falsify.Files(dir)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, file := range files {
		id := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		if id == name {
			return file, nil
		}
		ids = append(ids, id)
	}
	e := fault.In(fault.NotFound, dir, "no contract %q", name)
	if near := fault.Nearest(name, ids); near != "" {
		return "", e.WithHint("did you mean %q?", near)
	}
	return "", e.WithHint("apr contract list --dir %s lists them", dir)
}

// contractGraph is the JSON of apr contract graph.
type contractGraph struct{ *falsify.Graph }

// Text prints each contract with what it rests on.
func (g contractGraph) Text(p *cli.Page) {
	for _, id := range g.Contracts {
		var to []string
		for _, e := range slices.Concat(g.Edges, g.Missing) {
			if e.From == id {
				to = append(to, cli.Clean(e.To))
			}
		}
		if len(to) == 0 {
			p.Printf("%s\n", cli.Clean(id))
		} else {
			p.Printf("%s -> %s\n", cli.Clean(id), strings.Join(to, ", "))
		}
	}
}

func contractGraphCommand() *cli.Command {
	var dir string
	return &cli.Command{
		Name: "graph", Short: "Show which contracts rest on which",
		Long:    "Show what each contract of a folder depends on, each after those it rests on. A dependency that is missing, or a\ncircle of them, is exit 25.",
		Example: "apr contract graph\napr contract graph --json",
		Exits:   contractExits,
		Options: []cli.Option{dirOption(&dir)},
		Run: func(context.Context, *cli.Env) (cli.Result, error) {
			all, err := loadContracts(dir)
			if err != nil {
				return nil, err
			}
			var contracts []*falsify.Contract
			for _, doc := range all {
				contracts = append(contracts, doc.Contract)
			}
			g := falsify.NewGraph(contracts)
			return contractGraph{g}, g.Err()
		},
	}
}
