package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apr/arch"
)

// between returns what a document has between the marks.
func between(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), begin)
	table, _, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s: no marks", path)
	}
	return table
}

// quoted are names in backquotes.
var quoted = regexp.MustCompile("`([^`]+)`")

// The table of docs/models.md has a row for every family, and as many cells as columns; README lists the same families.
func TestDocuments(t *testing.T) {
	want := arch.Families()
	slices.Sort(want)
	var measured, listed []string
	for line := range strings.Lines(between(t, "../../docs/models.md")) {
		if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | "); strings.HasPrefix(line, "| `") {
			measured = append(measured, strings.Trim(cells[0], " `"))
			if len(cells) != len(heads) {
				t.Errorf("%s: %d cells, want %d", cells[0], len(cells), len(heads))
			}
		}
	}
	for line := range strings.Lines(between(t, "../../README.md")) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Contains(cells[1], "family") {
			continue
		}
		computed := strings.TrimSpace(cells[3]) == "yes"
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			listed = append(listed, m[1])
			for _, r := range families(t) {
				if r.family == m[1] && (r.config.NotComputed() == "") != computed {
					t.Errorf("README.md: %s is computed: %v", m[1], computed)
				}
			}
		}
	}
	slices.Sort(measured)
	slices.Sort(listed)
	if !slices.Equal(measured, want) {
		t.Errorf("docs/models.md has rows of %v, want %v: make families", measured, want)
	}
	if !slices.Equal(listed, want) {
		t.Errorf("README.md lists %v, want %v", listed, want)
	}
}

// families returns the rows without measurements.
func families(t *testing.T) []*row {
	t.Helper()
	list, err := rows(nil)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Cells of llama.cpp are those of the column of log-probabilities, of the table that has one.
func TestReadInterop(t *testing.T) {
	path := t.TempDir() + "/table.md"
	text := "| model | ids | log-probabilities | other |\n|---|---|---|---|\n| a | 1 | 2e-05 | 7 |\n| b | 1 | 3e-06 | 7 |\n| c | 1 |  | 7 |\n| mistral_window | 1 | 2 | 7 |\n| e | 1 | x | 7 |\n" +
		"\n| tokenizer | texts | same | none |\n|---|---|---|---|\n| a | 5 | 6 | 7 |\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cells, err := readLlama(path)
	if err != nil {
		t.Fatal(err)
	}
	for models, want := range map[string]string{"a b": "2.0e-05", "c d": unavailable, "a mistral_window": "2.0e-05; mistral_window: 2", "b e": "3.0e-06; e: x"} {
		if got := llamaCell(cells, strings.Fields(models)); got != want {
			t.Errorf("%s: %s, want %s", models, got, want)
		}
	}
	if _, err := readLlama("docs_test.go"); err == nil {
		t.Error("a file without a table is taken")
	}
}
