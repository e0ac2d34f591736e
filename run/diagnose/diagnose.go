// Package diagnose says what happened to a run: the chain from symptom to cause, each finding with the lines of the
// run's records that it rests on.
//
// A run may take several attempts, each resuming the one before. How the run ended is what its last attempt shows: an earlier
// end was overcome. What concerns the weights is judged by all steps.
//
// Caveats. It never guesses: what the records do not show is "unknown". It judges the records alone; that a run learned too
// little is for its evaluation to say.
package diagnose

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// Unknown is what the records do not say, None what there is none of: a completed run has no symptom.
const (
	Unknown = "unknown"
	None    = "none"
)

// File is the name of the findings in a run directory.
const File = "findings.json"

// Evidence is a line of a record.
type Evidence struct {
	File string `json:"file"` // in the run directory
	Line int    `json:"line"` // from 1; 0: the file as a whole
	Text string `json:"text"`
}

// Finding is one thing that happened.
type Finding struct {
	// The rule: oom, killed, hung, crash, restarted, diverged, disk-full, degenerate, zero-learning-rate,
	// nothing-changed, …
	ID       string     `json:"id"`
	Symptom  string     `json:"symptom"`
	Cause    string     `json:"cause"` // or Unknown
	Fatal    bool       `json:"fatal"` // it ended the process, or made the run worthless
	Evidence []Evidence `json:"evidence"`
	Advice   string     `json:"advice,omitempty"`

	at time.Time
}

// Findings is findings.json.
type Findings struct {
	Schema   string    `json:"schema"` // "apr.findings/1"
	RunID    string    `json:"run_id"`
	RunDir   string    `json:"run_dir"`
	Status   string    `json:"status"` // as runlog derives it
	Cause    string    `json:"cause"`  // why the run is in this state: that of the last fatal finding; empty if there is nothing to explain
	Findings []Finding `json:"findings"`
	Incident
}

// line is a line of a JSON Lines file.
type line struct {
	n    int
	text string
}

// records are what the rules look at.
type records struct {
	dir         string
	run         *runlog.Record
	events      []event // of all attempts
	latest      []event // of the last attempt
	steps       []step  // of all attempts
	checkpoints []checkpoint
}

// checkpoint is a folder of one.
type checkpoint struct {
	name string // in the run directory
	err  error  // what is wrong with it
}

type event struct {
	line
	runlog.Event
	detail map[string]any
}

type step struct {
	line
	runlog.Step
	kl *float64 // nil: not computed or not finite
}

// Run reads the run directory dir and returns what happened. verify reads one checkpoint and returns what is wrong with
// it. Faults are those of runlog.Read.
func Run(dir string, verify func(checkpoint string) error) (Findings, error) {
	run, err := runlog.Read(dir)
	if err != nil {
		return Findings{}, err
	}
	r := &records{dir: dir, run: run}
	if err := r.read(); err != nil {
		return Findings{}, err
	}
	r.look(verify)
	f := Findings{Schema: "apr.findings/1", RunID: run.ID(), RunDir: dir, Status: run.Status}
	for _, rule := range []func(*records) []Finding{
		deaths, restarts, stalls, divergence, ownTextEnds, unmoved, degenerate, copies, doubtful,
		ownText, uniform, ruined, zeroRate, stops, aborts, lostRanks, receipt,
	} {
		f.Findings = append(f.Findings, rule(r)...)
	}
	f.Findings = append(f.Findings, r.damaged()...)
	slices.SortStableFunc(f.Findings, func(a, b Finding) int { return a.at.Compare(b.at) })
	f.conclude(r)
	return f, nil
}

// Write writes findings.json into the run directory.
func (f Findings) Write() error {
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", File, err)
	}
	return atomicfile.WritePrivate(filepath.Join(f.RunDir, File), append(b, '\n'), true)
}

// conclude names the cause of the run's state. A run that failed without any fatal finding has an unknown one.
func (f *Findings) conclude(r *records) {
	f.Incident = quiet(r.ticket())
	if f.Status == runlog.Running {
		return
	}
	fatal := func(x Finding) bool { return x.Fatal }
	if f.Status == runlog.Failed && !slices.ContainsFunc(f.Findings, fatal) {
		f.Findings = append(f.Findings, Finding{ID: "ended", Symptom: "the process ended without a receipt, and nobody saw why", Cause: Unknown, Fatal: true,
			Evidence: r.last(), Advice: "--supervise records how the process dies; " + r.resumption()})
	}
	for i, x := range slices.Backward(f.Findings) {
		if x.Fatal {
			f.Cause = x.Cause
			f.explain(i)
			return
		}
	}
}

// read reads events and steps with their line numbers. Lines that are no records are left out.
func (r *records) read() error {
	events, err := lines(filepath.Join(r.dir, "events.jsonl"))
	if err != nil {
		return err
	}
	var bare []runlog.Event
	for _, l := range events {
		e := event{line: l}
		if json.Unmarshal([]byte(l.text), &e.Event) == nil {
			e.detail, _ = e.Detail.(map[string]any)
			r.events, bare = append(r.events, e), append(bare, e.Event)
		}
	}
	r.latest = r.events[runlog.LastAttempt(bare, r.run.InForce.Started):]
	steps, err := lines(filepath.Join(r.dir, "steps.jsonl"))
	if err != nil {
		return err
	}
	for _, l := range steps {
		s := step{line: l}
		var kl struct{ KL *float64 }
		if json.Unmarshal([]byte(l.text), &s.Step) == nil && json.Unmarshal([]byte(l.text), &kl) == nil {
			s.kl = kl.KL
			r.steps = append(r.steps, s)
		}
	}
	return nil
}

// maxLine bounds a line of a record.
const maxLine = 16 << 20

// lines reads a file of lines; there may be none.
func lines(path string) (out []line, err error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, maxLine)
	for n := 1; s.Scan(); n++ {
		out = append(out, line{n, s.Text()})
	}
	if err := s.Err(); err != nil {
		return nil, fault.In(fault.Format, path, "cannot be read").At("line %d", len(out)+1).Because(err)
	}
	return out, nil
}

func (e event) evidence() Evidence { return Evidence{"events.jsonl", e.n, e.text} }
func (s step) evidence() Evidence  { return Evidence{"steps.jsonl", s.n, s.text} }

// last are the last lines that the run has written.
func (r *records) last() (out []Evidence) {
	if n := len(r.events); n > 0 {
		out = append(out, r.events[n-1].evidence())
	}
	if n := len(r.steps); n > 0 {
		out = append(out, r.steps[n-1].evidence())
	}
	return out
}

// find returns the evidence that a text stands in a document of the run; without a line if it is not found.
func (r *records) find(name, text string) []Evidence {
	all, err := lines(filepath.Join(r.dir, name))
	if err != nil {
		return nil
	}
	for _, l := range all {
		if strings.Contains(l.text, text) {
			return []Evidence{{name, l.n, strings.TrimSpace(l.text)}}
		}
	}
	return []Evidence{{File: name}}
}

// get returns a member of an event's detail as text.
func (e event) get(key string) string {
	s, _ := e.detail[key].(string)
	return s
}

// look verifies all checkpoints.
func (r *records) look(verify func(string) error) {
	dirs, _ := filepath.Glob(filepath.Join(r.dir, "checkpoints*", "step-*")) // the pattern is well formed
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || info.Mode().Type() != fs.ModeDir || strings.Contains(filepath.Base(dir), ".") {
			continue
		}
		name, err := filepath.Rel(r.dir, dir)
		if err != nil {
			name = dir
		}
		r.checkpoints = append(r.checkpoints, checkpoint{name, verify(dir)})
	}
}

// resumption says what a run can go on from.
func (r *records) resumption() string {
	for _, c := range slices.Backward(r.checkpoints) {
		if c.err == nil {
			return "--resume continues from " + c.name
		}
	}
	if len(r.checkpoints) > 0 {
		return "no checkpoint is sound: start again"
	}
	return "no checkpoint was written: start again"
}

// damaged are the checkpoints that are not what was written.
func (r *records) damaged() (out []Finding) {
	for _, c := range r.checkpoints {
		if c.err != nil {
			out = append(out, Finding{ID: "checkpoint", Symptom: "the checkpoint " + c.name + " is not what was written", Cause: Unknown,
				Evidence: []Evidence{{File: c.name, Text: c.err.Error()}}, at: r.run.Updated(), Advice: r.resumption()})
		}
	}
	return out
}

// finite returns the losses of a leg that are numbers.
func finite(steps []step, leg string) (out []step) {
	for _, s := range steps {
		if l := float64(s.Loss); s.Leg == leg && s.Finite && !math.IsNaN(l) && !math.IsInf(l, 0) {
			out = append(out, s)
		}
	}
	return out
}

// ends are first and last line of what a finding is about.
func ends(steps []step) []Evidence {
	out := []Evidence{steps[0].evidence()}
	if len(steps) > 1 {
		out = append(out, steps[len(steps)-1].evidence())
	}
	return out
}

// setting renders a value of the configuration that was last in force.
func (r *records) setting(key string) string {
	v, ok := r.run.InForce.Config[key]
	if !ok {
		return Unknown
	}
	return fmt.Sprintf("%v (%s)", v.Value, cmp.Or(v.Origin, "origin not recorded"))
}

// applied returns the steps of a leg that were not refused.
func applied(steps []step, leg string) []step {
	return slices.DeleteFunc(finite(steps, leg), func(s step) bool { return s.Refused() })
}
