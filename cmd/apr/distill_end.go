package main

import (
	"fmt"
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

// halfWidth is half an interval, – if there is none.
func halfWidth(interval [2]runlog.Number) string { return number4((interval[1] - interval[0]) / 2) }

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

// scoreTable prints the scores in 80 columns.
func (r *distillResult) scoreTable(p *cli.Page) {
	var rows [][]string
	for _, e := range r.Evaluations {
		bits := "–"
		if e.BitsPerByte > 0 {
			bits = fmt.Sprintf("%.4f", e.BitsPerByte)
		}
		rows = append(rows, []string{e.Name, fmt.Sprintf("%.4f", e.NatsPerToken), halfWidth(e.Interval), perplexityText(runlog.Number(e.Perplexity)), bits,
			fmt.Sprintf("%.2f %%", 100*e.Top1), fmt.Sprintf("%.4f", e.KL)})
	}
	for _, c := range r.Canaries {
		rows = append(rows, []string{"canary: " + c.Name, number4(c.Nats), "", perplexityText(c.Perplexity), "", "", ""})
	}
	p.Table([]string{"held-out text", ">nats/token", ">± 95 %", ">perplexity", ">bits/byte", ">as teacher", ">KL"}, rows)
	p.Printf("\n")
}

// Text prints what came out: the verdict, the scores, and what to do next.
func (r *distillResult) Text(p *cli.Page) {
	if len(r.Evaluations) > 0 {
		if r.verdict != nil {
			printVerdict(p, *r.verdict)
		}
		r.scoreTable(p)
	}
	pairs := []string{
		"steps", fmt.Sprintf("%s (%s tokens at %s tok/s), loss %.4f → %.4f", cli.Count(int64(r.StepsCompleted)), cli.Count(r.TokensSeen), cli.Count(int64(r.TokensPerSec)), r.InitialLoss, r.FinalLoss),
		"time", time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond).String() + r.checkpoints(),
		"memory", r.memory(),
	}
	model := filepath.Join(r.RunDir, "student.apr")
	if len(r.Outputs) > 0 {
		pairs = append(pairs, "student", model+", "+filepath.Join(r.RunDir, "student")+string(filepath.Separator))
	}
	if r.verdict != nil {
		pairs = append(pairs, "report", filepath.Join(r.RunDir, "report.html"))
	}
	if len(r.Outputs) > 0 {
		pairs = append(pairs, "next", "apr run "+quoted(model)+" \"Once upon a time\"",
			"", "apr export "+quoted(model)+" -o student.gguf --quantize q4_k_m")
	}
	p.Pairs(pairs...)
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
