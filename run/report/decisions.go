package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	runlog "apr/run/log"
)

// sentence says in words what an event decided or warned of. Its detail is shown beside it, so nothing is lost that no sentence names.
func sentence(e runlog.Event) string {
	switch e.Kind {
	case "decision":
		if s := decided(e); s != "" {
			return s
		}
	case runlog.Attempt:
		return "Attempt " + e.Name + " began: the run was resumed."
	case "stop":
		return "The run was stopped by a " + e.Name + "."
	}
	return full(upper(e.Name) + because(e.Reason))
}

// detailOf is an event's detail as a table; nil if it is none.
func detailOf(e runlog.Event) map[string]any {
	d, _ := plainJSON(e.Detail).(map[string]any)
	return d
}

// plainJSON is a value as its JSON reads.
func plainJSON(v any) (out any) {
	decode(v, &out)
	return out
}

// decided words the decisions that runs take; empty: one that is not known here.
func decided(e runlog.Event) string {
	d := detailOf(e)
	of := func(key string) string { return text(d[key]) }
	number := func(key string) int64 { f, _ := d[key].(float64); return int64(f) }
	switch e.Name {
	case "backend":
		return full("The run computes on the " + device(of("backend")) + because(e.Reason))
	case "peak":
		if f, ok := d["flops"].(float64); ok && f > 0 {
			return full(fmt.Sprintf("Utilisation is relative to a peak of %s (%s)", rate(f), of("source")))
		}
	case "teacher backend":
		s := "The teacher is computed by " + of("backend") + because(of("reason"))
		for _, c := range list(d["candidates"]) {
			if b := text(c["backend"]); b != of("backend") {
				s += "; " + b + ": " + text(c["reason"])
			}
		}
		return full(s)
	case "teacher logits":
		if of("chosen") == "cache" {
			kept := map[string]string{"hidden": "its hidden states", "draws": "draws from it"}[of("kind")]
			return full(fmt.Sprintf("The teacher is computed in the first epoch, and %s of %s are read in the others",
				bytesText(number("bytes")), kept) + because(e.Reason))
		}
		return full("The teacher is computed in every epoch" + because(e.Reason))
	case "plan":
		recompute := "the backward pass computes nothing again"
		if r := of("recompute"); r != "none" && r != "" {
			recompute = "the backward pass computes " + r + " again"
		}
		return full(fmt.Sprintf("A step runs in micro-batches of %s, with logits in chunks of %s, and %s", rows(number("micro_rows")), rows(number("chunk_rows")), recompute) + because(e.Reason))
	case "data cache":
		return cached(d)
	case "teacher weights":
		return full(fmt.Sprintf("The teacher's weights take %s in memory and %s in the file", bytesText(number("device_bytes")), bytesText(number("file_bytes"))) + because(e.Reason))
	case "vocabulary":
		return full(fmt.Sprintf("Teacher and student share %s ids: %s", count(number("effective_vocab")), e.Reason))
	case "control":
		s := "No control is trained"
		if of("on") == "true" {
			s = "A control is trained too, an identical student on the same tokens without the teacher"
		}
		if share, ok := d["share"].(float64); ok && share > 0 && e.Reason == "asked for" {
			return full(fmt.Sprintf("%s: asked for, %.0f %% of the training", s, 100*share))
		}
		return full(s + because(e.Reason))
	case "resume":
		return full(fmt.Sprintf("Training went on from step %s, with %s", count(number("step")), cmp.Or(of("from"), "the newest checkpoint")))
	case "no samples":
		return full("No held-out text is shown" + because(e.Reason))
	}
	return ""
}

// cached says which tokens came from the cache.
func cached(d map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(d)) {
		use, _ := d[name].(map[string]any)
		switch s := text(use["state"]); s {
		case "hit":
			parts = append(parts, "the tokens of "+name+" came from the cache")
		case "written":
			parts = append(parts, "the tokens of "+name+" were encoded and kept in the cache")
		default:
			parts = append(parts, "the tokens of "+name+" were encoded and not kept"+because(text(use["reason"])))
		}
	}
	return full(upper(strings.Join(parts, "; ")))
}

// control says why there is a control, or none, where the run has not written that down itself.
func control(r *runlog.Record) (EventRow, bool) {
	m := cmp.Or(r.InForce, r.Manifest)
	if m == nil || m.Config["control"].Origin == "" || of(r, "decision", "control") != nil {
		return EventRow{}, false
	}
	v := m.Config["control"]
	row := EventRow{Time: m.Started, Kind: "decision", Name: "control", Detail: "--control " + text(v.Value) + " (" + v.Origin + ")",
		Sentence: "No control was asked for: what the teacher was worth is not measured."}
	if text(v.Value) == "ce" {
		row.Sentence = "A control is trained too: an identical student on the same tokens without the teacher shows what the teacher was worth."
	}
	return row, true
}

// device names a kind of device in a sentence.
func device(kind string) string {
	return cmp.Or(map[string]string{"cpu": "CPU", "cuda": "GPU", "vulkan": "Vulkan adapter"}[kind], kind)
}

// upper begins a sentence, full ends it.
func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func full(s string) string {
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

func rows(n int64) string {
	if n == 1 {
		return "1 row"
	}
	return count(n) + " rows"
}

// rate prints operations a second.
func rate(f float64) string {
	if f >= 1e12 {
		return fmt.Sprintf("%.3g TFLOP/s", f/1e12)
	}
	return fmt.Sprintf("%.3g GFLOP/s", f/1e9)
}

// list is a list of tables.
func list(v any) (all []map[string]any) {
	items, _ := v.([]any)
	for _, i := range items {
		if m, ok := i.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}
