package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"apr/internal/cli"
	runlog "apr/run/log"
	"apr/run/report"
)

// verdictJSON is the verdict of a run's report as JSON. Shares are percent of the gap between the untrained student and the teacher.
type verdictJSON struct {
	Tone          string         `json:"tone"` // good, neutral, bad
	Headline      string         `json:"headline"`
	Detail        string         `json:"detail"`
	GapClosed     *float64       `json:"gap_closed_percent"`
	ControlClosed *float64       `json:"control_gap_closed_percent"`
	EqualTime     *equalTimeJSON `json:"equal_time"`
}

// equalTimeJSON compares both students after as much time of training.
type equalTimeJSON struct {
	Seconds   float64 `json:"seconds"`
	Distilled float64 `json:"distilled_nats_per_token"`
	Control   float64 `json:"control_nats_per_token"`
}

// judge takes over the report's verdict on a run that was evaluated.
func (r *distillResult) judge(v *report.Verdict) {
	r.verdict = v
	if v == nil || len(r.Evaluations) == 0 {
		return
	}
	r.Verdict = &verdictJSON{Tone: v.Tone, Headline: v.Headline, Detail: v.Detail}
	if v.Gap != nil {
		r.Verdict.GapClosed, r.Verdict.ControlClosed = &v.Gap.Percent, v.Gap.Control
	}
	if e := v.EqualTime; e != nil {
		r.Verdict.EqualTime = &equalTimeJSON{e.Seconds, e.Distilled, e.Control}
	}
}

// printVerdict prints what a run was worth.
func printVerdict(p *cli.Page, v report.Verdict) {
	style := map[string]func(string) cli.Styled{report.Good: p.Good, report.Bad: p.Bad, report.Neutral: p.Bold}[v.Tone]
	for line := range strings.SplitSeq(cli.Wrap(v.Headline, p.Columns()), "\n") {
		p.Printf("%s\n", style(line))
	}
	if v.Detail != "" {
		p.Printf("%s\n", cli.Wrap(v.Detail, p.Columns()))
	}
	p.Printf("\n")
}

func percent2(n runlog.Number) string {
	if !n.Finite() {
		return "–"
	}
	return fmt.Sprintf("%.2f %%", 100*n)
}

func number4(n runlog.Number) string {
	if !n.Finite() {
		return "–"
	}
	return fmt.Sprintf("%.4f", n)
}

// perplexityText prints a perplexity in at most ten columns.
func perplexityText(n runlog.Number) string {
	switch {
	case !n.Finite():
		return "–"
	case n >= 1e6:
		return fmt.Sprintf("%.1e", n)
	case n >= 1000:
		return cli.Count(int64(n + 0.5))
	}
	return fmt.Sprintf("%.2f", n)
}

// printScores prints the scores on held-out text in 80 columns.
// base says that there was no teacher.
func printScores(p *cli.Page, base bool, scores []report.Score, canaries []report.Canary) {
	var rows [][]string
	scores = report.Shown(base, scores)
	for _, s := range scores {
		bits := "–"
		if s.BitsPerByte > 0 {
			bits = number4(s.BitsPerByte)
		}
		rows = append(rows, []string{s.Name, number4(s.NatsPerToken), number4(s.Interval.Half()), perplexityText(s.Perplexity), bits,
			percent2(s.Top1), number4(s.KL)})
	}
	for _, c := range canaries {
		rows = append(rows, []string{"canary: " + c.Name, number4(c.Nats), "", perplexityText(c.Perplexity), "", "", ""})
	}
	as := ">as teacher"
	if base {
		as = ">as base"
	}
	p.Table([]string{"held-out text", ">nats/token", ">± 95 %", ">perplexity", ">bits/byte", as, ">KL"}, rows)
	p.Printf("\n")
	if note := report.DraftNote(scores); note != "" {
		p.Printf("%s\n\n", cli.Wrap(cli.AsCalled(note), p.Columns()))
	}
}

// scores returns the scores of the models and of the canaries in the types of a report.
func (r *distillResult) scores() (scores []report.Score, canaries []report.Canary) {
	for _, e := range r.Evaluations {
		scores = append(scores, report.Score{Name: e.Name, Targets: e.Targets, NatsPerToken: runlog.Number(e.NatsPerToken), Interval: e.Interval[:],
			Perplexity: e.Perplexity, BitsPerByte: e.BitsPerByte, KL: runlog.Number(e.KL), Top1: runlog.Number(e.Top1),
			Acceptance: e.Acceptance})
	}
	for _, c := range r.Canaries {
		canaries = append(canaries, report.Canary{Name: c.Name, Nats: c.Nats, Perplexity: c.Perplexity})
	}
	return scores, canaries
}

// Text prints what came out: the verdict, the scores, and what to do next.
func (r *distillResult) Text(p *cli.Page) {
	if len(r.Evaluations) > 0 {
		if r.verdict != nil {
			printVerdict(p, *r.verdict)
		}
		scores, canaries := r.scores()
		printScores(p, r.verdict != nil && r.verdict.Base, scores, canaries)
	}
	pairs := []string{
		"steps", fmt.Sprintf("%s (%s tokens at %s tok/s), loss %.4f → %.4f", cli.Count(int64(r.StepsCompleted)), cli.Count(r.TokensSeen), cli.Count(int64(r.TokensPerSec)), r.InitialLoss, r.FinalLoss),
		"time", time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond).String() + r.checkpoints(),
		"memory", r.memory(),
	}
	dir := nearby(r.RunDir)
	model := filepath.Join(dir, "student.apr")
	_, merged := r.Outputs["student.apr"]
	if merged {
		pairs = append(pairs, "student", model+", "+filepath.Join(dir, "student")+string(filepath.Separator))
	}
	folder := filepath.Join(dir, "adapter")
	_, adapted := r.Outputs[filepath.Join("adapter", "adapter_model.safetensors")]
	if adapted {
		pairs = append(pairs, "adapter", folder+string(filepath.Separator))
	}
	if r.Exported != "" && (merged || !adapted) {
		pairs = append(pairs, "output", r.Exported+r.exportedAs())
	} else if r.Exported != "" {
		pairs = append(pairs, "output", r.Exported+" (the adapter alone, f32, for llama.cpp --lora)")
	}
	if page := filepath.Join(dir, "report.html"); r.verdict != nil && fileThere(page) {
		pairs = append(pairs, "report", page)
	}
	switch ext := filepath.Ext(r.Exported); {
	case len(r.Outputs) == 0:
	case !merged && adapted:
		pairs = append(pairs, "next", "apr run "+quoted(r.StudentPath)+" --adapter "+quoted(folder)+r.prompt())
	case ext == ".gguf" && r.trainedIn != "":
		pairs = append(pairs, "next", "apr run "+quoted(r.Exported)+r.prompt())
	case ext == ".gguf":
		pairs = append(pairs, "next", "apr run "+quoted(r.Exported)+r.prompt(),
			"", "apr export "+quoted(model)+" -o student-q4_k_m.gguf --quantize q4_k_m")
	default:
		pairs = append(pairs, "next", "apr run "+quoted(model)+r.prompt(),
			"", "apr export "+quoted(model)+" -o student.gguf"+r.typesOf())
	}
	p.Pairs(pairs...)
}

// OfFiles says that the run directory holds it all.
func (*distillResult) OfFiles() {}

// nearby is a path as people type it: below the working directory without that directory, which a resumed run's record names in full.
func nearby(path string) string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}

// prompt is what apr run is given to try the student: nothing for one that learned from conversations, which then talks.
func (r *distillResult) prompt() string {
	if r.talks {
		return ""
	}
	return ` "` + cmp.Or(r.begins, "Once upon a time") + `"`
}

// exportedAs says what the file of --output holds.
func (r *distillResult) exportedAs() string {
	switch ext := filepath.Ext(r.Exported); {
	case ext == ".gguf" && r.trainedIn != "":
		return " (" + r.trainedIn + ", with tokenizer, for llama.cpp)"
	case ext == ".gguf":
		return " (f32, with tokenizer, for llama.cpp; " + cli.AsCalled("apr export") + " quantises)"
	case ext == ".safetensors":
		return " (weights alone: configuration and tokenizer are in the folder student/)"
	}
	return ""
}

// typesOf is what an export of the student needs to say of its types: nothing if it was trained in some.
func (r *distillResult) typesOf() string {
	if r.trainedIn != "" {
		return ""
	}
	return " --quantize q4_k_m"
}

// quoted is a path as a shell reads it.
func quoted(path string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._-+,:@%=", c)
	}
	if path != "" && strings.IndexFunc(path, func(c rune) bool { return !plain(c) }) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// checkpoints says what checkpoints cost; empty where there was none.
func (r *distillResult) checkpoints() string {
	if r.Checkpoints == 0 || r.Seconds <= 0 {
		return ""
	}
	return fmt.Sprintf(", of it %.2f %% for checkpoints", 100*r.CheckpointTime/r.Seconds)
}

// memory describes the peaks: of the process and, where it is another memory, of tensors on the device.
func (r *distillResult) memory() string {
	if r.Backend != "cuda" {
		return cli.Bytes(r.PeakMemory["host"])
	}
	return fmt.Sprintf("%s host, %s of tensors on the device", cli.Bytes(r.PeakMemory["host"]), cli.Bytes(r.PeakMemory["device"]))
}
