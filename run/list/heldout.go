package runs

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	runlog "apr/run/log"
)

// HeldOut is the text that a run is judged by. Scores of runs can be compared where the identity is the same.
type HeldOut struct {
	ID   string `json:"id"`   // of the text, its tokens, its targets and the length of its windows
	Name string `json:"name"` // for people
}

// HeldOutOf returns what a run is judged by; nil: nothing is held out, or it is not known.
func HeldOutOf(r *runlog.Record) *HeldOut {
	m := cmp.Or(r.InForce, r.Manifest)
	if m == nil {
		return nil
	}
	setting := func(name string) string { return asText(m.Config[name].Value) }
	text, ok := m.Inputs["eval_data"]
	name, part := base(text.Path), ""
	if !ok {
		text, ok = m.Inputs["data"]
		part = setting("val_fraction")
		if !ok || part == "0" || part == "null" {
			return nil
		}
		name = "part of " + base(text.Path)
	}
	if text.SHA256 == "" {
		return nil
	}
	sum := sha256.New()
	for _, s := range []string{text.SHA256, part, m.Inputs["tokenizer"].SHA256, m.Inputs["tokenizer_config"].SHA256, setting("seq_len"),
		setting("document_mask"), setting("assistant_only"), setting("chat_template"), setting("text_field"), setting("messages_field")} {
		fmt.Fprintf(sum, "%d %s\n", len(s), s)
	}
	if n := setting("seq_len"); n != "null" {
		name += " in windows of " + n
	}
	return &HeldOut{fmt.Sprintf("%x", sum.Sum(nil))[:16], name}
}

// base is the last part of a list of paths.
func base(paths string) string {
	first, _, more := strings.Cut(paths, ", ")
	if more {
		return filepath.Base(first) + ", …"
	}
	return filepath.Base(first)
}

// curvePoints is how many points the small curve of a run has at most.
const curvePoints = 48

// curve is the loss of the student's leg in few points, each a mean of its neighbours.
func curve(steps []runlog.Step) (points []runlog.Number) {
	var all []runlog.Number
	for _, s := range steps {
		if s.Leg == studentLeg && s.Loss.Finite() {
			all = append(all, s.Loss)
		}
	}
	n := min(curvePoints, len(all))
	for i := range n {
		part := all[i*len(all)/n : (i+1)*len(all)/n]
		var sum runlog.Number
		for _, v := range part {
			sum += v
		}
		// Four digits are more than such a curve shows.
		points = append(points, runlog.Number(math.Round(float64(sum)/float64(len(part))*1e4)/1e4))
	}
	return points
}

// planned is how many steps the student's leg is to have, 0 if the run does not say.
func planned(r *runlog.Record) int {
	for i := len(r.Events) - 1; i >= 0; i-- {
		d, _ := r.Events[i].Detail.(map[string]any)
		if steps, ok := d["steps"].(float64); ok && r.Events[i].Kind == "record" && r.Events[i].Name == "leg" && d["leg"] == studentLeg {
			return int(steps)
		}
	}
	return 0
}
