package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	runs "apr/run/list"
)

// severalTexts explains the letters of held-out texts.
const severalTexts = "A, B …: different held-out texts; only scores on the same one can be compared"

// textColumns is how many held-out texts have a column of their own.
const textColumns = 3

// scoreColumns are the heads and the cells of the scores of runs: a column for each held-out text, and one for all texts beyond.
func scoreColumns(all []runs.Summary) (heads []string, rows [][]string) {
	var held []string
	for _, s := range all {
		if s.Val != nil {
			held = append(held, s.HeldOut)
		}
	}
	texts := runs.TextsOf(held)
	switch {
	case len(texts) <= 1:
		heads = []string{">held-out nats"}
	case len(texts) > textColumns:
		heads = []string{">held-out A", ">held-out B", ">others"}
	default:
		for _, t := range texts {
			heads = append(heads, ">held-out "+texts.Name(t))
		}
	}
	for _, s := range all {
		row := slices.Repeat([]string{"–"}, len(heads))
		if s.Val != nil {
			at, text := slices.Index(texts, s.HeldOut), numberText(s.Val)
			if at >= len(heads)-1 && len(texts) > textColumns {
				at, text = len(heads)-1, text+" "+texts.Name(s.HeldOut)
			}
			row[at] = text
		}
		rows = append(rows, row)
	}
	return heads, rows
}

// metricRows are the rows of the metrics. One that was scored on held-out text has a row for each text.
func (r runsCompareResult) metricRows() (rows [][]string) {
	texts := runs.TextsOf(r.HeldOut)
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		groups := texts
		scored := strings.HasPrefix(name, "val_") || name == "margin_over_control"
		if !scored || len(texts) <= 1 {
			groups = []string{""}
		}
		for _, text := range groups {
			row, known := []string{name}, len(groups) == 1
			if len(groups) > 1 {
				row[0] += " " + texts.Name(text)
			}
			for i, v := range r.Metrics[name] {
				if v == nil || len(groups) > 1 && r.HeldOut[i] != text {
					row = append(row, "–")
					continue
				}
				row, known = append(row, fmt.Sprintf("%.6g", *v)), true
			}
			if known {
				rows = append(rows, row)
			}
		}
	}
	return rows
}
