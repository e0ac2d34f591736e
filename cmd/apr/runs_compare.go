package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"apr/internal/atomicfile"
	"apr/internal/cli"
	runs "apr/run/list"
	runlog "apr/run/log"
	"apr/run/report"
)

// compareFormats are what a comparison may be called.
var compareFormats = reportFormats[:1]

// writeComparison writes the page of several runs and returns its size.
func writeComparison(records []*runlog.Record, path string, chosen, force bool) (int, error) {
	if err := refuseIdle([]idle{{"metric", chosen, "with --output: the page shows all curves"}}); err != nil {
		return 0, err
	}
	if _, _, err := compareFormats.choose(path, "", "html"); err != nil {
		return 0, err
	}
	for _, r := range records {
		if err := keepRecord(r, path); err != nil {
			return 0, err
		}
	}
	var b bytes.Buffer
	if err := report.WriteComparison(&b, records); err != nil {
		return 0, err
	}
	return b.Len(), atomicfile.WriteFile(path, b.Bytes(), force)
}

// metricRows are the numbers of a comparison, a column for each run. Scores on several held-out texts have a row for each text:
// those of one row can be compared.
func metricRows(c runs.Comparison) (all [][]string) {
	groups := runs.Texts(c.HeldOut)
	every := [][]int{make([]int, len(c.Runs))}
	for i := range c.Runs {
		every[0][i] = i
	}
	for _, name := range slices.Sorted(maps.Keys(c.Metrics)) {
		parts := every
		if runs.OfHeldOut(name) {
			parts = groups
		}
		for g, members := range parts {
			row, some := []string{name}, false
			if len(parts) > 1 {
				row[0] += fmt.Sprintf(" [text %d]", g+1)
			}
			for i, v := range c.Metrics[name] {
				cell := "–"
				if v != nil && slices.Contains(members, i) {
					cell, some = fmt.Sprintf("%.6g", *v), true
				}
				row = append(row, cell)
			}
			if some || len(parts) == 1 {
				all = append(all, row)
			}
		}
	}
	return all
}

// heldOutLetters marks the last cell of each row that has a score with the letter of its held-out text, where the runs have several, and
// returns what the letters mean. Numbers of one letter can be compared.
func heldOutLetters(all []runs.Summary, rows [][]string) (meanings []string) {
	letters, texts := report.Letters(all)
	if len(texts) == 0 {
		return nil
	}
	for i, row := range rows {
		if letters[i] != "" {
			row[len(row)-1] += " [" + letters[i] + "]"
		}
	}
	meanings = append(meanings, "held-out nats of one letter can be compared:")
	for _, t := range texts {
		meanings = append(meanings, t.Name+": "+t.Value)
	}
	return meanings
}

// printTexts says what the runs are judged by, where that is not one text.
func printTexts(p *cli.Page, c runs.Comparison) {
	groups := runs.Texts(c.HeldOut)
	if len(groups) < 2 {
		return
	}
	p.Printf("\nThese runs are judged by different held-out texts: compare scores within a row only.\n")
	for g, members := range groups {
		name := "not known"
		if h := c.HeldOut[members[0]]; h != nil {
			name = h.Name
		}
		p.Printf("text %d: %s\n", g+1, cli.Clean(name))
	}
}
