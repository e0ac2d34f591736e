package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"apr/falsify"
	"apr/internal/cli"
)

// contractShown is the JSON of apr contract show: the contract itself, with its id.
type contractShown struct {
	ID        string `json:"id"`
	File      string `json:"file"`
	Effective string `json:"kind"`
	Claims    int    `json:"claims"`
	*falsify.Contract
}

// Text prints what is claimed and how each claim could be shown false.
func (s contractShown) Text(p *cli.Page) {
	c := s.Contract
	p.Pairs("contract", s.ID, "version", c.Metadata.Version, "kind", s.Effective, "depends on", strings.Join(c.Metadata.DependsOn, ", "))
	p.Printf("\n%s\n", lines(c.Metadata.Description))
	if len(c.Equations) > 0 {
		p.Printf("\n%s\n", p.Bold("equations"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Equations)) {
		p.Printf("  %s: %s\n", cli.Clean(name), lines(c.Equations[name].Formula))
	}
	if len(c.ProofObligations) > 0 {
		p.Printf("\n%s\n", p.Bold("obligations"))
	}
	for _, o := range c.ProofObligations {
		p.Printf("  %s (%s): %s\n", cli.Clean(o.ID), o.Type, lines(o.Property))
	}
	if len(c.FalsificationTests) > 0 {
		p.Printf("\n%s\n", p.Bold("falsification tests"))
	}
	for _, t := range c.FalsificationTests {
		p.Printf("  %s: %s\n    by %s\n", cli.Clean(t.ID), lines(t.Prediction), checkText(t.Check))
		if len(t.Needs) > 0 {
			p.Printf("    needs %s\n", cli.Clean(strings.Join(t.Needs, ", ")))
		}
	}
	if len(c.KaniHarnesses) > 0 {
		p.Printf("\n%s\n", p.Bold("bounded harnesses"))
	}
	for _, h := range c.KaniHarnesses {
		what := "no check"
		if h.Go != nil {
			what = checkText(&falsify.Check{Go: h.Go})
		}
		if h.Cases != nil {
			what += fmt.Sprintf(", all %s cases", cli.Count(int64(min(*h.Cases, 1<<62))))
		}
		p.Printf("  %s: %s\n    by %s\n", cli.Clean(h.ID), lines(h.Property), what)
	}
	if len(c.Mutants) > 0 {
		p.Printf("\n%s\n", p.Bold("mutants"))
	}
	for _, m := range c.Mutants {
		p.Printf("  %s in %s: %s\n    must fail %s\n", cli.Clean(m.ID), cli.Clean(m.File), lines(m.Why), cli.Clean(strings.Join(m.Kills, ", ")))
	}
}

// checkText says what a check runs.
func checkText(c *falsify.Check) string {
	switch {
	case c == nil:
		return "no check"
	case c.Go != nil:
		s := c.Go.Test + " in " + c.Go.Package
		if len(c.Go.Tags) > 0 {
			s += " with " + strings.Join(c.Go.Tags, ",")
		}
		return cli.Clean(s)
	}
	return cli.Clean(strings.Join(c.Cmd, " "))
}

// lines joins the lines of a text, without control characters.
func lines(s string) string { return cli.Clean(strings.Join(strings.Fields(s), " ")) }
