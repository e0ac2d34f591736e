package distill

import (
	"errors"
	"math"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/optim"
	"apr/run/watch"
	"apr/teacher"
)

// Config is a distillation run as resolved: every value has its final form.
type Config struct {
	Teacher       string   // model
	Ensemble      Ensemble // of several teachers
	Guide         Guide    // by hidden states and attention maps
	Align         string   // AlignSame, AlignAuto, AlignProject; empty: AlignSame
	FromCache     string   // a teacher's cache that is read instead of Teacher, which then is only compared with it; empty: none
	CachePin      string   // SHA-256 that the manifest of FromCache has to have, and its shards with it; empty: any
	Remote        *Remote  // brings the teacher's rows, whose addresses FromCache has; nil: nobody
	TeacherLogits string   // LogitsAuto, LogitsLive or LogitsCache; empty: live
	LogitsJob     CacheJob // what LogitsCache keeps
	Student       string   // model to start from; or
	StudentConfig string   // config.json of a new student
	AllowKeys     []string // of a config.json, that are accepted unread

	Expect map[string]string // hashes of inputs as Expected names them; another one is refused

	Data          []string // documents
	Dataset       string   // or token shards
	TextField     string
	MessagesField string
	ChatTemplate  string // auto, none, chatml
	AssistantOnly bool
	ForTalks      []string // options that were asked for and only have a meaning for conversations: Data without any is refused
	ForRecords    []string // the same for records with fields
	Packing       bool
	DocumentMask  bool // restart attention and positions at each document of a row
	Shuffle       bool
	EvalData      []string
	ValFraction   float64       // of the documents, where there is no EvalData; or HoldEnough
	TokenCache    *corpus.Cache // of Data and EvalData; nil: they are encoded

	Settings []string // files that this configuration was read from

	Quantize *Quantize // nil: the student is trained as it is

	Output string // run directory
	Export string // further path for the student, by extension; empty: none
	Force  bool
	Resume string // ResumeAuto or a checkpoint of Output to continue; empty: a new run

	TeacherBackend teacher.Backend // empty: auto
	TeacherCache   string          // auto, off (blocks stay), bf16 (expanded): what auto may choose from on a GPU
	TeacherFP8     bool            // the teacher's products in 8-bit floats
	HostExperts    bool            // the teacher's experts stay in page-locked host memory
	Probe          bool            // time the ways of computing the teacher that fit
	// OpenDevice opens another device like the run's, for measuring beforehand; nil: nothing is measured.
	OpenDevice func() (device.Device, error)

	Loss      device.LossSpec
	OnPolicy  OnPolicy // rows that the student writes itself
	Epochs    int
	Steps     int // 0: from Epochs
	MaxSteps  int // stop after this many steps, while the schedule keeps Steps; 0: no cap
	BatchSize int
	GradAccum int
	SeqLen    int

	LR              float64
	WarmupSteps     int // −1: from WarmupRatio
	WarmupRatio     float64
	Schedule        optim.Kind
	MinLRRatio      float64
	AdamW           device.AdamW
	MaxGradNorm     float64
	MaxLossRatio    float64 // refuse steps whose loss exceeds this × the median of those before; 0: refuse none
	RouterBalance   float64 // factor of the load-balance loss of the student's experts; 0: none
	Seed            uint64
	ChunkRows       int               // 0: the planner's choice
	Recompute       []model.Recompute // what the planner may choose from; empty: anything
	AllowSameModel  bool
	AllowOddWeights bool // warn of weights that no trained model has, and go on
	AllowChanged    bool
	Ranks           Group
	Control         bool // also train an identical student on the same tokens without the teacher
	ControlAuto     bool // without Control: train it where it costs at most ControlMost

	LoRA               *LoRA // train adapters beside frozen weights; nil: all weights
	NoTeacher          bool  // Teacher is Student, for there is none: nothing is learned from it
	Samples            int   // held-out prompts that the models continue at the end
	EvalEvery          int   // steps between evaluations on the way; 0: none; or EvalByCost
	CheckpointEvery    int   // steps; 0: off
	CheckpointInterval Duration
	KeepCheckpoints    int
	Watch              *watch.Watchdog // told of every sign of progress; nil: nobody
	// GPU tells what the card does, as a percentage and in watts, as far as that is known; nil: there is none.
	GPU func() (percent *int, watts *float64)
	// Peak is the rate of matrix products that the device does not exceed, in operations a second; 0 or nil: not known.
	Peak  func() float64
	Build string // identity of the program
	// Options are the settings that decide bits by value, by name: a resumed run must have the same. What other settings
	// lead to is compared in any case.
	Options map[string]any
	Writer  string // program and version, for the files that are written
}

// Rows returns the sequences of one optimiser step.
func (c Config) Rows() int { return c.BatchSize * c.GradAccum }

// schedule returns the learning-rate schedule over k steps.
func (c Config) schedule(k int) optim.Schedule {
	warmup := c.WarmupSteps
	if warmup < 0 {
		warmup = int(math.Ceil(c.WarmupRatio * float64(k)))
	}
	return optim.Schedule{Kind: c.Schedule, Peak: c.LR, Warmup: min(warmup, k), Steps: k, MinRatio: c.MinLRRatio}
}

// Validate refuses combinations that no single option can be blamed for.
func (c Config) Validate() error {
	switch {
	case c.Teacher == "" && c.FromCache == "":
		return fault.New(fault.Usage, "no teacher given").WithHint("apr distill TEACHER --student MODEL -d DATA")
	case (c.Student == "") == (c.StudentConfig == ""):
		return fault.New(fault.Usage, "exactly one of --student and --student-config is needed")
	case (len(c.Data) == 0) == (c.Dataset == ""):
		return fault.New(fault.Usage, "exactly one of --data and --dataset is needed")
	case c.Dataset != "" && !c.Packing:
		return fault.New(fault.Usage, "--no-packing needs documents: token shards are packed already")
	case c.Loss.Temperature <= 0:
		return fault.New(fault.Usage, "--temperature %g is not positive", c.Loss.Temperature)
	}
	return errors.Join(c.LoRA.validate(c), c.validateEnsemble(), c.validateGuide(), c.validateMaps(),
		c.validateTogether(), c.validateCached(), c.Ranks.Check(c.Rows()), c.validateTeachers(),
		c.validateOnPolicy())
}
