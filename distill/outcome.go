package distill

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	runlog "apr/run/log"
)

// Outcome is what a run came to.
type Outcome struct {
	RunID          string  `json:"run_id"`
	RunDir         string  `json:"run_dir"`
	Status         string  `json:"status"`
	StoppedBy      string  `json:"stopped_by,omitempty"`
	ResumedFrom    string  `json:"resumed_from,omitempty"`
	InitialLoss    float64 `json:"initial_loss"`
	FinalLoss      float64 `json:"final_loss"`
	BestLoss       float64 `json:"best_loss"`
	CE             float64 `json:"ce"`
	KL             float64 `json:"kl"`
	StepsCompleted int     `json:"steps_completed"`
	TokensSeen     int64   `json:"tokens_seen"`
	TargetsSeen    int64   `json:"targets_seen"`
	TokensPerSec   float64 `json:"tokens_per_second"` // TokensSeen over InSteps
	InSteps        float64 `json:"seconds_in_steps"`  // of the student's leg: its steps that were applied
	// Seconds is the time of all attempts, each from the loading of the teacher on. What an attempt did after the
	// checkpoint that the next one continued from is lost, and so is its time, as its steps are.
	Seconds        float64 `json:"duration_seconds"`
	FirstStep      float64 `json:"seconds_to_first_step"` // of the first attempt
	Checkpoints    int     `json:"checkpoints"`           // written by all attempts
	CheckpointTime float64 `json:"checkpoint_seconds"`    // that training waited for them
	DevicePeak     int64   `json:"device_peak_bytes"`     // of the last attempt
	HeldOut
	Exported string            `json:"exported,omitempty"`
	Outputs  map[string]string `json:"outputs"` // path in the run directory → SHA-256
}

// takeOver continues from a checkpoint of a leg: o becomes the checkpoint's progress, with times and checkpoints as the
// records that the run kept have them. It returns the seconds of the attempts before.
func (o *Outcome) takeOver(leg string, progress Outcome, steps []runlog.Step, events []runlog.Event) (before float64) {
	student := runlog.Sum(steps, LegStudent)
	for _, s := range steps {
		if leg == LegControl || s.Leg == LegStudent {
			before += s.MS.Total / 1e3
		}
	}
	before = max(before, progress.Seconds) // versions that kept no time have steps at least
	if leg != LegStudent {
		return before
	}
	dir, id := o.RunDir, o.RunID
	*o = progress
	o.RunDir, o.RunID, o.StoppedBy, o.InSteps = dir, id, "", student.Seconds
	o.Checkpoints, o.CheckpointTime = 0, 0
	for _, e := range events {
		if d, ok := e.Detail.(map[string]any); ok && e.Kind == "checkpoint" {
			took, _ := d["seconds"].(float64)
			o.Checkpoints++
			o.CheckpointTime += took
		}
	}
	return before
}

// Evaluation returns the line of that name, or nil.
func (o *Outcome) Evaluation(name string) *Evaluation {
	for i := range o.Evaluations {
		if o.Evaluations[i].Name == name {
			return &o.Evaluations[i]
		}
	}
	return nil
}

// runID names a run after its directory and the time.
func runID(output string) string {
	base := strings.TrimSuffix(filepath.Base(output), "/")
	return base + "-" + time.Now().UTC().Format("20060102T150405")
}

// who names the user and the machine of this process, as far as the system knows them.
func who() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
