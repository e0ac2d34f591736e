package distill

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"
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
	TokensPerSec   float64 `json:"tokens_per_second"`
	Seconds        float64 `json:"duration_seconds"`
	FirstStep      float64 `json:"seconds_to_first_step"`
	Checkpoints    int     `json:"checkpoints"`        // written by this process
	CheckpointTime float64 `json:"checkpoint_seconds"` // that training waited for them
	DevicePeak     int64   `json:"device_peak_bytes"`
	HeldOut
	Exported string            `json:"exported,omitempty"`
	Outputs  map[string]string `json:"outputs"` // path in the run directory → SHA-256

	trainSeconds float64 // of the student's leg in this process
	trainTokens  int64
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

// who names the user and the machine of this process, as far as the system tells.
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
