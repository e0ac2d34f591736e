package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"apr/adapter"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/launcher"
)

// distillOptions are the merged options of apr distill, apr plan and apr dispatch.
type distillOptions struct {
	Teacher, Student, StudentConfig string
	Teachers, Routes                []string // beside Teacher; SOURCE=MODEL
	TeacherWeights, LayerMap        []string
	Ensemble                        string
	HiddenWeight, AttentionWeight   float64
	Data                            []string
	Dataset                         string
	TextField, MessagesField        string
	DataCache                       string // auto, off or a folder
	Output                          string
	Force                           bool

	Alpha, Temperature, DivergenceBeta float64
	Divergence, Strategy, Align        string
	QuantizeAware                      string // a scheme; empty: none
	QuantizeSearchEvery                int

	Epochs, Steps, MaxSteps                                   int // Steps, MaxSteps 0: not given
	BatchSize, GradAccum, SeqLen                              int
	LearningRate, WarmupRatio, MinLRRatio                     float64
	WarmupSteps                                               int // counts only when given
	LRSchedule                                                string
	Beta1, Beta2, AdamEps, WeightDecay                        float64
	MaxGradNorm                                               float64
	MaxLossRatio, RouterBalance                               float64
	DType, Backend, GPUs                                      string
	Device                                                    int
	Rank, WorldSize, TeacherRanks                             int // Rank -1, WorldSize 0: not given
	TeacherSplit                                              bool
	Rendezvous, Deterministic, Elastic                        string
	RendezvousTimeout                                         time.Duration
	ChunkRows                                                 int
	Recompute                                                 string
	TeacherBackend, TeacherCache, TeacherGEMM, TeacherExperts string
	ManagedMemory                                             string // "", auto, 0 or 1

	NoShuffle            bool
	Seed                 int64
	Packing              bool
	DocumentMask         bool
	ChatTemplate         string
	AssistantOnly        bool // its default depends on the data: see Settings.Given
	EvalData             []string
	ValFraction          float64
	EvalEvery, LogEvery  int
	Samples              int
	CheckpointEvery      int // steps; 0 = off
	CheckpointInterval   time.Duration
	KeepCheckpoints      int
	Resume               string // "": no; newest, or a path
	AllowChanged         bool
	Expect               []string // NAME=SHA256
	AllowSameModel       bool
	AllowOddWeights      bool
	LoRA                 bool
	LoRARank             int
	LoRAAlpha            float64
	LoRADropout          float64
	LoRATargets          []string
	LoRAMerge            bool
	Adapter              string // to begin with
	Control              string
	Probe                bool
	StallTimeout         time.Duration // 0: max(60 s, 20 × median step)
	Supervise, KernelLog bool
	Stage                string
	Cache, CacheKind     string
	TeacherLogits        string
	TokenFile, TLSCA     string
	Draws                int
	CacheEntropy         bool
	Shard, ShardSize     string // I/N; of a shard
	ShardCount           int
	Texts                writingOptions
	Policy               policyOptions
	Plan                 bool
	RunsDir              string
}

// distillNested is aprender's nested form of a configuration.
var distillNested = map[string][]cli.Nested{
	"teacher.model_id":                       {{Option: "teacher"}},
	"student.model_id":                       {{Option: "student"}},
	"student.lora.rank":                      {{Option: "lora-rank"}, {Option: "lora", Value: "true"}},
	"student.lora.alpha":                     {{Option: "lora-alpha"}, {Option: "lora", Value: "true"}},
	"distillation.temperature":               {{Option: "temperature"}},
	"distillation.alpha":                     {{Option: "alpha"}},
	"distillation.progressive.layer_mapping": {{Option: "layer-map"}, {Option: "strategy", Value: "progressive"}},
	"distillation.progressive.hidden_weight": {{Option: "hidden-weight"}, {Option: "strategy", Value: "progressive"}},
	"distillation.attention_transfer.weight": {{Option: "attention-weight"}},
	"distillation.ensemble.teachers":         {{Option: "teachers"}, {Option: "strategy", Value: "ensemble"}},
	"distillation.ensemble.weights":          {{Option: "teacher-weights"}, {Option: "strategy", Value: "ensemble"}},
	"training.epochs":                        {{Option: "epochs"}},
	"training.batch_size":                    {{Option: "batch-size"}},
	"training.learning_rate":                 {{Option: "learning-rate"}},
	"training.weight_decay":                  {{Option: "weight-decay"}},
	"training.max_grad_norm":                 {{Option: "max-grad-norm"}},
	"training.seed":                          {{Option: "seed"}},
	"dataset.path":                           {{Option: "data"}},
	"dataset.max_seq_length":                 {{Option: "seq-len"}},
	"synthetic_data.max_tokens":              {{Option: "max-tokens"}},
	"synthetic_data.temperature":             {{Option: "sampling-temperature"}},
	"synthetic_data.top_p":                   {{Option: "top-p"}},
	"synthetic_data.target_tokens":           {{Option: "target-tokens"}},
	"synthetic_data.samples_per_prompt":      {{Option: "samples-per-prompt"}},
	"synthetic_data.min_completion_tokens":   {{Option: "min-completion-tokens"}},
	"synthetic_data.max_prompt_chars":        {{Option: "max-prompt-chars"}},
	"output.dir":                             {{Option: "output"}},
	"output.log_steps":                       {{Option: "log-every"}},
	"output.save_steps":                      {{Option: "checkpoint-every"}},
	"output.eval_steps":                      {{Option: "eval-every"}},
}

// table is the option table, group by group.
func (o *distillOptions) table() []cli.Option {
	var t []cli.Option
	for _, part := range []struct {
		group string
		table []cli.Option
	}{
		{groupModels, o.sourceTable()}, {groupData, o.dataTable()}, {groupLoss, o.lossTable()}, {groupGuides, o.guideTable()}, {groupTraining, o.trainingTable()},
		{groupTeacher, o.teacherTable()}, {groupCache, o.cacheTable()}, {groupTexts, o.textTable()}, {groupMachine, o.machineTable()}, {groupRecords, o.recordTable()}, {groupLoRA, o.loraTable()},
		{groupPolicy, o.policyTable()},
		{groupTraining, o.quantizeTable()},
	} {
		for i := range part.table {
			part.table[i].Group = part.group
			part.table[i].Bits = distillBits[part.table[i].Name]
			part.table[i].Replaces = rivals[part.table[i].Name]
		}
		t = append(t, part.table...)
	}
	return known(t, distillForeign, distillFirst...)
}

// Groups of the flags in --help.
const (
	groupModels   = "Models and output"
	groupData     = "Data"
	groupLoss     = "Loss"
	groupGuides   = "Several teachers, hidden states, attention maps"
	groupTraining = "Training"
	groupMachine  = "Machine"
	groupTeacher  = "Teacher"
	groupCache    = "A teacher that is run once"
	groupTexts    = "Text written by the teacher"
	groupRecords  = "Evaluation, checkpoints and records"
	groupLoRA     = "LoRA"
)

func (o *distillOptions) sourceTable() []cli.Option {
	return []cli.Option{
		{Name: "teacher", Arg: true, Flag: true, Model: true, Value: cli.String(&o.Teacher, ""), Default: "needed unless --alpha 0", Help: teacherHelp},
		{Name: "student", Model: true, Value: cli.String(&o.Student, ""), Help: "start from this model; this or --student-config is required"},
		{Name: "student-config", Path: true, Value: cli.String(&o.StudentConfig, ""), Help: "make a new student by this config.json: random weights by --seed, the teacher's tokenizer"},
		{Name: "data", Short: "d", Path: true, Value: cli.Strings(&o.Data), Help: "text to train on: .jsonl, .parquet, .csv, .txt, a folder, or hf://datasets/ORG/NAME; repeatable (apr help data)"},
		{Name: "output", Short: "o", Path: true, Value: cli.String(&o.Output, ""), Default: "runs/ID", Help: "run directory, or a .apr, .safetensors or .gguf file to export the student to"},
		{Name: "force", Value: cli.Bool(&o.Force, false), Help: "rename an existing non-empty output to .bak-TIME and go on"},
	}
}

func (o *distillOptions) lossTable() []cli.Option {
	return []cli.Option{
		{Name: "alpha", Value: cli.Float(&o.Alpha, 0.5).In(0, 1), Help: "weight of the KL term; cross-entropy has 1-alpha"},
		{Name: "temperature", Value: cli.Float(&o.Temperature, 1).In(0.01, 100), Help: "temperature of both distributions of the KL term"},
		{Name: "divergence", Value: cli.Enum(&o.Divergence, "forward-kl", "forward-kl", "reverse-kl", "jsd", "tvd", "skew-forward", "skew-reverse"), Help: "divergence between teacher and student"},
		{Name: "divergence-beta", Value: cli.Float(&o.DivergenceBeta, 0.5).In(0, 1), Help: "beta of jsd, lambda of the skew divergences"},
		{Name: "align", Value: cli.Enum(&o.Align, "same", "same", "auto", "project", "chunk"),
			Help: "whose tokenizers may differ: same = none, project = the teacher's, whose probabilities are moved to the " +
				"student's ids, auto = project if they do, chunk = likelihoods of equal spans"},
	}
}

func (o *distillOptions) trainingTable() []cli.Option {
	return []cli.Option{
		{Name: "epochs", Value: cli.Int(&o.Epochs, 1).AtLeast(1), Help: "passes over the data"},
		{Name: "steps", Value: cli.Int(&o.Steps, 0).AtLeast(1), Default: "from --epochs", Help: "optimiser steps; overrides --epochs"},
		{Name: "max-steps", EnvOnly: true, Env: "APR_DISTILL_MAX_STEPS", Value: cli.Int(&o.MaxSteps, 0).AtLeast(1), Help: "stop early; the schedule keeps its length"},
		{Name: "batch-size", Value: cli.Int(&o.BatchSize, 16).AtLeast(1), Help: "rows of a batch; --grad-accum batches make a step"},
		{Name: "grad-accum", Value: cli.Int(&o.GradAccum, 1).AtLeast(1), Help: "batches per optimiser step"},
		{Name: "seq-len", Value: cli.Int(&o.SeqLen, 512).AtLeast(8), Help: "tokens per row, from 8 to the models' max_position_embeddings"},
		{Name: "learning-rate", Aliases: []string{"lr"}, Value: cli.Float(&o.LearningRate, 3e-4).Above(0), Default: "3e-4; 2e-4 with --lora", Help: "peak learning rate"},
		{Name: "warmup-steps", Value: cli.Int(&o.WarmupSteps, 0).AtLeast(0), Default: "from --warmup-ratio", Help: "steps of linear warm-up"},
		{Name: "warmup-ratio", Value: cli.Float(&o.WarmupRatio, 0.03).In(0, 1), Help: "warm-up as a fraction of all steps, rounded up"},
		{Name: "lr-schedule", Value: cli.Enum(&o.LRSchedule, "cosine", "cosine", "linear", "constant"), Help: "decay of the learning rate after the warm-up"},
		{Name: "min-lr-ratio", Value: cli.Float(&o.MinLRRatio, 0.1).In(0, 1), Help: "final learning rate as a fraction of the peak"},
		{Name: "beta1", Value: cli.Float(&o.Beta1, 0.9).In(0, 0.99999999), Help: "AdamW decay rate of the first moment"},
		{Name: "beta2", Value: cli.Float(&o.Beta2, 0.95).In(0, 0.99999999), Help: "AdamW decay rate of the second moment"},
		{Name: "adam-eps", Value: cli.Float(&o.AdamEps, 1e-8).Above(0), Help: "AdamW epsilon"},
		{Name: "weight-decay", Value: cli.Float(&o.WeightDecay, 0.1).AtLeast(0), Help: "decoupled weight decay, on tensors of two or more dimensions only"},
		{Name: "max-grad-norm", Value: cli.Float(&o.MaxGradNorm, 1).AtLeast(0), Help: "clip the global gradient norm to this; 0 = off"},
		{Name: "max-loss-ratio", Value: cli.Float(&o.MaxLossRatio, 3).AtLeast(1).Or(0), Help: "refuse steps whose loss exceeds this × the median of the last 100 and the first loss + 1 (three in a row: exit 21); 0 = off"},
		{Name: "router-balance", Value: cli.Float(&o.RouterBalance, 0).AtLeast(0), Help: "factor of the load-balance loss of a student with experts that starts from random weights; 0 = off"},
		{Name: "seed", Value: cli.Int64(&o.Seed, 42).AtLeast(0), Help: "seed of data order, dropout and initialisation"},
	}
}

// chunkRowsDefault is what --chunk-rows 0 means.
const chunkRowsDefault = "0 = GPU: the largest of 1024, 512, 256 that fits; CPU: 512"

func (o *distillOptions) machineTable() []cli.Option {
	return []cli.Option{
		{Name: "dtype", Value: cli.Enum(&o.DType, "auto", "auto", "bf16", "f32", "tf32"), Help: "arithmetic: auto is bf16 on CUDA, f32 on CPU"},
		{Name: "backend", Value: backendValue(&o.Backend).
			Refuse("fixture", "there is no simulated training: use auto, cpu, cuda or vulkan"),
			Help: "where the student trains: auto takes a GPU if there is one, vulkan:NAME an adapter by its name; alias wgpu"},
		{Name: "device", FromEnv: launcher.LocalRank, Value: cli.Int(&o.Device, 0).AtLeast(0), Default: "0, or LOCAL_RANK of torchrun, srun or mpirun", Help: "index of the GPU"},
		{Name: "gpus", Value: cli.Checked(&o.GPUs, "1", countOrAll),
			Help: "ranks to start on as many GPUs of this machine, from --device on, or all; not under torchrun and the like"},
		{Name: "world-size", Env: "APR_DISTILL_WORLD_SIZE", Value: cli.Int(&o.WorldSize, 0).AtLeast(1),
			Default: "one process",
			Help:    "ranks that share the rows of each step; without --rank they are started here, on GPUs or the CPU"},
		{Name: "rank", Env: "APR_DISTILL_RANK", Value: cli.Int(&o.Rank, -1).AtLeast(0), Default: "none: see --world-size",
			Help: "number of this process among --world-size ranks that were started elsewhere"},
		{Name: "rendezvous", Env: "APR_DISTILL_RENDEZVOUS", Value: cli.String(&o.Rendezvous, ""),
			Help: "where the ranks meet: HOST:PORT of rank 0 (with one APR_RANK_SECRET), or file://DIR, a shared folder"},
		{Name: "rendezvous-timeout", Value: cli.Duration(&o.RendezvousTimeout, 5*time.Minute),
			Help: "give up with exit 10 if ranks have not met after this time, and name the missing"},
		{Name: "deterministic", Optional: "run", Value: cli.Enum(&o.Deterministic, "run", "run", "world"),
			Help: "same bits: run, of every run with as many ranks; world, of 1, 2, 4 or 8 ranks, in more memory"},
		{Name: "elastic", Value: cli.String(&o.Elastic, ""),
			Help: "MIN:MAX: let --resume have MIN to MAX ranks; another number than before rounds otherwise, and is recorded"},
		{Name: "teacher-ranks", Value: cli.Int(&o.TeacherRanks, 0).AtLeast(0),
			Help: "ranks that only teach: of N ranks the last K; the others share the rows and hold the teacher's head only"},
		{Name: "teacher-split", Value: cli.Bool(&o.TeacherSplit, false),
			Help: "divide the teacher's layers among --teacher-ranks, for a teacher that none of them holds whole"},
		{Name: "chunk-rows", Value: cli.Int(&o.ChunkRows, 0).In(256, 4096).Or(0), Default: chunkRowsDefault, Help: "rows of logits computed at a time, 256 to 4096; changes only the order of float32 sums"},
		{Name: "recompute", Value: cli.Enum(&o.Recompute, "auto", "auto", "none", "norms", "blocks"), Help: "activation checkpointing: what the backward pass recomputes; auto takes the least that fits; results do not change"},
		{Name: "managed-memory", EnvOnly: true, Env: "MANAGED_MEMORY", Value: cli.Enum(&o.ManagedMemory, "auto", "auto", "0", "1"), Help: "1 managed, 0 device, auto by device class"},
		{Name: "stall-timeout", Value: cli.Duration(&o.StallTimeout, 0), Default: "300s before the first step, then max(60s, 20 × median step)", Help: "end the run with exit 22 after this time without progress; 0 = the default"},
		{Name: "supervise", Value: cli.Bool(&o.Supervise, false), Help: "run as a child process that is restarted after a crash, at most 3 times without a new checkpoint"},
		{Name: "kernel-log", Value: cli.Bool(&o.KernelLog, false), Help: "log each kernel and GEMM plan as it is loaded"},
	}
}

func (o *distillOptions) teacherTable() []cli.Option {
	return []cli.Option{
		{Name: "teacher-backend", Env: "APR_DISTILL_TEACHER_BACKEND",
			Value: cli.Enum(&o.TeacherBackend, "auto", "auto", "cublas", "q4k", "stream", "cpu").
				Alias("cudatrainer", "cublas").Alias("realizar-q4k", "q4k"),
			Help: "how a GPU computes the teacher: cublas expands its matrices once, q4k keeps quantised blocks, stream " +
				"fetches layers from page-locked host memory, auto times the first two and streams where neither " +
				"fits; aliases cudatrainer, realizar-q4k"},
		{Name: "teacher-cache", Value: cli.Enum(&o.TeacherCache, "auto", "auto", "off", "bf16"), Help: "expand the teacher's quantised blocks: bf16 (GPU only), off, or auto (on a GPU where it is faster, on a CPU if the teacher is small)"},
		{Name: "teacher-gemm", Value: cli.Enum(&o.TeacherGEMM, "bf16", "bf16", "fp8", "tf32", "f32"), Help: "arithmetic of the teacher's matrix products: the student's, or fp8 (compute capability 9.0 only)"},
		{Name: "teacher-experts", Value: cli.Enum(&o.TeacherExperts, "device", "device", "host"), Help: "where a GPU finds the teacher's experts: in its memory, or in page-locked host memory, fetched for each product"},
		{Name: "probe", Value: cli.OnOff(&o.Probe, true), Help: "time the teacher backends that fit; off chooses by rule"},
	}
}

func (o *distillOptions) dataTable() []cli.Option {
	fields := fieldOptions(&o.TextField, &o.MessagesField)
	return []cli.Option{
		{Name: "dataset", Path: true, Value: cli.String(&o.Dataset, ""), Help: "folder of token shards, as apr tokenize encode-corpus writes them"},
		fields[0], fields[1], cacheOption(&o.DataCache),
		{Name: "no-shuffle", Value: cli.Bool(&o.NoShuffle, false), Help: "take rows in data order instead of shuffling by --seed"},
		{Name: "packing", Negatable: true, Value: cli.Bool(&o.Packing, true), Help: "fill rows across documents; off gives each document a padded row of its own"},
		{Name: "document-mask", Value: cli.Bool(&o.DocumentMask, false), Help: "restart attention and positions at each document of a row"},
		{Name: "chat-template", Path: true, Keywords: []string{"auto", "none", "chatml"}, Value: cli.String(&o.ChatTemplate, "auto"), Help: "chat template: auto (the model's own), chatml, none, or a file with a Jinja template"},
		{Name: "assistant-only", Negatable: true, Value: cli.Bool(&o.AssistantOnly, true), Default: "on for conversations", Help: "train on the assistant's turns only"},
		{Name: "eval-data", Path: true, Value: cli.Strings(&o.EvalData), Help: "held-out text to score, as --data; repeatable"},
		{Name: "val-fraction", Value: cli.Float(&o.ValFraction, distill.HoldEnough).In(0, 0.5), Default: "0.01; of little text enough for scores, at most a fifth (apr help data)",
			Help: "hold out this fraction of the documents, chosen by hash; not with --eval-data"},
	}
}

func (o *distillOptions) recordTable() []cli.Option {
	return []cli.Option{
		{Name: "eval-every", Value: cli.Int(&o.EvalEvery, distill.EvalByCost).AtLeast(0), Default: "3 to 9 evaluations, by their cost, and one every 200 steps", Help: "steps between evaluations; 0 = at the end only"},
		{Name: "samples", Value: cli.Int(&o.Samples, 3).In(0, 16), Help: "held-out prompts that teacher, student and control continue for the report; 0 = off"},
		{Name: "log-every", Env: "APR_DISTILL_LOG_EVERY", Value: cli.Int(&o.LogEvery, 0).AtLeast(1), Default: "a line every 10 s", Help: "steps between progress lines where no terminal shows them"},
		{Name: "checkpoint-every", Env: "APR_DISTILL_CHECKPOINT_EVERY", Value: cli.Int(&o.CheckpointEvery, 1000).AtLeast(0), Help: "steps between checkpoints; 0 = off"},
		{Name: "checkpoint-interval", Value: cli.Duration(&o.CheckpointInterval, 10*time.Minute), Help: "time between checkpoints; this or --checkpoint-every, whichever comes first"},
		{Name: "keep-checkpoints", Value: cli.Int(&o.KeepCheckpoints, 2).AtLeast(1), Help: "checkpoints to keep"},
		{Name: "resume", Path: true, Optional: "newest", Follows: namesRun, Complete: runPaths, Value: cli.String(&o.Resume, ""), Help: "go on with the run --output, or the run (its directory or name) or checkpoint PATH; what no flag says is as the run's manifest has it"},
		{Name: "allow-changed", Value: cli.Bool(&o.AllowChanged, false), Help: "resume although configuration, data or machine differ; the run records it"},
		{Name: "allow-same-model", Env: "APR_DISTILL_ALLOW_DEGENERATE_KD", Value: cli.Bool(&o.AllowSameModel, false), Help: "allow a student whose weights equal the teacher's, exactly or up to rounding; the run records it"},
		{Name: oddWeights, Value: cli.Bool(&o.AllowOddWeights, false), Help: oddWeightsHelp},
		{Name: "control", Value: cli.Enum(&o.Control, "auto", "auto", "none", "ce"),
			Help: "train an identical student without the teacher, to compare: ce, none, or auto " +
				"(where it takes at most 30 % of the training, or is short)"},
		{Name: "expect", Value: cli.Strings(&o.Expect),
			Help: "NAME=SHA256: refuse (exit 5) to train if the input NAME of the run's manifest has another hash, or " +
				"NAME.config another configuration; repeatable; apr dispatch says it to the job"},
		{Name: "plan", Value: cli.Bool(&o.Plan, false), Help: "print the plan and stop, as apr plan does"},
		{Name: "runs-dir", EnvOnly: true, Path: true, Env: "APR_RUNS_DIR", Value: cli.String(&o.RunsDir, "runs"), Help: "where runs without --output go"},
	}
}

func (o *distillOptions) loraTable() []cli.Option {
	return []cli.Option{
		{Name: "lora", Value: cli.Bool(&o.LoRA, false), Help: "train low-rank adapters on the frozen --student, which may be quantised; writes adapter/ as PEFT does"},
		{Name: "lora-rank", Value: cli.Int(&o.LoRARank, 32).AtLeast(1), Help: "rank of the adapters"},
		{Name: "lora-alpha", Value: cli.Float(&o.LoRAAlpha, 64).Above(0), Help: "scale of the adapters is this over the rank"},
		{Name: "lora-dropout", Value: cli.Float(&o.LoRADropout, 0).In(0, 0.99), Help: "drop this share of the values that adapters read, in training"},
		{Name: "lora-targets", Value: cli.Words(&o.LoRATargets, []string{"q", "v", "o", "gate", "up", "down"}, adapter.Targets()...), Help: "matrices with adapters: of q, k, v, o, gate, up, down, head"},
		{Name: "adapter", Path: true, Value: cli.String(&o.Adapter, ""), Help: "go on with this adapter of --student: a folder of PEFT, a run, or a .gguf file; its ranks, scales and matrices count"},
		{Name: "lora-merge", Value: cli.OnOff(&o.LoRAMerge, true), Help: "write student.apr and student/ with the adapters merged; off writes adapter/ alone"},
	}
}

// trainedSchemes are the schemes in which a student can be trained.
var trainedSchemes = []string{"q4_k_m", "q5_k_m", "q4k", "q5k", "q6k", "q8_0", "q4_0", "q3_k_m", "q3k", "q2_k", "mxfp4"}

func (o *distillOptions) quantizeTable() []cli.Option {
	return []cli.Option{
		{Name: "quantize-aware", Value: cli.Enum(&o.QuantizeAware, "", trainedSchemes...).Alias("q4_k", "q4k").Alias("q5_k", "q5k").Alias("q6_k", "q6k").Alias("q3_k", "q3k").Alias("q2k", "q2_k").AnyCase(),
			Help: "train the student as this quantisation will hold it, and write that; without --student it is the teacher, alpha is 1 and learning-rate 3e-5 (2 and 3 bits: 1e-4)"},
		{Name: "quantize-search-every", Value: cli.Int(&o.QuantizeSearchEvery, searchEvery).AtLeast(0), Help: "steps between searches for the scales of --quantize-aware; between, weights are rounded under those; 0 = search once"},
	}
}

// searchEvery is the default of --quantize-search-every; docs/journal.md has the measurement.
const searchEvery = 16

// complete completes the options of a call: with what a run that it resumes was asked to do, and with what --lora
// implies, which is another learning rate, and --quantize-aware, which is that the student is the teacher, in
// blocks, and learns from it alone, slowly. What is implied is recorded as what was used, with the flag as its
// origin.
func (o *distillOptions) complete(e *cli.Env, opts []cli.Option) error {
	if err := o.takeEarlier(e, opts); err != nil {
		return err
	}
	if err := o.impliedByPolicy(e, opts); err != nil {
		return err
	}
	return o.implied(e, opts)
}

// loraRate is the peak learning rate of adapters, unless another one is asked for.
const loraRate = "2e-4"

func (o *distillOptions) implied(e *cli.Env, opts []cli.Option) error {
	if o.LoRA {
		if err := e.Imply(opts, "lora", "learning-rate", loraRate); err != nil {
			return err
		}
	}
	if o.QuantizeAware == "" || o.Teacher == "" || o.Student != "" || o.StudentConfig != "" {
		return nil
	}
	for _, v := range [][2]string{{"student", o.Teacher}, {"alpha", "1"}, {"learning-rate", o.quantizeRate()}} {
		if err := e.Imply(opts, "quantize-aware", v[0], v[1]); err != nil {
			return err
		}
	}
	return nil
}

// quantizeRate is the peak learning rate of a student that is the teacher in blocks. Four bits and more hardly have to move: 1e-4 is worse
// there, and 2e-4 diverges. Two and three bits do; docs/journal.md has the figures.
func (o *distillOptions) quantizeRate() string {
	switch o.QuantizeAware {
	case "q2_k", "q3k", "q3_k_m":
		return "1e-4"
	}
	return "3e-5"
}

// countOrAll accepts a positive integer or "all".
func countOrAll(s string) error {
	if n, err := strconv.Atoi(s); s != "all" && (err != nil || n < 1) {
		return fmt.Errorf("%q is neither a positive integer nor all", s)
	}
	return nil
}

// isRun reports whether path is a run or a checkpoint that can be resumed.
func isRun(path string) bool {
	_, _, err := distill.ResolveResume(path, "")
	return err == nil
}

// namesRun reports whether a word after --resume is a run or a checkpoint, by its path or its name.
func namesRun(word string) bool {
	run, _ := runHere(word, cmp.Or(os.Getenv("APR_RUNS_DIR"), "runs")) // of several that begin so, none
	return isRun(cmp.Or(run, word))
}

// teacherHelp is the help of the argument.
const teacherHelp = "model that teaches; the argument TEACHER says the same"

// check judges the options that concern each other.
func (o *distillOptions) check(s cli.Settings) error {
	switch {
	case o.Teacher == "" && o.Alpha != 0 && o.Cache == "" || o.Teacher == "" && o.precomputes():
		return fault.New(fault.Usage, "missing argument TEACHER: the model that teaches").
			WithHint("apr distill TEACHER --student MODEL -d data.jsonl; to train on text alone, --alpha 0; apr distill --help has examples")
	case o.Resume == "newest" && isRun(o.Teacher):
		return fault.In(fault.Usage, o.Teacher, "is a run directory, not a teacher").
			WithHint("apr distill --resume %s goes on with it", o.Teacher)
	case o.Teacher == "" && o.Cache == "" && o.StudentConfig != "":
		return fault.New(fault.Usage, "missing argument TEACHER: with --alpha 0 a new student (--student-config) "+
			"needs it for its tokenizer; it teaches nothing").
			WithHint("name any model whose tokenizer the student shall have: apr distill MODEL --student-config %s "+
				"--alpha 0 …; it is also what the student's score is compared with", quoted(o.StudentConfig))
	case o.Student == "" && o.StudentConfig == "" && !o.precomputes():
		return fault.New(fault.Usage, "missing --student MODEL or --student-config FILE")
	case o.Student != "" && o.StudentConfig != "":
		return fault.New(fault.Usage, "--student and --student-config exclude each other")
	case len(o.Data) == 0 && o.Dataset == "":
		return fault.New(fault.Usage, "missing --data PATH or --dataset DIR")
	case len(o.Data) > 0 && o.Dataset != "":
		return fault.New(fault.Usage, "--data and --dataset exclude each other")
	case s.Given("warmup-steps") && s.Given("warmup-ratio") && !s.Over("warmup-steps", "warmup-ratio") && !s.Over("warmup-ratio", "warmup-steps"):
		return fault.New(fault.Usage, "--warmup-steps and --warmup-ratio exclude each other")
	case s.Given("eval-data") && s.Given("val-fraction"):
		return fault.New(fault.Usage, "--eval-data and --val-fraction exclude each other")
	}
	if err := errors.Join(o.checkGuides(s), o.checkCache(s), o.checkTexts(s), o.checkPolicy(s)); err != nil {
		return err
	}
	return refuseIdle(o.idleOptions(s))
}
