package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	runlog "apr/run/log"
)

// update is what a live page asks for.
type update struct {
	Version  string            `json:"version"`
	Status   string            `json:"status"`
	Sections map[string]string `json:"sections"`
	Data     json.RawMessage   `json:"data"`
}

// Update is the JSON that brings a live page up to date.
func Update(r *runlog.Record, version string) ([]byte, error) {
	p := New(r)
	p.Live = true
	parts := p.Sections()
	if r.Status == runlog.Running { // replacing what does not change would close what somebody has opened
		delete(parts, "samples")
		delete(parts, "origins")
	}
	numbers, err := dataJSON(p, r.Samples)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return json.Marshal(update{version, r.Status, parts, numbers})
}

// gauges are the metrics of a step.
var gauges = []struct {
	name, help string
	of         func(runlog.Step) float64
}{
	{"apr_step", "Index of the leg's last step.", func(s runlog.Step) float64 { return float64(s.Step) }},
	{"apr_loss", "Loss of the last step.", func(s runlog.Step) float64 { return float64(s.Loss) }},
	{"apr_kl", "Divergence from the teacher of the last step, nats per token.", func(s runlog.Step) float64 { return float64(s.KL) }},
	{"apr_ce", "Cross-entropy of the last step, nats per token.", func(s runlog.Step) float64 { return float64(s.CE) }},
	{"apr_grad_norm", "Gradient norm of the last step, before clipping.", func(s runlog.Step) float64 { return float64(s.GradNorm) }},
	{"apr_learning_rate", "Learning rate of the last step.", func(s runlog.Step) float64 { return s.LR }},
	{"apr_tokens_per_second", "Tokens a second of the last step.", func(s runlog.Step) float64 { return float64(s.TokensPerSecond) }},
	{"apr_device_memory_bytes", "Device memory after the last step.", func(s runlog.Step) float64 { return float64(s.MemoryBytes) }},
}

// Metrics renders the last step of each leg of each run in the text format of Prometheus, version 0.0.4.
func Metrics(records []*runlog.Record) string {
	var b strings.Builder
	head := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	for _, g := range gauges {
		head(g.name, "gauge", g.help)
		for _, r := range records {
			for _, leg := range legs(r) {
				fmt.Fprintf(&b, "%s{run=%s,leg=%s} %s\n", g.name, label(r.ID()), label(leg), sample(g.of(lastOf(r, leg))))
			}
		}
	}
	head("apr_tokens_total", "counter", "Tokens that a leg was trained on.")
	for _, r := range records {
		for _, leg := range legs(r) {
			fmt.Fprintf(&b, "apr_tokens_total{run=%s,leg=%s} %d\n", label(r.ID()), label(leg), runlog.Sum(r.Steps, leg).Tokens)
		}
	}
	head("apr_run_status", "gauge", "1 for the state that a run is in.")
	for _, r := range records {
		for _, status := range []string{runlog.Running, runlog.Completed, runlog.Stopped, runlog.Failed} {
			on := 0
			if r.Status == status {
				on = 1
			}
			fmt.Fprintf(&b, "apr_run_status{run=%s,status=%s} %d\n", label(r.ID()), label(status), on)
		}
	}
	return b.String()
}

// lastOf returns the last step of a leg that has one.
func lastOf(r *runlog.Record, leg string) (last runlog.Step) {
	for _, s := range r.Steps {
		if s.Leg == leg {
			last = s
		}
	}
	return last
}

// label quotes the value of a label.
func label(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}

// sample renders a number as Prometheus reads it.
func sample(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "+Inf"
	case math.IsInf(f, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}
