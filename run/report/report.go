// Package report turns the records of a run into one HTML file that opens without a network, into Markdown, and into the
// live page and the metrics of a run that is at work.
//
// The HTML holds everything it needs: the charting library (uPlot), style, script and data. Its content security policy
// names the script and the style by their hashes and forbids everything else, so that nothing from a run's records, which
// may hold the names of strangers' files and the text of strangers' data, can be executed or fetched. All of it is escaped
// besides.
//
// Curves hold numbers of steps.jsonl, unrounded. Of very long runs the points are thinned: of each piece of a curve the
// smallest and the largest value stay.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	runlog "apr/run/log"
)

// Page is what a report shows.
type Page struct {
	Title    string
	RunID    string
	Live     bool // it has a server, whose list it leads back to
	Status   string
	Reason   string
	Verdict  Verdict
	Facts    []Pair // a line of numbers below the verdict
	Charts   []Chart
	Scores   []Score
	Margins  []Margin
	Canaries []Canary
	Experts  []ExpertUse
	Sizes    []SizeRow
	Compared string // the sizes, in a sentence
	Written  []Written
	Samples  []Text
	Memory   []MemoryRow
	Phases   []PhaseRow
	Events   []EventRow
	Origins  []Section // provenance
	Warnings []string

	memory    string // names the memory of the tensors
	reference string // what scores are compared with: the teacher, or the base model of a run without one
}

// ExpertUse is how a model spreads held-out text over the experts of a layer, in shares of an equal one.
type ExpertUse struct {
	Model       string
	Layer       int
	Experts     int
	Unused      int
	Least, Most runlog.Number
}

// Pair is a named value.
type Pair struct{ Name, Value string }

// Section is a titled table of named values; Note says where each is from, if any row has one.
type Section struct {
	Title string
	Rows  []Row
	Notes bool
}

// Row is a named value and where it came from.
type Row struct{ Name, Value, Note string }

// PhaseRow is the time of one part of the steps.
type PhaseRow struct {
	Name    string
	Seconds float64
	Percent float64
}

// EventRow is a line of events.jsonl.
type EventRow struct {
	Time                       time.Time
	Kind, Name, Detail, Reason string
	Sentence                   string // what all of it says
}

// MemoryRow is a component of the device's memory in bytes; −1: not known.
type MemoryRow struct {
	Name              string
	Planned, Measured int64
}

// New makes the page of a run.
func New(r *runlog.Record) *Page {
	p := &Page{RunID: r.ID(), Status: r.Status, Reason: r.Reason, Title: "apr run " + r.ID()}
	out := outcomeOf(r)
	p.Scores = evaluated[Score](r, "held-out")
	p.Canaries = evaluated[Canary](r, "canaries")
	p.Experts = evaluated[ExpertUse](r, "expert use")
	p.Margins = margins(r, p.Canaries)
	p.Verdict = judge(r, out, p.Scores, p.Margins, p.Canaries)
	p.Facts = facts(r, out)
	p.Charts = charts(r, p.Scores)
	p.Sizes, p.Compared = sizes(r)
	p.Written, p.Samples = written(r.Samples), texts(r.Samples)
	p.Memory, p.memory = memory(r), memoryName(r)
	p.Phases = phases(r, out)
	p.Events = events(r)
	p.Origins = origins(r)
	p.Warnings = warnings(r)
	if p.reference = teacherScore; p.Verdict.Base {
		p.nameBase()
	}
	return p
}

// outcome is what the report needs of a receipt's result.
type outcome struct {
	StepsCompleted int     `json:"steps_completed"`
	TokensSeen     int64   `json:"tokens_seen"`
	Seconds        float64 `json:"duration_seconds"`
	DevicePeak     int64   `json:"device_peak_bytes"`
	StoppedBy      string  `json:"stopped_by"`
}

// decode reads a value that was decoded without a type. What does not fit stays as it is.
func decode(from, into any) bool {
	b, err := json.Marshal(from)
	return err == nil && json.Unmarshal(b, into) == nil
}

// outcomeOf returns the receipt's result, nil without one.
func outcomeOf(r *runlog.Record) *outcome {
	var o outcome
	if r.Receipt == nil || !decode(r.Receipt.Result, &o) {
		return nil
	}
	return &o
}

// of returns the last event of a kind and name.
func of(r *runlog.Record, kind, name string) *runlog.Event {
	for i := len(r.Events) - 1; i >= 0; i-- {
		if e := &r.Events[i]; e.Kind == kind && e.Name == name {
			return e
		}
	}
	return nil
}

// legs are the names of the legs in the order of their first step.
func legs(r *runlog.Record) (names []string) {
	for _, s := range r.Steps {
		if !slices.Contains(names, s.Leg) {
			names = append(names, s.Leg)
		}
	}
	return names
}

// facts are the numbers of a line: what ran, on what, how far.
func facts(r *runlog.Record, out *outcome) []Pair {
	var all []Pair
	add := func(name, value string) {
		if value != "" {
			all = append(all, Pair{name, value})
		}
	}
	if in, ok := r.Manifest.Inputs["teacher"]; ok {
		add("teacher", millions(in.Detail))
	}
	if in, ok := r.Manifest.Inputs["student_init"]; ok {
		add("student", millions(in.Detail))
	}
	student := runlog.Sum(r.Steps, "student")
	add("steps", count(int64(student.Steps)))
	add("tokens", count(student.Tokens))
	if student.Seconds > 0 {
		add("speed", count(int64(math.Round(student.TokensPerSecond())))+" tokens/s")
	}
	if whole := wholeTime(r, out); whole > 0 {
		add("time", duration(whole))
	} else if seconds := inSteps(r); seconds > 0 {
		add("time in steps", duration(seconds))
	}
	if r.Status == runlog.Running {
		all = append(all, pace(r)...)
	}
	add("device", devices(r))
	if !r.Manifest.Started.IsZero() {
		add("started", r.Manifest.Started.UTC().Format("2006-01-02 15:04 UTC"))
	}
	return all
}

// devices says on which backend and device a run computed, by attempts if these had different ones.
func devices(r *runlog.Record) string {
	type span struct {
		from, to int
		device   string
	}
	var all []span
	for i, m := range r.Attempts() {
		device := text(m.Device["name"])
		if kind := text(m.Device["kind"]); kind != "" {
			device = kind + ", " + device
		}
		if n := len(all); n > 0 && all[n-1].device == device {
			all[n-1].to = i + 1
			continue
		}
		all = append(all, span{i + 1, i + 1, device})
	}
	if len(all) == 1 {
		return all[0].device
	}
	var parts []string
	for _, s := range all {
		which := fmt.Sprintf("attempt %d: ", s.from)
		if s.to > s.from {
			which = fmt.Sprintf("attempts %d to %d: ", s.from, s.to)
		}
		parts = append(parts, which+s.device)
	}
	return strings.Join(parts, "; ")
}

// inSteps is the time of all steps of a run, of all legs.
func inSteps(r *runlog.Record) (seconds float64) {
	for _, s := range r.Steps {
		seconds += s.MS.Total / 1e3
	}
	return seconds
}

// wholeTime is how long all attempts of a run took, 0 where that is not known. Versions that wrote down the time of the last
// attempt alone can be told by a time that is shorter than that of the steps.
func wholeTime(r *runlog.Record, out *outcome) float64 {
	if out == nil || !(out.Seconds >= inSteps(r)) {
		return 0
	}
	return out.Seconds
}

// pace is how fast a run at work is now, by its last steps, and when the leg ends at that rate.
func pace(r *runlog.Record) []Pair {
	const recent = 20
	last := r.Steps[max(0, len(r.Steps)-recent):]
	var seconds, tokens float64
	n := 0
	for _, s := range last {
		if s.Leg == last[len(last)-1].Leg {
			seconds += s.MS.Total / 1e3
			tokens += float64(s.Tokens)
			n++
		}
	}
	if !(seconds > 0) {
		return nil
	}
	now := last[len(last)-1]
	all := []Pair{{"speed now", count(int64(math.Round(tokens/seconds))) + " tokens/s"},
		{memoryName(r), bytesText(now.MemoryBytes)}}
	if steps := StepsOf(r, now.Leg); steps > now.Step {
		all = append(all, Pair{"left for the " + now.Leg, "about " + duration(math.Round(seconds/float64(n)*float64(steps-now.Step-1)))})
	}
	return all
}

// memoryName names the memory that a run's tensors are in.
func memoryName(r *runlog.Record) string {
	if text(cmp.Or(r.InForce, r.Manifest).Device["kind"]) == "cpu" {
		return "memory of tensors"
	}
	return "device memory"
}

// millions takes "6.85M parameters" out of a model's description.
func millions(detail string) string {
	for part := range strings.SplitSeq(detail, ", ") {
		if strings.HasSuffix(part, " parameters") {
			return part
		}
	}
	return ""
}

// text renders a value of a record: strings as they are, everything else as JSON.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// phases is the time of the steps by phase, and what the run did besides.
func phases(r *runlog.Record, out *outcome) []PhaseRow {
	var ms runlog.Milliseconds
	for _, s := range r.Steps {
		ms.Data += s.MS.Data
		ms.Teacher += s.MS.Teacher
		ms.Student += s.MS.Student
		ms.Loss += s.MS.Loss
		ms.Optimizer += s.MS.Optimizer
		ms.Quantize += s.MS.Quantize
		ms.Total += s.MS.Total
	}
	if ms.Total <= 0 {
		return nil
	}
	rows := []PhaseRow{
		{Name: "teacher: forward", Seconds: ms.Teacher / 1e3},
		{Name: "student: forward and backward", Seconds: ms.Student / 1e3},
		{Name: "head and loss", Seconds: ms.Loss / 1e3},
		{Name: "optimiser", Seconds: ms.Optimizer / 1e3},
		{Name: "data", Seconds: ms.Data / 1e3},
		{Name: "rest of the steps", Seconds: max(0, ms.Total-ms.Data-ms.Teacher-ms.Student-ms.Loss-ms.Optimizer-ms.Quantize) / 1e3},
	}
	if ms.Quantize > 0 {
		rows = slices.Insert(rows, 4, PhaseRow{Name: "blocks of the weights", Seconds: ms.Quantize / 1e3})
	}
	all := ms.Total / 1e3
	if whole := wholeTime(r, out); whole > all {
		rows = append(rows, PhaseRow{Name: "loading, evaluation, checkpoints, writing", Seconds: whole - all})
		all = whole
	}
	for i := range rows {
		rows[i].Percent = 100 * rows[i].Seconds / all
	}
	return rows
}

// memory holds the plan against what the device has given out.
func memory(r *runlog.Record) []MemoryRow {
	var plan struct {
		Memory map[string]int64 `json:"memory"`
	}
	var record struct {
		Peak map[string]int64 `json:"peak"`
	}
	if e := of(r, "decision", "plan"); e != nil {
		decode(e.Detail, &plan)
	}
	if e := of(r, "record", "device memory"); e != nil {
		decode(e.Detail, &record)
	}
	if plan.Memory == nil && record.Peak == nil {
		return nil
	}
	planned := func(name string) int64 { return valueOr(plan.Memory, name) }
	var rows []MemoryRow
	var measured int64 = -1
	for _, name := range []string{"teacher", "student", "gradients", "optimizer", "activations", "logits", "batch", "scratch"} {
		row := MemoryRow{name, planned(name), valueOr(record.Peak, name)}
		if record.Peak != nil {
			row.Measured = max(row.Measured, 0)
			measured = max(measured, 0) + row.Measured
		}
		rows = append(rows, row)
	}
	rows = append(rows, MemoryRow{"total", planned("total"), measured})
	if available := planned("available"); available > 0 {
		rows = append(rows, MemoryRow{"available", available, -1})
	}
	return rows
}

func valueOr(m map[string]int64, name string) int64 {
	if v, ok := m[name]; ok {
		return v
	}
	return -1
}

// events are the decisions, warnings, stops and resumptions, without what the other parts of the report show.
// What an attempt decided as one before it is told once.
func events(r *runlog.Record) (rows []EventRow) {
	said := map[string]bool{}
	for _, e := range r.Events {
		if e.Kind == "evaluation" || e.Kind == "record" || e.Kind == "checkpoint" || e.Kind == runlog.Attempt && e.Name == "1" {
			continue
		}
		row := EventRow{e.Time, e.Kind, e.Name, text(e.Detail), e.Reason, sentence(e)}
		if again := e.Name + "\n" + row.Sentence; e.Kind == "decision" && e.Name != "resume" {
			if said[again] {
				continue
			}
			said[again] = true
		}
		rows = append(rows, row)
	}
	if row, ok := control(r); ok {
		rows = append(rows, row)
	}
	return rows
}

// warnings are what a reader should know before the numbers.
func warnings(r *runlog.Record) (all []string) {
	if r.Damaged > 0 {
		all = append(all, fmt.Sprintf("%d lines of the run's records cannot be read; they are left out.", r.Damaged))
	}
	refused, diverging := 0, 0 // of the steps that count: a resumed run has the events of those it did again, too
	for _, s := range r.Steps {
		if !s.Finite {
			refused++
		} else if s.Diverged {
			diverging++
		}
	}
	if refused > 0 {
		all = append(all, refusedSteps(refused, "not finite")+".")
	}
	if diverging > 0 {
		all = append(all, refusedSteps(diverging, "far above those before")+"; the events below name what was seen.")
	}
	for _, e := range r.Events {
		if e.Kind == "warning" && (e.Name == runlog.OwnText || e.Name == runlog.EditedText) {
			all = append(all, e.Reason+".")
		}
	}
	return all
}

// refusedSteps says how many steps had such a loss.
func refusedSteps(n int, loss string) string {
	if n == 1 {
		return "1 step had a loss " + loss + "; it left the weights as they were"
	}
	return fmt.Sprintf("%d steps had a loss %s; they left the weights as they were", n, loss)
}

// count prints an integer with thousands separated.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// bytesText prints a size in binary units.
func bytesText(n int64) string {
	switch {
	case n < 0:
		return "–"
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// duration prints seconds for people.
func duration(seconds float64) string {
	if math.IsNaN(seconds) || math.Abs(seconds) > 1e9 {
		return "–"
	}
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
