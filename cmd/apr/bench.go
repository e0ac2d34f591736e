package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/device"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/plan"
	"apr/tokenizer"
)

// benchOptions are the options of apr bench.
type benchOptions struct {
	allowKeys                      []string // of config.json
	file, kd, prompt, shape        string
	backend, dtype, recompute      string
	warmup, iterations, maxTokens  int
	batchSize, seqLen, promptTotal int
	chunkRows, microRows, peakSize int
	teacherBackend, teacherGEMM    string
	teacherExperts                 string
	worldSize                      int
	group                          *benchParty
	teacherRows                    int     // that go through a layer at a time, as planned; 0: any
	percentiles                    string  // numbers with commas between
	quantize                       string  // scheme of random weights; empty: bfloat16, or what the teacher's backend needs
	memory                         float64 // GiB
	floor                          float64 // seconds
	alpha                          float64
	random, kernelLog, profile     bool
	learns                         distillOptions // how the student trains: those of studentOptions
	collectives                    bool
	communicator, sizes            string
	ranks                          int
}

func benchCommand() *cli.Command {
	o := &benchOptions{}
	return &cli.Command{
		Name: "bench", Short: "Measure generation or a distillation step",
		Long: "Measures greedy generation with FILE. With --kd TEACHER it measures whole optimiser steps on random tokens: FILE is the\n" +
			"student, or a config.json for a student of random weights. With --shape TEACHER:STUDENT it measures steps of published\n" +
			"shapes with random weights, without any file. With --collectives it measures latency and bandwidth of what\n" +
			"ranks exchange, by size and communicator. The shapes: " + publishedShapes(),
		Example: "apr bench student.apr --max-tokens 64\n" +
			"apr bench examples/gosrc/student-config.json --kd examples/gosrc/teacher.apr --batch-size 8 --seq-len 256\n" +
			"apr bench --shape qwen2.5-7b:qwen2.5-0.5b --random-weights --backend cuda --batch-size 8 --seq-len 1024\n" +
			"apr bench --shape qwen2.5-7b:qwen2.5-0.5b --random-weights --lora --lora-rank 16\n" +
			"apr bench student.apr --kd teacher.gguf --quantize-aware q4_k_m\n" +
			"apr bench --collectives --world-size 4",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.Memory, fault.UnsafePath},
		Options: append([]cli.Option{
			{Name: "file", Arg: true, Model: true, Value: cli.String(&o.file, ""), Help: "model, or config.json with --kd"},
			{Name: "kd", Model: true, Value: cli.String(&o.kd, ""), Help: "measure distillation steps with this teacher, instead of generation"},
			{Name: "batch-size", Value: cli.Int(&o.batchSize, 8).AtLeast(1), Help: "rows of a step"},
			{Name: "seq-len", Value: cli.Int(&o.seqLen, 512).AtLeast(1), Help: "positions of a row"},
			{Name: "chunk-rows", Value: cli.Int(&o.chunkRows, 0).In(256, 4096).Or(0), Default: chunkRowsDefault, Help: "rows of logits computed at a time, 256 to 4096"},
			{Name: "alpha", Value: cli.Float(&o.alpha, bench.Loss.Alpha).In(0, 1),
				Help: "weight of the teacher's part of the loss; at 0 it is not asked, and --lora on its own base holds that once"},
			{Name: "warmup", Value: cli.Int(&o.warmup, 3).AtLeast(0), Help: "iterations before the measured ones"},
			{Name: "iterations", Value: cli.Int(&o.iterations, 5).AtLeast(1), Help: "measured iterations"},
			{Name: "max-tokens", Short: "n", Value: cli.Int(&o.maxTokens, 32).AtLeast(2), Help: "tokens to generate"},
			{Name: "prompt", Short: "p", Value: cli.String(&o.prompt, ""), Default: "random ids", Help: "prompt to continue"},
			{Name: "prompt-tokens", Value: cli.Int(&o.promptTotal, 64).AtLeast(1), Help: "length of the random prompt without --prompt"},
			{Name: "percentiles", Value: cli.Checked(&o.percentiles, "50,95,99", checkPercentiles), Help: "percentiles to print, of the times of tokens or steps"},
			{Name: "shape", Value: cli.String(&o.shape, ""), Help: "measure published shapes instead of files: TEACHER:STUDENT for a step, one shape for generation; with --random-weights"},
			{Name: "random-weights", Value: cli.Bool(&o.random, false), Help: "fill the shapes of --shape with random weights, by seed"},
			{Name: "backend", Value: backendValue(&o.backend),
				Help: backendHelp},
			{Name: "dtype", Value: cli.Enum(&o.dtype, "auto", "auto", "bf16", "f32", "tf32"), Help: "arithmetic: auto is bf16 on CUDA, f32 on CPU; with quantised weights, generation on a CPU rounds activations to 16 bits"},
			{Name: "memory", Value: cli.GiB(&o.memory), Default: "all free memory",
				Help: "limit of device memory for the step: 24 (GiB), 24GiB, 512MiB, 16GB"},
			{Name: "micro-rows", Value: cli.Int(&o.microRows, 0).AtLeast(1), Default: "the planner's choice", Help: "cut the step into micro-batches of this many rows"},
			{Name: "recompute", Value: cli.Enum(&o.recompute, "auto", "auto", "none", "norms", "blocks"), Help: "activation checkpointing: what the backward pass recomputes"},
			{Name: "teacher-backend", Value: cli.Enum(&o.teacherBackend, "cublas", "cublas", "q4k", "stream"),
				Help: "how a GPU computes the teacher: cublas expands its matrices, q4k keeps blocks, stream fetches " +
					"layers from page-locked host memory (random weights of both are Q4_K_M)"},
			{Name: "quantize", Value: cli.Enum(&o.quantize, "", "q4_k_m", "q4k", "q6k", "q8_0"),
				Default: "bf16, or q4_k_m for the teacher backends q4k and stream", Help: "type of the random weights"},
			{Name: "teacher-gemm", Value: cli.Enum(&o.teacherGEMM, "bf16", "bf16", "fp8"), Help: "arithmetic of the teacher's matrix products on a GPU"},
			{Name: "teacher-experts", Value: cli.Enum(&o.teacherExperts, "device", "device", "host"), Help: "where a GPU finds the teacher's experts: in its memory, or in page-locked host memory (with --teacher-backend q4k)"},
			{Name: "peak-size", Value: cli.Int(&o.peakSize, 0).AtLeast(1), Default: "what fills the device", Help: "measure the device's peak by a square matrix product of this side"},
			{Name: "floor", Value: cli.Float(&o.floor, 3).In(0, 600), Help: "time the step's matrix products alone for this many seconds, a lower bound of the step; 0 = skip"},
			{Name: "world-size", Value: cli.Int(&o.worldSize, 1).AtLeast(1),
				Help: "ranks to start on this machine, each with --batch-size rows of a step and, on CUDA, a GPU of its own"},
			{Name: "profile", Value: cli.Bool(&o.profile, false), Help: "GPU: run three more steps and print the time of every operation"},
			{Name: "kernel-log", Value: cli.Bool(&o.kernelLog, false), Help: "log each kernel and GEMM plan as it is loaded"},
		}, append(o.studentOptions(), o.collectiveOptions()...)...),
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if o.collectives {
				return o.runCollectives(ctx, e)
			}
			o.allowKeys = e.AllowConfigKeys
			return runBench(ctx, e, o)
		},
	}
}

// publishedShapes lists the names of --shape, a few to a line.
func publishedShapes() string {
	var b strings.Builder
	for i, name := range arch.PublishedNames() {
		switch {
		case i == 0:
		case i%9 == 0:
			b.WriteString(",\n")
		default:
			b.WriteString(", ")
		}
		b.WriteString(name)
	}
	return b.String() + "."
}

// benchResult is the JSON of apr bench.
type benchResult struct {
	Model           string             `json:"model"` // a file, or the shape
	Teacher         string             `json:"teacher,omitempty"`
	Shape           string             `json:"shape,omitempty"`
	Quantize        string             `json:"quantize,omitempty"` // types of random weights; of a step those of the teacher
	LoRA            *benchLoRA         `json:"lora,omitempty"`
	QuantizeAware   string             `json:"quantize_aware,omitempty"` // the scheme that the student trains in
	Alpha           *float64           `json:"alpha,omitempty"`
	BatchSize       int                `json:"batch_size,omitempty"` // of each rank
	WorldSize       int                `json:"world_size,omitempty"` // ranks, if there are several
	SeqLen          int                `json:"seq_len,omitempty"`
	TeacherBackend  string             `json:"teacher_backend,omitempty"`
	TeacherGEMM     string             `json:"teacher_gemm,omitempty"`
	Backend         string             `json:"backend"`
	Device          map[string]any     `json:"device"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	LatencyMS       map[string]float64 `json:"latency_ms"`
	StepMS          *stepMS            `json:"step_ms,omitempty"` // phases_ms of the step has them one by one
	Step            *bench.Step        `json:"step,omitempty"`
	Generation      *bench.Generation  `json:"generation,omitempty"`
	GFLOPS          *float64           `json:"gflops,omitempty"` // of matrix products, over whole iterations
	PeakGFLOPS      *float64           `json:"gemm_gflops,omitempty"`
	MFU             *float64           `json:"mfu,omitempty"`         // the former over the latter; absent where the latter is no peak
	FloorMS         *float64           `json:"floor_ms,omitempty"`    // of the step's matrix products alone
	FloorShare      *float64           `json:"floor_share,omitempty"` // floor_ms over the median of the steps
	FloorMissing    string             `json:"floor_missing,omitempty"`
	PeakMemory      map[string]int64   `json:"peak_memory"`
	Ops             []opShare          `json:"operations,omitempty"`
	Plan            *plan.Plan         `json:"plan,omitempty"`
	OverPlan        *float64           `json:"memory_over_plan,omitempty"`  // device memory taken over that planned, minus 1
	Spread          *float64           `json:"p95_over_p50,omitempty"`      // of the steps' times
	Launches        *float64           `json:"launches_per_step,omitempty"` // kernels and products
	Waits           *float64           `json:"host_waits_per_step,omitempty"`
	LateLoads       *int64             `json:"loads_after_first_step,omitempty"`
	Busy            *busy              `json:"gpu_busy_percent,omitempty"`
	Start           map[string]float64 `json:"start_ms,omitempty"` // from the command to the end of the first step
	setting         plan.Setting
	percentiles     []string // percentiles, as they are printed
}

// stepMS are the milliseconds of a step by what they were spent on, as in the steps of a run.
type stepMS struct {
	Data      float64 `json:"data"`
	Teacher   float64 `json:"teacher"`
	Student   float64 `json:"student"` // forward and backward
	Loss      float64 `json:"loss"`    // the heads of both models too
	Optimizer float64 `json:"optimizer"`
}

// busy is the share of time in which kernels ran, as NVML saw it after each measured step.
type busy struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
}

// opShare is the time of one kind of operation in a step.
type opShare struct {
	Op    string  `json:"op"`
	Calls int64   `json:"calls"`
	MS    float64 `json:"ms"`
	GFLOP float64 `json:"gflop"`
}

func runBench(ctx context.Context, e *cli.Env, o *benchOptions) (cli.Result, error) {
	if err := o.check(e.Settings); err != nil {
		return nil, err
	}
	named := *o
	for _, arg := range []*string{&o.file, &o.kd} {
		if *arg != "" {
			var err error
			if *arg, err = source(ctx, e, *arg); err != nil {
				return nil, err
			}
		}
	}
	group, err := o.party(e)
	if err != nil {
		return nil, err
	}
	defer group.close()
	o.group = group
	start := time.Now()
	generates := o.generates()
	dev, err := backend{
		name: o.backend, dtype: o.dtype, index: group.index(), expand: 128 << 20,
		round: generates && o.dtype == "auto", kernelLog: o.kernelLog,
	}.openForPaths(ctx, e, o.allowKeys, o.file, o.kd)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := o.checkOn(dev, e.Settings); err != nil {
		return nil, err
	}
	if dev.gpu != nil {
		dev.gpu.KeepShare(device.Share{Rank: group.rank, World: group.world})
	}
	info := dev.Info()
	r := &benchResult{
		Model: named.file, Teacher: named.kd, Shape: o.shape, Backend: info.Kind, LatencyMS: map[string]float64{},
		Device: map[string]any{"name": info.Name, "isa": info.ISA, "workers": info.Workers},
		Start:  map[string]float64{"open device": milliseconds(time.Since(start))},
	}
	if o.shape != "" {
		r.Model, r.Quantize = o.shape, o.randomTypes()
	}
	bar := e.Progress("measuring", int64(o.warmup+o.iterations), cli.Count)
	defer bar.Close()
	progress := func(int, int) { bar.Add(1) }
	if generates {
		err = o.generation(ctx, dev, r, progress)
	} else {
		err = o.step(ctx, dev, r, start, progress)
	}
	if err != nil {
		return nil, err
	}
	if r.PeakMemory == nil {
		r.PeakMemory = peakMemory(dev)
	}
	return r, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// peakMemory returns the highest bytes of the process and, by its components, of the device.
func peakMemory(dev *opened) map[string]int64 {
	m := map[string]int64{"host": peakResident()}
	if dev.gpu != nil {
		m["device"] = dev.gpu.Stats().Allocated // slabs, whatever they hold
		if free, total, err := dev.gpu.MemInfo(); err == nil {
			m["device_in_use"] = total - free // with the driver's context, libraries and other processes
		}
		return m
	}
	_, peak := dev.Memory()
	for _, n := range peak {
		m["device"] += n
	}
	return m
}

// generates reports whether generation is measured, not a step.
func (o *benchOptions) generates() bool { return o.kd == "" && !strings.Contains(o.shape, ":") }

// generator opens the model that generates and encodes the prompt. Without a prompt there are random ids.
func (o *benchOptions) generator() (f *modelfile.Files, prompt []int32, vocab int, err error) {
	if o.shape != "" {
		c, err := bench.Shape(o.shape)
		if err != nil {
			return nil, nil, 0, err
		}
		f, err = randomModel(c, o.randomTypes())
		return f, o.randomPrompt(c.Vocab), c.Vocab, err
	}
	if f, err = modelfile.Open(o.file, o.allowKeys...); err != nil {
		return nil, nil, 0, err
	}
	tok, err := f.Tokenizer()
	if err = errors.Join(err, f.CheckTensors()); err != nil {
		return nil, nil, 0, errors.Join(err, f.Close())
	}
	if o.prompt != "" {
		return f, tok.Encode(o.prompt, tokenizer.PlainText), tok.RealIDs(), nil
	}
	return f, o.randomPrompt(tok.RealIDs()), tok.RealIDs(), nil
}

func (o *benchOptions) randomPrompt(vocab int) (prompt []int32) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range o.promptTotal {
		prompt = append(prompt, rng.Int32N(int32(vocab)))
	}
	return prompt
}

// generation measures greedy generation.
func (o *benchOptions) generation(ctx context.Context, dev *opened, r *benchResult, progress func(int, int)) error {
	f, prompt, vocab, err := o.generator()
	if err != nil {
		return err
	}
	defer f.Close()
	planned, err := dev.prepare(model.Describe(f), len(prompt), generate.Options{MaxTokens: o.maxTokens, RepeatPenalty: 1, Vocab: vocab})
	if err != nil {
		return err
	}
	m, err := model.LoadFrozenAs(dev, f, device.StudentWeights, generationForm)
	if err != nil {
		return err
	}
	g, err := bench.MeasureGeneration(ctx, dev.NewStream(), m, prompt, o.maxTokens, vocab, o.warmup, o.iterations, progress)
	if err != nil {
		return err
	}
	r.Generation, r.TokensPerSecond = g, g.TokensPerSecond
	if dev.gpu != nil {
		over := float64(dev.gpu.Stats().Allocated)/float64(planned.Total()) - 1
		r.OverPlan = &over
	}
	r.latencies(o.percentiles, g.Latencies)
	r.LatencyMS["first"] = bench.Percentile(g.FirstMS, 50)
	return nil
}

// parsePercentiles reads numbers above 0, at most 100, with commas between.
func parsePercentiles(s string) (all []float64, err error) {
	for part := range strings.SplitSeq(s, ",") {
		p, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(p > 0 && p <= 100) {
			return nil, fmt.Errorf("%q is no percentile: give numbers above 0, at most 100, with commas between", part)
		}
		all = append(all, p)
	}
	return all, nil
}

func checkPercentiles(s string) error {
	_, err := parsePercentiles(s)
	return err
}

// latencies takes the asked percentiles of times in milliseconds.
func (r *benchResult) latencies(asked string, times []float64) {
	all, _ := parsePercentiles(asked) // checked when the option was read
	for _, p := range all {
		name := "p" + strconv.FormatFloat(p, 'f', -1, 64)
		r.LatencyMS[name] = bench.Percentile(times, p)
		r.percentiles = append(r.percentiles, fmt.Sprintf("%s %.3f", name, r.LatencyMS[name]))
	}
}

// memory describes the peaks: of the host's memory and, where there was a plan for it, of the device's.
func (r *benchResult) memory() string {
	if r.OverPlan == nil {
		return cli.Bytes(r.PeakMemory["host"])
	}
	return fmt.Sprintf("%s host, %s device (%+.1f %% against the plan)%s", cli.Bytes(r.PeakMemory["host"]), cli.Bytes(r.PeakMemory["device"]), 100**r.OverPlan, r.inUse())
}

// inUse is what is taken of a GPU's memory in all.
func (r *benchResult) inUse() string {
	if n := r.PeakMemory["device_in_use"]; n > 0 {
		return ", " + cli.Bytes(n) + " in use with context and libraries"
	}
	return ""
}

// products describes the rate of a step's products beside that of a square one.
func (r *benchResult) products() string {
	if r.GFLOPS == nil {
		return fmt.Sprintf("not measured beside %d ranks", r.WorldSize)
	}
	if r.MFU == nil {
		return fmt.Sprintf("%.0f GFLOP/s; a square product ran at %.0f only, so it is no peak: other work takes the processor", *r.GFLOPS, *r.PeakGFLOPS)
	}
	return fmt.Sprintf("%.0f GFLOP/s of %.0f measured for a square product (%.0f %%)", *r.GFLOPS, *r.PeakGFLOPS, 100**r.MFU)
}

// floor describes the time of the products alone; empty: it was not measured.
func (r *benchResult) floor() string {
	if r.FloorMS == nil {
		if r.FloorMissing != "" {
			return "not measured: " + r.FloorMissing
		}
		return ""
	}
	return fmt.Sprintf("%.1f ms for the step's matrix products alone, hot: %.1f %% of the step", *r.FloorMS, 100**r.FloorShare)
}

// Text prints the figures.
func (r *benchResult) Text(p *cli.Page) {
	dev := fmt.Sprintf("%v, %v, %v workers", r.Device["name"], r.Device["isa"], r.Device["workers"])
	if r.Generation != nil {
		name := filepath.Base(r.Model)
		if r.Shape != "" {
			name = fmt.Sprintf("%s, random weights in %s", r.Shape, r.Quantize)
		}
		pairs := []string{"model", name, "device", dev,
			"prompt", fmt.Sprintf("%d tokens, first token after %.2f ms (%.0f tokens/s)", r.Generation.PromptTokens, r.LatencyMS["first"], r.Generation.PromptPerSecond),
			"generation", fmt.Sprintf("%.1f tokens/s (ms a token: %s)", r.TokensPerSecond, strings.Join(r.percentiles, ", "))}
		if r.Generation.Decoding != "" {
			pairs = append(pairs, "layers", r.Generation.Decoding)
		}
		p.Pairs(append(pairs, "peak memory", r.memory())...)
		return
	}
	what := fmt.Sprintf("%s taught by %s", filepath.Base(r.Model), filepath.Base(r.Teacher))
	if r.Shape != "" {
		what = fmt.Sprintf("%s, random weights, the teacher's in %s", r.Shape, r.Quantize)
	}
	batch := r.BatchSize * max(1, r.WorldSize)
	pairs := []string{"step", fmt.Sprintf("%s, %d rows of %d", what, batch, r.SeqLen), "device", dev,
		"plan", fmt.Sprintf("%v: %.2f GiB", r.setting, plan.GiB(r.Plan.Memory.Total)),
		"speed", fmt.Sprintf("%.0f tokens/s, %.1f ms a step (%s, p95/p50 %.3f)", r.TokensPerSecond, r.Step.Median, strings.Join(r.percentiles, ", "), *r.Spread),
		"products", r.products(),
	}
	if floor := r.floor(); floor != "" {
		pairs = append(pairs, "floor", floor)
	}
	pairs = append(append(pairs, r.student()...), "peak memory", r.memory())
	if r.Launches != nil {
		pairs = append(pairs, "a step", fmt.Sprintf("%.0f launches, %.0f host waits, %d loads after the first", *r.Launches, *r.Waits, *r.LateLoads))
	}
	p.Pairs(append(pairs, "start", fmt.Sprintf("%.2f s from the command to the end of the first step", r.Start["all"]/1e3))...)
	var rows [][]string
	for _, phase := range [][2]string{
		{"data", "data"}, {"teacher", "teacher"}, {"student forward", "student_forward"}, {"head and loss", "loss"},
		{"student backward", "student_backward"}, {"optimizer", "optimizer"}, {"making blocks", device.PhaseQuantize.String()},
		{"waiting for ranks", device.PhaseExchange.String()},
	} {
		if phase[0] == "making blocks" && r.QuantizeAware == "" ||
			phase[0] == "waiting for ranks" && r.WorldSize < 2 {
			continue
		}
		ms := r.Step.Phases[phase[1]]
		rows = append(rows, []string{phase[0], fmt.Sprintf("%.1f", ms), fmt.Sprintf("%.0f %%", 100*ms/r.Step.Median)})
	}
	p.Printf("\n")
	p.Table([]string{"phase", "ms", "share"}, rows)
	rows = nil
	for _, op := range r.Ops {
		rate := "–"
		if op.GFLOP > 0 {
			rate = fmt.Sprintf("%.0f", op.GFLOP/op.MS*1e3)
		}
		rows = append(rows, []string{op.Op, fmt.Sprint(op.Calls), fmt.Sprintf("%.2f", op.MS), rate})
	}
	if len(rows) == 0 {
		return
	}
	p.Printf("\n")
	p.Table([]string{"operation", "calls", "ms", "GFLOP/s"}, rows)
}
