// Trust writes docs/trust.md from the reports of apr contract falsify, the latest of each contract, and from one of a
// machine with a GPU if there is one. Reports may be of several commits: the table names each contract's. Run it in the
// root of the module:
//
//	go run ./cmd/apr contract falsify --allow-unavailable --json | go run ./tools/trust/main.go [CARD.json] > docs/trust.md
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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
	Contracts []contract
	tally
	mutantTally
	Prebuilt *struct {
		Programs []struct{ File, SHA256 string }
	}
	until   string // the latest Started
	several bool   // commits
}

type contract struct {
	ID, Status string
	tally
	mutantTally
	Checks []check
	commit string
}

type tally struct {
	Upheld        int `json:"upheld"`
	Falsified     int `json:"falsified"`
	NeedHardware  int `json:"need_hardware"`
	NeedSoftware  int `json:"need_software"`
	WithoutMutant int `json:"without_mutant"`
	Doubtful      int `json:"doubtful"`
}

// mutantTally counts mutants: one that was not tried on each of its checks is not among Mutants.
type mutantTally struct {
	Mutants  int `json:"mutants"`
	Killed   int `json:"killed"`
	NotTried int `json:"mutants_not_tried"`
}

// String is "7 of 8", with those that were not tried.
func (t mutantTally) String() string {
	if t.NotTried == 0 {
		return fmt.Sprintf("%d of %d", t.Killed, t.Mutants)
	}
	return fmt.Sprintf("%d of %d, %d not tried", t.Killed, t.Mutants, t.NotTried)
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
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "trust:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, w io.Writer) error {
	here, err := read(in)
	if err != nil {
		return err
	}
	var card *report
	if len(args) > 0 {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		if card, err = read(f); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if len(card.Devices) == 0 {
			return fmt.Errorf("%s was made on a machine without a GPU", args[0])
		}
	}
	return write(here, card, w)
}

// read returns the sum of the reports in r, of which the latest of each contract counts.
func read(r io.Reader) (*report, error) {
	var all []*report
	latest := map[string]int{}
	for in := json.NewDecoder(r); in.More(); {
		rep := &report{}
		if err := in.Decode(rep); err != nil {
			return nil, err
		}
		if first := rep; len(all) > 0 {
			first = all[0]
			if first.GoVersion != rep.GoVersion || !slices.Equal(first.Devices, rep.Devices) {
				return nil, fmt.Errorf("reports of different machines: by %s on %q, and by %s on %q",
					first.GoVersion, first.Devices, rep.GoVersion, rep.Devices)
			}
		}
		for _, c := range rep.Contracts {
			if i, ok := latest[c.ID]; !ok || all[i].Started < rep.Started {
				latest[c.ID] = len(all)
			}
		}
		all = append(all, rep)
	}
	if len(latest) == 0 {
		return nil, fmt.Errorf("there is no report of a contract")
	}
	return sum(all, latest), nil
}

// sum adds the contracts of reports of which latest says which report each is taken from.
func sum(all []*report, latest map[string]int) *report {
	total := &report{GoVersion: all[0].GoVersion, Devices: all[0].Devices}
	for i, r := range all {
		used := false
		for _, c := range r.Contracts {
			if latest[c.ID] != i {
				continue
			}
			used = true
			c.commit = r.Commit[:min(len(r.Commit), 8)]
			if r.Dirty {
				c.commit += "+"
			}
			total.Contracts = append(total.Contracts, c)
			total.tally.add(c.tally)
			total.mutantTally.add(c.mutantTally)
		}
		if !used {
			continue
		}
		if total.Started == "" || r.Started < total.Started {
			total.Started = r.Started
		}
		total.until = max(total.until, r.Started)
		total.Seconds, total.Dirty = total.Seconds+r.Seconds, total.Dirty || r.Dirty
		if total.Commit == "" || total.Commit == r.Commit {
			total.Commit = r.Commit
		} else {
			total.several = true
		}
		if r.Prebuilt != nil {
			total.Prebuilt = r.Prebuilt
		}
	}
	if len(all) == 1 { // of programs built elsewhere mutants are counted once for all contracts
		total.mutantTally = all[0].mutantTally
	}
	slices.SortFunc(total.Contracts, func(a, b contract) int { return strings.Compare(a.ID, b.ID) })
	return total
}

func (t *tally) add(o tally) {
	t.Upheld += o.Upheld
	t.Falsified += o.Falsified
	t.NeedHardware += o.NeedHardware
	t.NeedSoftware += o.NeedSoftware
	t.WithoutMutant += o.WithoutMutant
	t.Doubtful += o.Doubtful
}

func (t *mutantTally) add(o mutantTally) {
	t.Mutants += o.Mutants
	t.Killed += o.Killed
	t.NotTried += o.NotTried
}

const head = `# What is claimed, and what would show it false

Each row is a contract in ` + "`contracts/`" + `: claims, the checks that would show them false, and mutants, defects that are put
into the program to see whether the checks notice. A check is UPHELD if it passed in this run, visited the cases that it
says, and failed under each of its mutants. Nothing here is written by hand: ` + "`make trust`" + ` writes this file.

` + "```" + `
apr contract validate contracts                # the form: every claim has a check that exists, and a mutant
apr contract falsify --allow-unavailable       # this table
apr contract falsify distillation-loss-v1      # one contract, with the output of whatever is not upheld
make gpu-binaries; ONLY=contracts make gpu-test   # the checks that a GPU can run, on one; its contracts.json is docs/trust-card.json
make proofs                                    # all 2³² roundings to bfloat16, and the proofs of z3
` + "```" + `

A status is what one invocation found at the commit that the row names. FALSIFIED: a check failed. VACUOUS: it matched
no test, was skipped, was cached, or counted too few cases. SURVIVED: it passes under a mutant. BROKEN: it could not be
run to its end.
UNAVAILABLE: the machine lacks what it needs. "Here" is the machine of the second paragraph below, "on a GPU" that of the third:
checks that run on the emulated GPU here run on the real one there.

`

// cost returns the cases that a contract's checks visited, and the seconds of checks and mutants, one after the other.
func cost(c contract) (cases uint64, seconds float64) {
	timed := map[string]bool{}
	for _, k := range c.Checks {
		cases, seconds = cases+k.Cases, seconds+k.Seconds
		for _, m := range k.Mutants {
			if key := fmt.Sprint(m.ID, m.Seconds); !timed[key] { // one go command ran several checks
				timed[key], seconds = true, seconds+m.Seconds
			}
		}
	}
	return cases, seconds
}

func write(here, card *report, w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprint(out, head)
	there := map[string]check{}     // by contract and id
	onCard := map[string]contract{} // by id
	if card != nil {
		for _, c := range card.Contracts {
			onCard[c.ID] = c
			for _, k := range c.Checks {
				there[c.ID+"/"+k.ID] = k
			}
		}
	}
	line := headline(here)
	missing, err := unreported(here)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		line += fmt.Sprintf(", %d contracts not run", len(missing))
	}
	fmt.Fprintf(out, "**%s**\n\n", line)
	contracts(out, here, onCard)
	if len(missing) > 0 {
		fmt.Fprintf(out, "No report, so that nothing is said of: %s.\n\n", strings.Join(missing, ", "))
	}
	origin(out, here, card)
	unavailable(out, here, there)
	fmt.Fprint(out, "\n## Every check\n\n| check | here | on a GPU | cases | mutants that it finds | how it is run |\n|---|---|---|---:|---|---|\n")
	for _, c := range here.Contracts {
		for _, k := range c.Checks {
			other := there[c.ID+"/"+k.ID]
			found := map[string]bool{}
			var names []string
			for _, m := range append(k.Mutants, other.Mutants...) {
				if m.Killed && !found[m.ID] {
					found[m.ID] = true
					names = append(names, m.ID)
				}
			}
			fmt.Fprintf(out, "| %s | %s | %s | %s | %s | `%s` |\n", k.ID, k.here(), other.Status, count(max(k.Cases, other.Cases)), strings.Join(names, ", "), k.Command)
		}
	}
	return out.Flush()
}

// here is the status of a check, with a word on what it ran on.
func (k check) here() string {
	if k.Status == "UPHELD" && strings.Contains(k.Command, "-tags=emulate ") {
		return "UPHELD, emulated"
	}
	return k.Status
}

// unreported returns the contracts of the folder that no report is of.
func unreported(here *report) (ids []string, err error) {
	files, err := filepath.Glob("contracts/*.yaml")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("contracts/*.yaml: %d files, %v: trust is run where the repository begins", len(files), err)
	}
	for _, f := range files {
		id := strings.TrimSuffix(filepath.Base(f), ".yaml")
		if !slices.ContainsFunc(here.Contracts, func(c contract) bool { return c.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// headline counts all checks here.
func headline(r *report) string {
	s := fmt.Sprintf("%d upheld, %d falsified, %d need hardware, %d without a mutant", r.Upheld, r.Falsified, r.NeedHardware, r.WithoutMutant)
	if r.NeedSoftware > 0 {
		s += fmt.Sprintf(", %d need a program or a model", r.NeedSoftware)
	}
	if r.Doubtful > 0 {
		s += fmt.Sprintf(", %d show nothing", r.Doubtful)
	}
	return s
}

// contracts is the table of contracts.
func contracts(out io.Writer, here *report, onCard map[string]contract) {
	fmt.Fprint(out, "| contract | at commit | here | upheld | falsified | need hardware | no mutant | upheld on a GPU "+
		"| mutants killed | cases | seconds |\n"+
		"|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	checks, cases, seconds := 0, uint64(0), 0.0
	upheld, tried := 0, 0 // on a GPU
	for _, c := range here.Contracts {
		n, took := cost(c)
		card := ""
		if o, ok := onCard[c.ID]; ok {
			card = fmt.Sprintf("%d of %d", o.Upheld, len(o.Checks))
			upheld, tried = upheld+o.Upheld, tried+len(o.Checks)
		}
		fmt.Fprintf(out, "| %s | %s | %s | %d of %d | %d | %d | %d | %s | %s | %s | %.1f |\n",
			c.ID, c.commit, c.Status, c.Upheld, len(c.Checks), c.Falsified, c.NeedHardware, c.WithoutMutant, card,
			c.mutantTally, count(n), took)
		checks, cases, seconds = checks+len(c.Checks), cases+n, seconds+took
	}
	card := ""
	if tried > 0 {
		card = fmt.Sprintf("%d of %d", upheld, tried)
	}
	fmt.Fprintf(out, "| **%d contracts** | | | %d of %d | %d | %d | %d | %s | %s | %s | %.1f |\n\n",
		len(here.Contracts), here.Upheld, checks, here.Falsified, here.NeedHardware, here.WithoutMutant,
		card, here.mutantTally, count(cases), seconds)
}

// origin says where each column comes from.
func origin(out io.Writer, here, card *report) {
	fmt.Fprintf(out, "Seconds are those of a contract's checks and mutants here one after the other, with building; the whole run, two at a time, took %.0f s.\n\n"+
		"Here: %s.\n\n", here.Seconds, here.origin())
	if card == nil {
		fmt.Fprint(out, "On a GPU: nothing was run.\n")
		return
	}
	other := ""
	if card.Commit != here.Commit || here.several {
		other = ", another commit than here"
	}
	fmt.Fprintf(out, "On a GPU: %s%s; %s mutants killed in %.0f s", card.origin(), other, card.mutantTally, card.Seconds)
	if card.Prebuilt != nil {
		fmt.Fprintf(out, ", by %d test programs that were built elsewhere (`docs/trust-card.json` has their hashes)", len(card.Prebuilt.Programs))
	}
	fmt.Fprint(out, ".\n")
}

// origin is when, with what and of which commit a report was made.
func (r *report) origin() string {
	where := "no GPU"
	if len(r.Devices) > 0 {
		where = strings.Join(r.Devices, ", ")
	}
	dirty := map[bool]string{true: " (+: with changes or files that are not in it)"}[r.Dirty]
	from := fmt.Sprintf("commit %.12s", r.Commit)
	if r.several {
		from = "the commits that the table names, the last at " + r.until[:min(len(r.until), 16)]
	}
	return fmt.Sprintf("made at %s with %s, on a machine with %s, from %s%s",
		r.Started[:min(len(r.Started), 16)], r.GoVersion, where, from, dirty)
}

// unavailable lists what the machine here lacks, with what became of it on a GPU.
func unavailable(out io.Writer, here *report, there map[string]check) {
	begun := false
	for _, c := range here.Contracts {
		for _, k := range c.Checks {
			if k.Status != "UNAVAILABLE" {
				continue
			}
			if !begun {
				fmt.Fprint(out, "\n## Unavailable here\n\n| check | needs | predicts | on a GPU |\n|---|---|---|---|\n")
				begun = true
			}
			other := there[c.ID+"/"+k.ID]
			fmt.Fprintf(out, "| %s | %s | %s | %s |\n", k.ID, strings.TrimPrefix(k.Observed, "needs "), strings.Join(strings.Fields(k.Prediction), " "),
				strings.TrimSpace(other.Status+" "+strings.ReplaceAll(other.Observed, "|", "\\|")))
		}
	}
}

// count prints 6,854,912.
func count(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
