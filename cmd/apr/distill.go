package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"apr/arch"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/optim"
	runlog "apr/run/log"
	"apr/run/report"
	"apr/run/supervise"
	"apr/teacher"
	"apr/teacher/cache"
	"apr/tensor"
)

func distillCommand() *cli.Command {
	o := &distillOptions{}
	return &cli.Command{
		Name: "distill", Short: "Teach a small student model from a big frozen teacher",
		Long: "Trains a student to predict as the teacher does, on your text. Every position of every row teaches:\n" +
			"  loss = (1-alpha)·CE(text) + alpha·T²·KL(teacher ‖ student)\n" +
			"The run directory holds the student (student.apr and student/; with --lora also adapter/), every step, checkpoints, and what was asked.",
		Example: "apr distill examples/gosrc/distill.yaml\n" +
			"apr distill TEACHER --student MODEL -d data.jsonl -o runs/mine\n" +
			"apr distill TEACHER --student base-q4_k_m.gguf --lora -d data.jsonl\n" +
			"apr distill TEACHER --student-config config.json -d src/ --steps 2000 --batch-size 8 --seq-len 256\n" +
			"apr distill TEACHER -d data.jsonl --stage precompute -o CACHE\n" +
			"apr distill --stage train --cache CACHE --student MODEL -d data.jsonl\n" +
			"apr distill TEACHER -d prompts.jsonl --stage generate -o answers.jsonl\n" +
			"apr distill --resume=runs/mine",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference, fault.Unavailable,
			fault.Network, fault.HTTP404, fault.UnsafePath, fault.Stopped, fault.Diverged, fault.Hung, fault.Memory},
		Options: o.table(), Nested: distillNested, Advice: distillAdvice, EnvPrefix: "APR_DISTILL_", ConfigArg: true, Stray: strayOfDistill, PrintConfig: true, Complete: o.complete,
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runDistill(ctx, e, o) },
	}
}

// distillResult is the JSON of apr distill.
type distillResult struct {
	*distill.Outcome
	Backend       string             `json:"backend"`
	TeacherPath   string             `json:"teacher"`
	StudentPath   string             `json:"student"`
	Output        string             `json:"output"`
	Temperature   float64            `json:"temperature"`
	Alpha         float64            `json:"alpha"`
	Epochs        int                `json:"epochs"`
	TeacherDevice string             `json:"teacher_backend"`
	TeacherReason string             `json:"teacher_backend_reason"`
	TeacherGEMM   string             `json:"teacher_gemm"`
	LearningRate  float64            `json:"learning_rate"`
	BatchSize     int                `json:"batch_size"`
	GradAccum     int                `json:"grad_accum"`
	SeqLen        int                `json:"seq_len"`
	Seed          uint64             `json:"seed"`
	WorldSize     int                `json:"world_size"`
	ValNats       *float64           `json:"val_nats_per_token"`
	ValKL         *float64           `json:"val_kl"`
	ValTop1       *float64           `json:"val_top1_agreement"`
	Margin        *float64           `json:"margin_over_control"`
	PeakMemory    map[string]int64   `json:"peak_memory"`
	SHA256        map[string]*string `json:"sha256"`
	Verdict       *verdictJSON       `json:"verdict"` // null: nothing was held out, or the run has not come so far
	trainedIn     string             // the scheme of --quantize-aware; empty: none
	talks         bool               // the student has learned from conversations
	begins        string             // how its text begins; empty: nobody would type it
	verdict       *report.Verdict    // as in the run's report; nil: there is none
}

func runDistill(ctx context.Context, e *cli.Env, o *distillOptions) (cli.Result, error) {
	switch {
	case o.writes():
		return whenAlone(ctx, e, o, runTexts)
	case o.Plan:
		return (&planOptions{distillOptions: o}).run(ctx, e)
	case o.precomputes():
		return whenAlone(ctx, e, o, runPrecompute)
	}
	group, err := o.party(e)
	if err == nil {
		err = group.teach(o.TeacherRanks, o.TeacherSplit)
	}
	if err != nil {
		return nil, err
	}
	if o.Supervise && e.Getenv(supervise.Variable) == "" && e.Getenv(startedVariable) == "" {
		if err := errors.Join(o.check(e.Settings), o.unbuilt(e.Settings)); err != nil {
			return nil, err
		}
		return nil, superviseRun(e)
	}
	guard := newSentry(e, o.StallTimeout)
	defer guard.Close()
	c, err := o.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	if err := group.enter(e, &c); err != nil {
		return nil, err
	}
	defer group.close(guard.Watchdog)
	group.configure(&c, guard.setComm)
	b := o.backend(guard)
	dev, err := b.openForRun(ctx, e, &c)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := errors.Join(o.unbuiltOn(dev, e), group.check(dev)); err != nil {
		return nil, err
	}
	if !group.leads() {
		return nil, trainAlong(ctx, e, c, dev, guard)
	}
	if c.Probe = o.Probe; dev.gpu != nil {
		c.OpenDevice = func() (device.Device, error) { return b.cuda(e) }
	}
	show := newDistillDisplay(e, o.LogEvery)
	defer show.close()
	if dev.gpu != nil {
		defer watchGPU(dev, show, guard, &c)()
	}
	c.Watch, c.Peak = guard.Watchdog, peakRate(ctx, e, dev)
	r, err := distill.Start(ctx, c, dev.Device, show, func(m *runlog.Manifest) { describeRun(m, e, dev) })
	if err != nil {
		return nil, err
	}
	defer r.Close()
	guard.setRunDir(r.Output)
	if err := errors.Join(recordDevice(r, dev), group.record(r)); err != nil {
		return nil, err
	}
	if show.use, err = recordPeak(ctx, e, r, dev, o); err != nil {
		return nil, err
	}
	show.outline(r)
	stopping := announceStop(ctx, e)
	out, err := r.Execute(ctx)
	group.done = err == nil
	guard.lostRank(err)
	stopping()
	err = o.howToGoOn(r.Output, group.world > max(1, group.local), err)
	verdict, err := reportIfHeld(e, r, err)
	show.close()
	res := o.result(c, out, r, dev)
	res.judge(verdict)
	return res, err
}

// enter makes c a rank's of this party, and opens what the ranks meet by once c is known to be valid.
func (p *party) enter(e *cli.Env, c *distill.Config) error {
	c.Ranks = p.config()
	if err := c.Validate(); err != nil {
		return err
	}
	return p.open(e)
}

// whenAlone runs a stage that writes texts or a teacher's cache, unless a launcher has started several processes that
// would write the same ones.
func whenAlone(ctx context.Context, e *cli.Env, o *distillOptions,
	stage func(context.Context, *cli.Env, *distillOptions) (cli.Result, error)) (cli.Result, error) {
	if err := alone(e); err != nil {
		return nil, err
	}
	return stage(ctx, e, o)
}

// watchGPU samples the GPU once a second for the progress line, the records and the watchdog, until stop is called.
func watchGPU(dev *opened, show *distillDisplay, guard *sentry, c *distill.Config) (stop func()) {
	m := dev.gpu.Watch(time.Second)
	show.monitor = m
	c.GPU = func() (*int, *float64) { a := m.Last(); return a.Utilisation, a.Power }
	guard.setDeviceState(func() string { return describeActivity(dev.gpu.Doing(), m.Last()) })
	return m.Close
}

// trainAlong trains as a rank above 0, which shows and writes nothing.
func trainAlong(ctx context.Context, e *cli.Env, c distill.Config, dev *opened, guard *sentry) error {
	c.Watch = guard.Watchdog
	r, err := distill.Start(ctx, c, dev.Device, follower{e}, func(m *runlog.Manifest) { describeRun(m, e, dev) })
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.Execute(ctx)
	return err
}

// resolve turns the options into a configuration whose models are on this machine.
func (o *distillOptions) resolve(ctx context.Context, e *cli.Env) (c distill.Config, err error) {
	if err := errors.Join(o.check(e.Settings), o.unbuilt(e.Settings)); err != nil {
		return c, err
	}
	if c, err = o.config(e.Settings); err != nil {
		return c, err
	}
	if o.Steps > 0 && e.Settings.Given("epochs") {
		e.Explain(fmt.Sprintf("--steps %d counts; --epochs %d beside it has no effect", o.Steps, o.Epochs))
	}
	c.AllowKeys = e.AllowConfigKeys
	if err := o.remote(ctx, e, &c); err != nil {
		return c, err
	}
	err = bringInputs(ctx, e, &c)
	return c, err
}

// bringInputs replaces what c names of a hub, data and models, by files of the cache, downloaded if they are not there.
func bringInputs(ctx context.Context, e *cli.Env, c *distill.Config) (err error) {
	for _, data := range []*[]string{&c.Data, &c.EvalData} {
		if *data, err = dataFiles(ctx, e, *data); err != nil {
			return err
		}
	}
	if c.FromCache != "" && c.Remote == nil {
		_, c.CachePin = cache.Pin(c.FromCache)
		if c.FromCache, err = localCache(ctx, e, c.FromCache); err != nil {
			return err
		}
	}
	models := []*string{&c.Teacher, &c.Student}
	for i := range c.Ensemble.More {
		models = append(models, &c.Ensemble.More[i])
	}
	for i := range c.Ensemble.Routes {
		models = append(models, &c.Ensemble.Routes[i].Model)
	}
	for _, model := range models {
		if *model == "" {
			continue
		}
		if *model, err = source(ctx, e, *model); err != nil {
			return err
		}
	}
	return nil
}

// keepExpanded is how many bytes a CPU teacher may spend on float32 copies of its quantised matrices.
func (o *distillOptions) keepExpanded() int64 {
	if o.TeacherCache == "off" {
		return 0
	}
	return 128 << 20 // small teachers fit whole and train faster; of big ones, the blocks stay
}

// unbuilt refuses what is accepted by the option table and not built yet.
func (o *distillOptions) unbuilt(s cli.Settings) error {
	for _, u := range []struct {
		asked bool
		what  string
	}{
		{o.GPUs != "1" && (o.precomputes() || o.writes()),
			"--gpus " + o.GPUs + " for anything but training; --stage precompute is shared among processes by --shard"},
		{o.WorldSize > 1 && o.precomputes(), "--stage precompute with --world-size: --shard shares it among processes"},
	} {
		if u.asked {
			return fault.New(fault.Unavailable, "not built yet: %s", u.what)
		}
	}
	return nil
}

// unbuiltOn refuses what the device cannot do. What the environment says of GPUs means nothing to a CPU, and is no mistake of the
// command line.
func (o *distillOptions) unbuiltOn(dev *opened, e *cli.Env) error {
	s, onGPU, arithmetic := e.Settings, dev.gpu != nil, "f32"
	for _, name := range []string{"managed-memory", "device"} {
		if from, ok := strings.CutPrefix(s.Origin(name), "env "); ok && !onGPU {
			e.Log.Debug(from + " is for GPUs: the CPU ignores it")
		}
	}
	if onGPU {
		if arithmetic = o.DType; arithmetic == "auto" {
			arithmetic = "bf16"
		}
	}
	for _, u := range []struct {
		asked bool
		what  string
	}{
		{s.Given("teacher-gemm") && o.TeacherGEMM != arithmetic && !(o.TeacherGEMM == "fp8" && arithmetic == "bf16"),
			"--teacher-gemm " + o.TeacherGEMM + ": teacher and student compute in " + arithmetic},
		{dev.Info().Kind != "cpu" && !onGPU && o.WorldSize > 1,
			"--world-size with --backend vulkan: cuda trains with several GPUs, cpu with several processes"},
		{dev.Info().Kind != "cpu" && !onGPU && o.Deterministic == "world", "--deterministic=world with --backend vulkan"},
		{!onGPU && o.TeacherCache == "bf16", "--teacher-cache bf16 on the CPU: use auto or off"},
		{!onGPU && o.TeacherExperts == "host", "--teacher-experts host on the CPU, which reads experts where they are: use device"},
		{!onGPU && o.Device != 0 && !strings.HasPrefix(s.Origin("device"), "env "), "--device on the CPU"},
	} {
		if u.asked {
			return fault.New(fault.Unavailable, "not built: %s", u.what)
		}
	}
	return nil
}

// backend is the device that the options ask for; guard attends it.
func (o *distillOptions) backend(guard *sentry) backend {
	return backend{name: o.Backend, dtype: o.DType, index: o.Device, expand: o.keepExpanded(), kernelLog: o.KernelLog,
		guard: guard}
}

// reportIfHeld writes the report of a run that ended with err, unless its directory was lost, which is an error.
func reportIfHeld(e *cli.Env, r *distill.Run, err error) (*report.Verdict, error) {
	if lost := r.Held(); lost != nil {
		return nil, cmp.Or(err, lost)
	}
	return reportRun(e, r.Output), err
}

// withLoRA is what --lora and its options make of c.
func (o *distillOptions) withLoRA(c *distill.Config) {
	if !o.LoRA {
		return
	}
	c.LoRA = &distill.LoRA{Rank: o.LoRARank, Alpha: o.LoRAAlpha, Dropout: o.LoRADropout, Targets: o.LoRATargets, Merge: o.LoRAMerge}
	if o.Adapter != "" {
		c.LoRA.From = findAdapter(o.Adapter)
	}
}

var divergences = map[string]device.Divergence{
	"forward-kl": device.ForwardKL, "reverse-kl": device.ReverseKL, "jsd": device.JSD, "tvd": device.TVD,
	"skew-forward": device.SkewForward, "skew-reverse": device.SkewReverse,
}

// config turns options into the run's configuration.
func (o *distillOptions) config(s cli.Settings) (distill.Config, error) {
	c := distill.Config{
		Teacher: o.Teacher, Student: o.Student, StudentConfig: o.StudentConfig,
		Data: o.Data, Dataset: o.Dataset, TextField: o.TextField, ChatTemplate: o.ChatTemplate, AssistantOnly: o.AssistantOnly,
		Packing: o.Packing, DocumentMask: o.DocumentMask, Shuffle: !o.NoShuffle, EvalData: o.EvalData, ValFraction: o.ValFraction, Force: o.Force,
		Align: o.Align,
		Loss: device.LossSpec{
			Alpha: o.Alpha, Temperature: o.Temperature, Beta: o.DivergenceBeta, Divergence: divergences[o.Divergence],
		},
		Epochs: o.Epochs, Steps: o.Steps, MaxSteps: o.MaxSteps, BatchSize: o.BatchSize, GradAccum: o.GradAccum, SeqLen: o.SeqLen,
		LR: o.LearningRate, WarmupSteps: -1, WarmupRatio: o.WarmupRatio, Schedule: optim.Kind(o.LRSchedule), MinLRRatio: o.MinLRRatio,
		AdamW:       device.AdamW{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.AdamEps, WeightDecay: o.WeightDecay},
		MaxGradNorm: o.MaxGradNorm, MaxLossRatio: o.MaxLossRatio, RouterBalance: o.RouterBalance, Seed: uint64(o.Seed), ChunkRows: o.ChunkRows, AllowSameModel: o.AllowSameModel, AllowOddWeights: o.AllowOddWeights, AllowChanged: o.AllowChanged,
		Control: o.Control == "ce", ControlAuto: o.Control == "auto", EvalEvery: o.EvalEvery, Samples: o.Samples, CheckpointEvery: o.CheckpointEvery, CheckpointInterval: o.CheckpointInterval,
		KeepCheckpoints: o.KeepCheckpoints, Build: programIdentity(), Writer: "apr/" + version,
		Options:        cli.Deciding((&distillOptions{}).table(), s),
		TeacherBackend: teacher.Backend(o.TeacherBackend), TeacherCache: o.TeacherCache, TeacherFP8: o.TeacherGEMM == "fp8",
		HostExperts: o.TeacherExperts == "host", TeacherLogits: o.TeacherLogits,
		LogitsJob: distill.CacheJob{Kind: o.cacheKind(s), Draws: o.Draws, Entropy: o.CacheEntropy},
	}
	c.OnPolicy = o.onPolicy()
	o.withLoRA(&c)
	if o.remotely() {
		c.Teacher, c.LogitsJob = "", o.askedOf(s)
	}
	if c.FromCache = o.Cache; o.remotely() {
		c.FromCache = o.Teacher
	}
	if c.Teacher == "" && c.FromCache == "" { // --alpha 0: scores are compared with the student's file
		c.Teacher, c.NoTeacher = c.Student, true
	}
	if r, err := model.ParseRecompute(o.Recompute); err == nil { // auto is the planner's choice
		c.Recompute = []model.Recompute{r}
	}
	if o.Strategy == "progressive" {
		c.Guide.Weight = o.HiddenWeight
	}
	if c.Guide.Attention = o.AttentionWeight; c.Guide.Weight != 0 || c.Guide.Attention != 0 {
		c.Guide.Map = o.LayerMap
	}
	var err error
	if c.Ensemble, err = o.ensemble(); err != nil {
		return c, err
	}
	if c.Expect, err = distill.ParseExpected(o.Expect); err != nil {
		return c, err
	}
	if o.QuantizeAware != "" {
		c.Quantize = &distill.Quantize{Scheme: o.QuantizeAware, SearchEvery: o.QuantizeSearchEvery, Types: func(a arch.Config) (map[string]tensor.DType, []string, error) {
			return convert.TrainedTypes(convert.Scheme(o.QuantizeAware), a)
		}}
	}
	if s.Given("warmup-steps") && !s.Over("warmup-ratio", "warmup-steps") {
		c.WarmupSteps = o.WarmupSteps
	}
	c.ForTalks, c.ForRecords = o.forTalks(s), s.Asked("text-field")
	c.MessagesField = readOptions(s, o.TextField, o.MessagesField).MessagesField
	c.TokenCache, c.Settings = tokenCache(o.DataCache), s.Files()
	c.Output = o.Output
	switch ext := filepath.Ext(o.Output); {
	case o.precomputes():
	case ext == ".apr" || ext == ".safetensors" || ext == ".gguf":
		c.Export, c.Output = o.Output, o.newRun()
	case o.Output == "":
		c.Output = o.newRun()
	}
	if o.Resume == "" {
		return c, nil
	}
	return c, o.resume(&c)
}

// newRun names a run directory that nobody named.
func (o *distillOptions) newRun() string {
	return filepath.Join(o.RunsDir, time.Now().UTC().Format("20060102T150405.000"))
}

func (o *distillOptions) resume(c *distill.Config) (err error) {
	resume := o.Resume
	if resume == "newest" {
		if o.Output == "" {
			return fault.New(fault.Usage, "--resume needs --output, the run directory, or --resume PATH")
		}
		resume = distill.ResumeAuto
	}
	c.Output, c.Resume, err = distill.ResolveResume(resume, c.Output)
	return err
}

// describeGPU is what the manifest says of a GPU beyond any device.
func describeGPU(dev *cuda.Device) map[string]any {
	card := dev.Card()
	return map[string]any{
		"index": card.Index, "uuid": card.UUID, "pci": card.PCI, "compute_capability": fmt.Sprintf("%d.%d", card.Major, card.Minor),
		"memory_bytes": card.TotalMemory, "memory_class": dev.Class(), "managed_memory": dev.Managed(), "dtype": dev.Arithmetic(),
		"cuda": dev.CUDA(), "libraries": dev.Libraries(),
	}
}

// recordDevice writes down why this device was taken, and what it has loaded before any weight.
func recordDevice(r *distill.Run, dev *opened) error {
	if err := r.Decision("backend", dev.decision(), dev.reason); err != nil || dev.gpu == nil {
		return err
	}
	reason := "cublasLt serves matrix products"
	if notes := dev.gpu.Notes(); len(notes) > 0 {
		reason = strings.Join(notes, "; ")
	}
	return r.Decision("kernels", dev.gpu.Loaded(), reason)
}

// result turns the outcome into the command's JSON.
func (o *distillOptions) result(c distill.Config, out *distill.Outcome, run *distill.Run, dev *opened) *distillResult {
	in, big := run.Inputs(), run.Teacher()
	r := &distillResult{
		Outcome: out, Backend: dev.Info().Kind, TeacherPath: cmp.Or(c.Teacher, c.FromCache), StudentPath: c.Student + c.StudentConfig, Output: c.Output,
		Temperature: c.Loss.Temperature, Alpha: c.Loss.Alpha, Epochs: c.Epochs, TeacherDevice: big.Backend, TeacherGEMM: big.GEMM,
		TeacherReason: big.Reason, LearningRate: c.LR, BatchSize: c.BatchSize, GradAccum: c.GradAccum,
		SeqLen: c.SeqLen, Seed: c.Seed, WorldSize: c.Ranks.All(),
		PeakMemory: map[string]int64{"host": peakResident(), "device": out.DevicePeak},
		SHA256:     map[string]*string{}, trainedIn: o.QuantizeAware,
		talks: run.Outline().Talks > 0, begins: run.Outline().Begins,
	}
	if c.NoTeacher { // the scores compare with the student's own file
		r.TeacherPath = ""
	}
	for _, key := range []string{"teacher", "student_init", "data"} {
		if sum := in[key].SHA256; sum != "" {
			r.SHA256[key] = &sum
		} else {
			r.SHA256[key] = nil
		}
	}
	if sum, ok := out.Outputs["student.apr"]; ok {
		r.SHA256["output"] = &sum
	}
	if s := out.Evaluation("distilled student"); s != nil {
		r.ValNats = &s.NatsPerToken
		if s.KL.Finite() { // else there was no teacher to compare with
			kl, top1 := float64(s.KL), float64(s.Top1)
			r.ValKL, r.ValTop1 = &kl, &top1
		}
		if control := out.Evaluation("control student"); control != nil {
			margin := control.NatsPerToken - s.NatsPerToken
			r.Margin = &margin
		}
	}
	return r
}
