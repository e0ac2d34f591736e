package runs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	runlog "apr/run/log"
)

// The names that runs give their parts.
const (
	studentLeg = "student"
	distilled  = "distilled student"
)

// Difference is a value in which runs differ, one for each run; null where a run has none.
type Difference struct {
	Key    string `json:"key"`
	Values []any  `json:"values"`
}

// variables are settings that only the environment gives.
var variables = map[string]string{"max_steps": "$APR_DISTILL_MAX_STEPS", "managed_memory": "$MANAGED_MEMORY"}

// settingOf is the setting that only this variable gives; empty: there is none.
func settingOf(variable string) string {
	for setting, name := range variables {
		if name == "$"+variable {
			return setting
		}
	}
	return ""
}

// Name is what a person calls the value: a setting by its flag.
func (d Difference) Name() string {
	kind, name, _ := strings.Cut(d.Key, ".")
	switch kind {
	case "config":
		return cmp.Or(variables[name], "--"+strings.ReplaceAll(name, "_", "-"))
	case "input":
		return "content of " + strings.ReplaceAll(name, "_", " ")
	case "environment":
		return "$" + name
	}
	return kind + ": " + strings.ReplaceAll(name, "_", " ")
}

// Typed returns a value of a run as a person would type it; – where the run has none.
func (d Difference) Typed(run int) string {
	text := typed(d.Values[run])
	if strings.HasPrefix(d.Key, "input.") && len(text) == 64 && strings.Trim(text, "0123456789abcdef") == "" {
		return text[:12] + "…" // a SHA-256
	}
	if strings.HasPrefix(d.Key, "config.") && text == "-1" {
		return "by rule" // a default that nobody can give: the run has chosen
	}
	return text
}

func typed(v any) string {
	switch v := v.(type) {
	case nil:
		return "–"
	case bool:
		if v {
			return "on"
		}
		return "off"
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, typed(x))
		}
		return cmp.Or(strings.Join(parts, ", "), "–")
	}
	return cmp.Or(fmt.Sprint(v), "–")
}

// Comparison is what several runs differ in and what they came to.
type Comparison struct {
	Runs        []string                    `json:"runs"`
	Differences []Difference                `json:"differences"`
	Metrics     map[string][]*runlog.Number `json:"metrics"`  // one number for each run; null where there is none
	HeldOut     []string                    `json:"held_out"` // for each run, see HeldOut: scores are comparable where it is equal
}

// Compare compares runs: settings, inputs, versions and devices that differ, and the metrics of each.
func Compare(records []*runlog.Record) Comparison {
	c := Comparison{Metrics: map[string][]*runlog.Number{}, Differences: []Difference{}}
	all := make([]map[string]any, len(records))
	keys := map[string]bool{}
	for i, r := range records {
		c.Runs, c.HeldOut = append(c.Runs, r.ID()), append(c.HeldOut, HeldOut(r))
		all[i] = values(r.Manifest)
		for k := range all[i] {
			keys[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		d := Difference{Key: k}
		same := true
		for _, m := range all {
			d.Values = append(d.Values, m[k])
			same = same && asText(m[k]) == asText(all[0][k])
		}
		if !same {
			c.Differences = append(c.Differences, d)
		}
	}
	for i, r := range records {
		for name, v := range Metrics(r) {
			if c.Metrics[name] == nil {
				c.Metrics[name] = make([]*runlog.Number, len(records))
			}
			c.Metrics[name][i] = finite(v)
		}
	}
	return c
}

// ofCall are settings of a call, or that say where a run lies: they are no difference between runs.
var ofCall = []string{"output", "resume", "force", "runs_dir", "plan", "print_config"}

// values are what a manifest says, as one level of keys. Where a run lies and when it began is no difference.
func values(m *runlog.Manifest) map[string]any {
	out := map[string]any{}
	for k, v := range m.Config {
		if !slices.Contains(ofCall, k) {
			out["config."+k] = v.Value
		}
	}
	for k, v := range m.Inputs {
		if v.SHA256 != "" {
			out["input."+k] = v.SHA256
		} else {
			out["input."+k] = v.Path + " " + v.Detail
		}
	}
	for k, v := range m.Version {
		if k != "modules" { // a library is part of the binary, which the version names
			out["version."+k] = v
		}
	}
	for k, v := range m.Device {
		out["device."+k] = v
	}
	for k, v := range m.Environment {
		if _, told := out["config."+settingOf(k)]; !told {
			out["environment."+k] = v
		}
	}
	return out
}

// decode reads a value that was decoded without a type.
func decode(from, into any) bool {
	b, err := json.Marshal(from)
	return err == nil && json.Unmarshal(b, into) == nil
}

func asText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// score is a line of the held-out evaluation.
type score struct {
	Name         string        `json:"name"`
	NatsPerToken runlog.Number `json:"nats_per_token"`
	KL           runlog.Number `json:"kl"`
	Top1         runlog.Number `json:"top1_agreement"`
}

// evaluations are the lines of the run's last evaluation.
func evaluations(r *runlog.Record) []score {
	var rows []score
	for i := len(r.Events) - 1; i >= 0; i-- {
		if e := r.Events[i]; e.Kind == "evaluation" && e.Name == "held-out" && decode(e.Detail, &rows) {
			return rows
		}
	}
	return nil
}

func evaluation(r *runlog.Record, name string) *score {
	for _, s := range evaluations(r) {
		if s.Name == name {
			return &s
		}
	}
	return nil
}

// Metrics are the numbers that a run came to: those of its last steps by leg, the means of its times, and its scores on
// held-out text.
func Metrics(r *runlog.Record) map[string]runlog.Number {
	m := map[string]runlog.Number{}
	legs := map[string]bool{}
	for _, s := range r.Steps {
		prefix := legPrefix(s.Leg)
		legs[s.Leg] = true
		for name, v := range map[string]runlog.Number{"loss": s.Loss, "ce": s.CE, "kl": s.KL, "grad_norm": s.GradNorm, "lr": runlog.Number(s.LR)} {
			m[prefix+name] = v
		}
		m["memory_bytes"] = max(m["memory_bytes"], runlog.Number(s.MemoryBytes))
	}
	for leg := range legs {
		prefix, t := legPrefix(leg), runlog.Sum(r.Steps, leg)
		m[prefix+"steps"], m[prefix+"tokens"] = runlog.Number(t.Steps), runlog.Number(t.Tokens)
		m[prefix+"seconds_in_steps"], m[prefix+"tokens_per_second"] = runlog.Number(t.Seconds), runlog.Number(t.TokensPerSecond())
	}
	scored := map[string]runlog.Number{}
	for _, s := range evaluations(r) {
		name := strings.ReplaceAll(s.Name, " ", "_")
		m["val_nats."+name], m["val_kl."+name], m["val_top1."+name] = s.NatsPerToken, s.KL, s.Top1
		scored[s.Name] = s.NatsPerToken
	}
	control, ok := scored["control student"]
	if d, both := scored[distilled]; ok && both {
		m["margin_over_control"] = control - d
	}
	return m
}

// legPrefix distinguishes the metrics of the control from those of the student.
func legPrefix(leg string) string {
	if leg == studentLeg {
		return ""
	}
	return leg + "."
}
