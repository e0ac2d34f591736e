// Gputable prints what was measured on a GPU as one table: correctness, then speed against PyTorch. It reads a folder of
//
//	*.txt                 output of test programs with -test.v: a row for every line `row "NAME" measured X tolerance Y`
//	                      (package near) and for every test without such lines
//	apr-PAIR-ROUND.json   results of apr bench --shape PAIR; PAIR@WAY where the teacher was computed in several ways
//	torch-PAIR-ROUND.txt  lines of bench/peer/torch_kd.py, where there is PyTorch
//
// and ends with 1 if a correctness row fails or none passes. A test that is skipped for want of hardware is a row
// UNAVAILABLE, counted in the last line. Of a race, memory against its plan, kernels loaded late, the GPU's utilisation
// and what blocks cost are rows too. Speed is shown, with the goals that it meets or misses; with -goals a missed one
// counts as a failed row.
//
//	go run ./bench/gputable [-goals] DIR
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	goals := flag.Bool("goals", false, "end with 1 if a goal of speed is missed")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: gputable [-goals] DIR")
		os.Exit(2)
	}
	ok, err := report(os.Stdout, flag.Arg(0), *goals)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gputable:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// report prints the table of a folder and says whether all is correct, and with goals also whether all of those are met.
func report(w io.Writer, dir string, goals bool) (ok bool, err error) {
	checks, err := readChecks(dir)
	if err != nil {
		return false, err
	}
	races, err := readRaces(dir)
	if err != nil {
		return false, err
	}
	checks = append(checks, judged(races)...)
	ok = printChecks(w, []string{"correctness", "measured", "tolerance", "result"}, checks)
	ok = ok && slices.ContainsFunc(checks, check.passed)
	if len(races) == 0 {
		fmt.Fprintln(w, "\nno speed was measured")
		return ok && !goals, nil
	}
	fmt.Fprintln(w)
	align(w, raceCells(races))
	if all := goalsOf(races); len(all) > 0 {
		fmt.Fprintln(w)
		met := printChecks(w, []string{"goal", "measured", "wanted", "result"}, all)
		ok = ok && (met || !goals)
	}
	return ok, nil
}

// printChecks prints rows with their results, and reports whether none failed. What is unavailable is counted and is no
// failure.
func printChecks(w io.Writer, head []string, checks []check) bool {
	cells, failed, unavailable := [][]string{head}, 0, 0
	for _, c := range checks {
		result := "pass"
		switch {
		case c.failed:
			result = "FAIL"
			failed++
		case c.unavailable:
			result = "UNAVAILABLE"
			unavailable++
		}
		cells = append(cells, []string{c.name, c.measured, c.tolerance, result})
	}
	align(w, cells)
	fmt.Fprintf(w, "%d rows, %d failed", len(checks), failed)
	if unavailable > 0 {
		fmt.Fprintf(w, ", %d unavailable", unavailable)
	}
	fmt.Fprintln(w)
	return failed == 0
}

// align prints rows in columns, the first to the left.
func align(w io.Writer, rows [][]string) {
	var width []int
	for _, r := range rows {
		for i, s := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(s)))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, s := range r {
			pad := strings.Repeat(" ", width[i]-len([]rune(s)))
			if i == 0 {
				b.WriteString(s + pad)
			} else {
				b.WriteString("  " + pad + s)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// files returns the files of a folder that match, in order of their names.
func files(dir, pattern string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, pattern))
}
