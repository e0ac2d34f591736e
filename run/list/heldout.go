package runs

import (
	"slices"

	runlog "apr/run/log"
)

// heldOutText is what an evaluation of a run was made on.
type heldOutText struct {
	SHA256 string `json:"sha256"` // of the ids that count, and of the windows they are read in
	Name   string `json:"name"`   // for people
}

// HeldOut identifies the text that a run is scored on, read by a tokenizer in windows of some length: scores of runs can be compared
// where it is equal. It is empty for a run that holds nothing out, and Unrecorded where the run's version did not write it down.
func HeldOut(r *runlog.Record) string {
	if t := heldOut(r); t.SHA256 != "" {
		return t.SHA256
	}
	if len(evaluations(r)) > 0 {
		return Unrecorded
	}
	return ""
}

// HeldOutName is the text's name for people; empty: the run did not write it down.
func HeldOutName(r *runlog.Record) string { return heldOut(r).Name }

// heldOut is the run's last record of the text.
func heldOut(r *runlog.Record) (t heldOutText) {
	for i := len(r.Events) - 1; i >= 0; i-- {
		if e := r.Events[i]; e.Kind == "record" && e.Name == runlog.HeldOutText && decode(e.Detail, &t) {
			return t
		}
	}
	return heldOutText{}
}

// Unrecorded is the held-out text of runs that did not write down which it was.
const Unrecorded = "unrecorded"

// Texts are the held-out texts of several runs, in the order of the runs.
type Texts []string

// TextsOf collects the different ones; runs without scores have none.
func TextsOf(heldOut []string) (all Texts) {
	for _, t := range heldOut {
		if t != "" && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// Name is a short name of a text: A, B, … Z, then the beginning of its identity.
func (t Texts) Name(text string) string {
	i := slices.Index(t, text)
	switch {
	case i >= 0 && i < 26:
		return string(rune('A' + i))
	case len(text) > 8:
		return text[:8]
	}
	return text
}
