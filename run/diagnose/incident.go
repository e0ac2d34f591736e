package diagnose

import (
	"cmp"
	"encoding/json"
	"path/filepath"

	"apr/internal/readfile"
	runlog "apr/run/log"
)

// Incident is the explanation of a run's state in the fields of an incident report. What the records do not say is Unknown; a
// run that has nothing to explain has None.
type Incident struct {
	Ticket    string `json:"ticket"` // of the dispatch that started the run
	Symptom   string `json:"symptom"`
	FiveWhys  []Why  `json:"five_whys"` // from the symptom to the deepest cause that the records prove, at most five
	RootCause string `json:"root_cause_summary"`
	Fix       string `json:"fix"`
}

// Why is a question, and the answer that the records prove.
type Why struct {
	Why      string     `json:"why"`
	Because  string     `json:"because"`
	Evidence []Evidence `json:"evidence"`
}

// maxWhys is how deep a chain goes.
const maxWhys = 5

// quiet is the incident of a run that has nothing to explain.
func quiet(ticket string) Incident {
	return Incident{Ticket: ticket, Symptom: None, FiveWhys: []Why{}, RootCause: None, Fix: None}
}

// explain makes the incident of the finding i, which brought the run to its state: its symptom, its cause, and those of earlier
// findings of the same rule, which it rests on. The chain ends where the records do.
func (f *Findings) explain(i int) {
	last := f.Findings[i]
	f.Symptom, f.RootCause, f.Fix = cmp.Or(last.Symptom, Unknown), Unknown, cmp.Or(last.Advice, Unknown)
	question := "Why is the run " + f.Status + "?"
	answer := func(because string, evidence []Evidence) {
		if because == "" || because == Unknown || len(f.FiveWhys) == maxWhys {
			return
		}
		for _, w := range f.FiveWhys {
			if w.Because == because {
				return
			}
		}
		f.FiveWhys = append(f.FiveWhys, Why{question, because, evidence})
		question = "Why: " + because + "?"
	}
	for ; i >= 0; i-- {
		x := f.Findings[i]
		if x.ID != last.ID {
			continue
		}
		answer(x.Symptom, x.Evidence)
		if answer(x.Cause, x.Evidence); x.Cause != Unknown {
			f.RootCause = f.FiveWhys[len(f.FiveWhys)-1].Because
		}
		f.Fix = cmp.Or(x.Advice, f.Fix)
	}
}

// ticket is the name under which the run was dispatched, as the record beside it says.
func (r *records) ticket() string {
	var d struct {
		Ticket string `json:"ticket"`
	}
	text, err := readfile.String(filepath.Join(r.dir, runlog.DispatchFile), maxLine)
	if err != nil || json.Unmarshal([]byte(text), &d) != nil {
		return Unknown
	}
	return cmp.Or(d.Ticket, Unknown)
}
