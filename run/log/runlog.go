// Package runlog holds the records of a run and the directory they live in.
//
// A run is a directory that explains itself: manifest.json says what was asked, with the origin of each value, and on
// what; steps.jsonl holds every step; events.jsonl every decision with its reason; receipt.json, written last, the
// outcome. Status is derived from these and from the lock, never stored.
//
// Numbers in records come from the code that used them. A run directory is its user's alone: files have mode 0600,
// directories 0700.
package runlog

import (
	"encoding/json"
	"math"
	"time"
)

// Value is a resolved setting and where it came from: "flag", "env NAME", "config FILE:LINE" or "default".
type Value struct {
	Value  any    `json:"value"`
	Origin string `json:"origin"`
}

// Input identifies a file or data set that was read.
type Input struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256,omitempty"`
	Of     string `json:"sha256_of,omitempty"` // what the hash covers
	Bytes  int64  `json:"bytes,omitempty"`
	Detail string `json:"detail,omitempty"`
	Config string `json:"config_sha256,omitempty"` // of a model: of its configuration, every field
}

// ManifestSchema is what the manifest of a run says of its form. Other programs, and shards of tokens, have a manifest.json
// as well.
const ManifestSchema = "apr.manifest/1"

// Manifest says what a run was asked to do, on what.
type Manifest struct {
	Schema  string           `json:"schema"` // ManifestSchema
	RunID   string           `json:"run_id"`
	Command []string         `json:"command"`
	Config  map[string]Value `json:"config"`
	Inputs  map[string]Input `json:"inputs"`
	Kinship *Kinship         `json:"kinship,omitempty"` // of teacher and student; absent for a new student
	// Conventions are what teacher and student do differently with the ids that they share; absent: nothing.
	Conventions []Convention   `json:"conventions,omitempty"`
	Warnings    []string       `json:"warnings,omitempty"` // what was tolerated in the models' files
	Version     map[string]any `json:"version"`
	Device      map[string]any `json:"device"`
	// Environment are the variables that the program, its runtime and the driver read, as far as they are set; of secrets,
	// that they are.
	Environment map[string]string `json:"environment,omitempty"`
	// Folder is the working directory, which relative paths in Config start from; absent: an earlier version's.
	Folder  string    `json:"working_directory,omitempty"`
	Started time.Time `json:"started"`

	// TemplateTime is what the chat template's strftime_now reads, in all legs and resumptions; absent if it reads no time.
	TemplateTime *time.Time `json:"template_time,omitempty"`
}

// Convention is a setting of tokenizers in which teacher and student differ.
type Convention struct {
	Name    string `json:"name"` // chat_template, bos_token, eos_token, add_bos_token, add_eos_token
	Teacher string `json:"teacher"`
	Student string `json:"student"`
	Used    string `json:"used"` // whose the run uses: "student", or the flag that sets it
}

// ConventionsDiffer is the name of the event of a run whose models differ so.
const ConventionsDiffer = "teacher and student have other conventions"

// Milliseconds are the durations of a step's phases.
type Milliseconds struct {
	Data      float64 `json:"data"`
	Teacher   float64 `json:"teacher"`
	Student   float64 `json:"student"` // forward and backward
	Loss      float64 `json:"loss"`    // head and loss, both ways
	Optimizer float64 `json:"optimizer"`
	Quantize  float64 `json:"quantize,omitempty"` // blocks of the weights, of a student that is trained in them
	Total     float64 `json:"total"`
}

// Step is one line of steps.jsonl. CE and KL are the means whose gradient was computed: KL is the divergence descended,
// at the temperature, before α·T². They are null for a step that was not finite.
type Step struct {
	Leg      string  `json:"leg"` // "student" or "control"
	Step     int     `json:"step"`
	LR       float64 `json:"lr"`
	Loss     Number  `json:"loss"`
	CE       Number  `json:"ce"`
	KL       Number  `json:"kl"`
	SoftCE   *Number `json:"soft_ce,omitempty"` // instead of KL where the teacher's entropy is not known: Σ −p·ln Q at the temperature
	GradNorm Number  `json:"grad_norm"`
	// Hidden is the error of hidden states, summed over pairs of layers, and Attention the divergence of attention maps, its mean over
	// pairs, both before their weights and there if they are compared. Shares are the parts of Loss that its terms are, by name.
	Hidden    *Number           `json:"hidden,omitempty"`
	Attention *Number           `json:"attention,omitempty"`
	Shares    map[string]Number `json:"shares,omitempty"`
	// Taught is the share of Targets at which a teacher with another tokenizer teaches; the divergence of others is 0.
	Taught          *Number      `json:"taught,omitempty"`
	Clipped         bool         `json:"clipped"`
	Finite          bool         `json:"finite"`
	Diverged        bool         `json:"diverged"` // finite, and far above the losses before
	Targets         int          `json:"targets"`
	Tokens          int          `json:"tokens"`
	TokensPerSecond Number       `json:"tokens_per_second"`
	MS              Milliseconds `json:"ms"`
	MemoryBytes     int64        `json:"memory"`
	OnPolicy        *OnPolicy    `json:"on_policy,omitempty"` // of rows that the student wrote
	// Since the step before: processors that this process kept busy, and what NVML last said of the GPU. Absent: not known.
	CPUs       float64  `json:"cpus,omitempty"`
	GPUPercent *int     `json:"gpu_percent,omitempty"`
	GPUWatts   *float64 `json:"gpu_watts,omitempty"`
}

// The names of warnings of a run that ended because of what its student wrote itself.
const (
	OwnTextGrows     = "the student's text grows longer and does not end"
	OwnTextRepeats   = "the student's text repeats itself"
	OwnTextCollapses = "the student's text has collapsed"
)

// OnPolicy is what the student wrote for a step, by the weights before it.
type OnPolicy struct {
	Rows   int     `json:"rows"`
	Tokens int     `json:"tokens"` // drawn, with the ids that ended texts
	Length float64 `json:"length"` // the mean of texts, in tokens
	Ended  float64 `json:"ended"`  // the part of texts that ended by themselves
	// Entropy is the mean of −ln q over the tokens, an estimate of the student's entropy in nats; Distinct is the part
	// of pairs of neighbouring tokens within a text that are the first of their kind in it: 1 for texts that repeat
	// nothing.
	Entropy  Number `json:"entropy"`
	Distinct Number `json:"distinct_2"`
	// Of |ln q at training − ln q when it was drawn| over the tokens: the mean, the 99.9th percentile and the most.
	Off     Number  `json:"dlnp_mean"`
	Off999  Number  `json:"dlnp_p999"`
	OffMost Number  `json:"dlnp_max"`
	MS      float64 `json:"ms"` // that writing took, beside the step's
	// Of --on-policy-lag 1: the updates of the weights between writing and this step, and of q at training / q when it was
	// drawn, the importance ratio, the mean and the most over the tokens.
	Lag       *int    `json:"lag,omitempty"`
	Ratio     *Number `json:"importance_mean,omitempty"`
	RatioMost *Number `json:"importance_max,omitempty"`
}

// Refused reports whether the step was not applied: the weights are those before it.
func (s Step) Refused() bool { return !s.Finite || s.Diverged }

// Event is one line of events.jsonl: a decision with its reason, or a warning.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // Attempt, "decision", "warning", "evaluation", "checkpoint", "record", "stop"
	Name   string    `json:"name"`
	Detail any       `json:"detail,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Receipt is the outcome of a run.
type Receipt struct {
	Schema   string            `json:"schema"` // "apr.receipt/1"
	RunID    string            `json:"run_id"`
	Status   string            `json:"status"` // "completed", "stopped" or "failed"
	Reason   string            `json:"reason,omitempty"`
	By       string            `json:"by,omitempty"` // user@host
	Tokens   int64             `json:"tokens"`       // that the student was trained on, counted or not
	Targets  int64             `json:"targets"`      // of them, positions that taught
	Finished time.Time         `json:"finished"`
	Result   any               `json:"result,omitempty"`
	Outputs  map[string]string `json:"outputs"` // path in the run directory → SHA-256
	// Records are the hashes of the other records when the receipt was written: see HashRecords. Absent: an earlier version's.
	Records map[string]string `json:"records,omitempty"`
}

// Number is a float64 that JSON can hold: NaN and infinities become null.
type Number float64

// MarshalJSON writes null for what JSON has no number for.
func (n Number) MarshalJSON() ([]byte, error) {
	if f := float64(n); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return json.Marshal(f)
	}
	return []byte("null"), nil
}
