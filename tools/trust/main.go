// Trust writes docs/trust.md from the report of apr contract falsify. Run it in the root of the module:
//
//	go run ./cmd/apr contract falsify --allow-unavailable --json | go run ./tools/trust/main.go > docs/trust.md
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// report is what is read of the JSON.
type report struct {
	Started   string   `json:"started"`
	Seconds   float64  `json:"duration_seconds"`
	Commit    string   `json:"commit"`
	Dirty     bool     `json:"dirty"`
	GoVersion string   `json:"go_version"`
	Devices   []string `json:"devices"`
	Contracts []struct {
		ID, Status string
		Checks     []check
	}
	Counts map[string]int
	Killed int
	All    int `json:"mutants"`
}

type check struct {
	ID, Kind, Status, Observed, Prediction, Command string
	Cases                                           uint64
	Seconds                                         float64 `json:"duration_seconds"`
	Mutants                                         []struct {
		ID      string
		Killed  bool
		Seconds float64 `json:"duration_seconds"`
	}
}

func main() {
	if err := write(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "trust:", err)
		os.Exit(1)
	}
}

const head = `# What is claimed, and what would show it false

Each row is a contract in ` + "`contracts/`" + `: claims, the checks that would show them false, and mutants, defects that are put
into the program to see whether the checks notice. A check is UPHELD if it passed in this run, visited the cases that it
says, and failed under each of its mutants. Nothing here is written by hand: ` + "`make trust`" + ` writes this file.

` + "```" + `
apr contract validate contracts                # the form: every claim has a check that exists, and a mutant
apr contract falsify --allow-unavailable       # this table
apr contract falsify distillation-loss-v1      # one contract, with the output of whatever is not upheld
make proofs                                    # all 2³² roundings to bfloat16, and the proofs of z3
` + "```" + `

A status is derived from one invocation, never stored. FALSIFIED: a check failed. VACUOUS: it matched no test, was skipped,
was cached, or counted too few cases. SURVIVED: it passes under a mutant. BROKEN: it could not be run to its end.
UNAVAILABLE: the machine lacks what it needs.

`

func write(r io.Reader, w io.Writer) error {
	var rep report
	if err := json.NewDecoder(r).Decode(&rep); err != nil {
		return err
	}
	if len(rep.Contracts) == 0 {
		return fmt.Errorf("the report has no contract")
	}
	out := bufio.NewWriter(w)
	fmt.Fprint(out, head)
	fmt.Fprint(out, "| contract | status | checks upheld | mutants killed | cases | seconds |\n|---|---|---:|---:|---:|---:|\n")
	checks, cases, seconds := 0, uint64(0), 0.0
	var missing []check
	for _, c := range rep.Contracts {
		upheld, visited, took := 0, uint64(0), 0.0
		alive, timed := map[string]bool{}, map[string]bool{}
		for _, k := range c.Checks {
			if k.Status == "UPHELD" {
				upheld++
			}
			if k.Status == "UNAVAILABLE" {
				missing = append(missing, k)
			}
			visited, took = visited+k.Cases, took+k.Seconds
			for _, m := range k.Mutants {
				alive[m.ID] = alive[m.ID] || !m.Killed
				if key := fmt.Sprint(m.ID, m.Seconds); !timed[key] {
					timed[key], took = true, took+m.Seconds
				}
			}
		}
		killed := 0
		for _, a := range alive {
			if !a {
				killed++
			}
		}
		fmt.Fprintf(out, "| %s | %s | %d of %d | %d of %d | %s | %.1f |\n", c.ID, c.Status, upheld, len(c.Checks), killed, len(alive), count(visited), took)
		checks, cases, seconds = checks+len(c.Checks), cases+visited, seconds+took
	}
	fmt.Fprintf(out, "| **%d contracts** | | %d of %d | %d of %d | %s | %.1f |\n\n", len(rep.Contracts), rep.Counts["UPHELD"], checks, rep.Killed, rep.All, count(cases), seconds)
	where := "no GPU"
	if len(rep.Devices) > 0 {
		where = strings.Join(rep.Devices, ", ")
	}
	dirty := map[bool]string{true: ", with changes that are not in it"}[rep.Dirty]
	fmt.Fprintf(out, "Seconds are those of a contract's checks and mutants one after the other, with building; the whole run, two at a time, took %.0f s.\n"+
		"Made at %s with %s, on a machine with %s, from commit %.12s%s.\n", rep.Seconds, rep.Started[:min(len(rep.Started), 16)], rep.GoVersion, where, rep.Commit, dirty)
	if len(missing) > 0 {
		fmt.Fprint(out, "\n## Unavailable there\n\n| check | needs | predicts |\n|---|---|---|\n")
		for _, k := range missing {
			fmt.Fprintf(out, "| %s | %s | %s |\n", k.ID, strings.TrimPrefix(k.Observed, "needs "), strings.Join(strings.Fields(k.Prediction), " "))
		}
	}
	fmt.Fprint(out, "\n## Every check\n\n| check | status | cases | mutants that it finds | how it is run |\n|---|---|---:|---|---|\n")
	for _, c := range rep.Contracts {
		for _, k := range c.Checks {
			var found []string
			for _, m := range k.Mutants {
				if m.Killed {
					found = append(found, m.ID)
				}
			}
			fmt.Fprintf(out, "| %s | %s | %s | %s | `%s` |\n", k.ID, k.Status, count(k.Cases), strings.Join(found, ", "), k.Command)
		}
	}
	return out.Flush()
}

// count prints 6,854,912.
func count(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
