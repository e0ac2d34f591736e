package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"apr/bench"
	"apr/device"
	"apr/device/cpu"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/tokenizer"
)

// benchOptions are the options of apr bench.
type benchOptions struct {
	file, kd, prompt               string
	warmup, iterations, maxTokens  int
	batchSize, seqLen, promptTotal int
	chunkRows                      int
}

func benchCommand() *cli.Command {
	o := &benchOptions{}
	return &cli.Command{
		Name: "bench", Short: "Measure generation or a distillation step",
		Long: "FILE alone: greedy generation. With --kd TEACHER: whole optimiser steps on random tokens, FILE being the student, or a\n" +
			"config.json for a student of random weights.",
		Example: "apr bench student.apr --max-tokens 64\n" +
			"apr bench examples/gosrc/student-config.json --kd examples/gosrc/teacher.apr --batch-size 8 --seq-len 256",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Load, fault.Inference, fault.Unavailable, fault.Memory},
		Options: []cli.Option{
			{Name: "file", Arg: true, Required: true, Model: true, Value: cli.String(&o.file, ""), Help: "model, or config.json with --kd"},
			{Name: "kd", Model: true, Value: cli.String(&o.kd, ""), Help: "teacher: measure one distillation step"},
			{Name: "batch-size", Value: cli.Int(&o.batchSize, 8).AtLeast(1), Help: "rows of a step"},
			{Name: "seq-len", Value: cli.Int(&o.seqLen, 512).AtLeast(1), Help: "positions of a row"},
			{Name: "chunk-rows", Value: cli.Int(&o.chunkRows, 0).In(256, 4096).Or(0), Default: "the device's choice", Help: "rows of a chunk of head and loss"},
			{Name: "warmup", Value: cli.Int(&o.warmup, 3).AtLeast(0), Help: "iterations before the measured ones"},
			{Name: "iterations", Value: cli.Int(&o.iterations, 5).AtLeast(1), Help: "measured iterations"},
			{Name: "max-tokens", Short: "n", Value: cli.Int(&o.maxTokens, 32).AtLeast(2), Help: "tokens of a generation"},
			{Name: "prompt", Short: "p", Value: cli.String(&o.prompt, ""), Default: "random ids", Help: "prompt of a generation"},
			{Name: "prompt-tokens", Value: cli.Int(&o.promptTotal, 64).AtLeast(1), Help: "random ids of the prompt when there is none"},
			{Name: "percentiles", NotBuilt: "other percentiles than those printed", Value: cli.String(new(string), "50,95"), Help: "percentiles of the latencies"},
			{Name: "shape", NotBuilt: "published shapes", Value: cli.String(new(string), ""), Help: "TEACHER:STUDENT of published shapes"},
			{Name: "random-weights", NotBuilt: "published shapes", Value: cli.Bool(new(bool), false), Help: "with --shape"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runBench(ctx, e, o) },
	}
}

// benchResult is the JSON of apr bench.
type benchResult struct {
	Model           string             `json:"model"`
	Teacher         string             `json:"teacher,omitempty"`
	Backend         string             `json:"backend"`
	Device          map[string]any     `json:"device"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	LatencyMS       map[string]float64 `json:"latency_ms"`
	StepMS          map[string]float64 `json:"step_ms,omitempty"`
	Step            *bench.Step        `json:"step,omitempty"`
	Generation      *bench.Generation  `json:"generation,omitempty"`
	GFLOPS          *float64           `json:"gflops,omitempty"` // of matrix products, over whole iterations
	PeakGFLOPS      *float64           `json:"gemm_gflops,omitempty"`
	MFU             *float64           `json:"mfu,omitempty"` // the former over the latter
	PeakMemory      map[string]int64   `json:"peak_memory"`
	Ops             []opShare          `json:"operations,omitempty"`
	batch, seq      int
}

// opShare is the time of one kind of operation in a step.
type opShare struct {
	Op    string  `json:"op"`
	Calls int64   `json:"calls"`
	MS    float64 `json:"ms"`
	GFLOP float64 `json:"gflop"`
}

func runBench(ctx context.Context, e *cli.Env, o *benchOptions) (cli.Result, error) {
	dev, err := cpu.New(cpu.Options{ISA: e.Getenv("APR_CPU"), KeepExpanded: 128 << 20})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	info := dev.Info()
	r := &benchResult{
		Model: o.file, Teacher: o.kd, Backend: info.Kind, batch: o.batchSize, seq: o.seqLen, LatencyMS: map[string]float64{},
		Device: map[string]any{"name": info.Name, "isa": info.ISA, "workers": info.Workers},
	}
	bar := e.Progress("measuring", int64(o.warmup+o.iterations), cli.Count)
	defer bar.Close()
	progress := func(int, int) { bar.Add(1) }
	if o.kd == "" {
		err = o.generation(ctx, dev, r, progress)
	} else {
		err = o.step(ctx, dev, r, progress)
	}
	if err != nil {
		return nil, err
	}
	_, peak := dev.Memory()
	var held int64
	for _, n := range peak {
		held += n
	}
	r.PeakMemory = map[string]int64{"host": peakResident(), "device": held}
	return r, nil
}

// step measures distillation steps.
func (o *benchOptions) step(ctx context.Context, dev *cpu.Device, r *benchResult, progress func(int, int)) error {
	tf, err := model.Open(o.kd)
	if err != nil {
		return err
	}
	defer tf.Close()
	if err := tf.CheckTensors(); err != nil {
		return err
	}
	big, err := model.LoadFrozen(dev, tf, device.TeacherWeights)
	if err != nil {
		return err
	}
	s := dev.NewStream().(*cpu.Stream)
	student, err := o.student(dev, s)
	if err != nil {
		return err
	}
	peak, err := bench.PeakGFLOPS(ctx, dev, s)
	if err != nil {
		return err
	}
	vocab := min(tf.Config.VocabSize, student.VocabSize)
	if tok, err := tf.Tokenizer(); err == nil {
		vocab = min(vocab, tok.RealIDs())
	}
	dryRun := distill.DryRun{
		Target: dev.Target, Teacher: tf.Outline(), Student: student.Config, Loss: device.LossSpec{Alpha: 0.5, Temperature: 1},
		Vocab: vocab, SeqLen: o.seqLen, Accum: 1,
	}
	if _, err := dryRun.Plan(distill.Choice{BatchSize: o.batchSize, ChunkRows: o.chunkRows, Recompute: []model.Recompute{model.RecomputeNone}}); err != nil {
		return err
	}
	s.ResetProfile()
	r.Step, err = bench.MeasureStep(ctx, s, student, big, bench.StepOptions{
		BatchSize: o.batchSize, SeqLen: o.seqLen, Warmup: o.warmup, Iterations: o.iterations, ChunkRows: o.chunkRows, Vocab: vocab, Progress: progress,
	})
	if err != nil {
		return err
	}
	steps := float64(o.warmup + o.iterations)
	var flops float64
	for _, op := range s.Profile() {
		r.Ops = append(r.Ops, opShare{op.Op, op.Calls / int64(steps), op.Time.Seconds() * 1e3 / steps, float64(op.FLOPs) / steps / 1e9})
		flops += float64(op.FLOPs) / steps
	}
	rate := flops / r.Step.Median / 1e6
	mfu := rate / peak
	r.GFLOPS, r.PeakGFLOPS, r.MFU = &rate, &peak, &mfu
	p := r.Step.Phases
	r.TokensPerSecond = r.Step.TokensPerSecond
	r.LatencyMS = map[string]float64{"p50": r.Step.Median, "p95": r.Step.P95}
	r.StepMS = map[string]float64{
		"teacher": p["teacher"], "student": p["student_forward"] + p["student_backward"], "loss": p["loss"], "optimizer": p["optimizer"], "data": p["data"],
	}
	return nil
}

// student opens the student, or makes one of random weights from a config.json.
func (o *benchOptions) student(dev device.Device, s device.Stream) (*model.Model, error) {
	if strings.HasSuffix(o.file, ".json") {
		c, err := model.ReadConfig(o.file)
		if err != nil {
			return nil, err
		}
		m := model.NewTrainable(dev, c)
		m.Init(s, 42)
		return m, nil
	}
	f, err := model.Open(o.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := model.NewTrainable(dev, f.Config)
	return m, m.LoadWeights(s, f)
}

// generation measures greedy generation.
func (o *benchOptions) generation(ctx context.Context, dev device.Device, r *benchResult, progress func(int, int)) error {
	f, err := model.Open(o.file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.CheckTensors(); err != nil {
		return err
	}
	tok, err := f.Tokenizer()
	if err != nil {
		return err
	}
	m, err := model.LoadFrozen(dev, f, device.StudentWeights)
	if err != nil {
		return err
	}
	prompt := tok.Encode(o.prompt, tokenizer.PlainText)
	if o.prompt == "" {
		rng := rand.New(rand.NewPCG(1, 2))
		for range o.promptTotal {
			prompt = append(prompt, rng.Int32N(int32(tok.RealIDs())))
		}
	}
	g, err := bench.MeasureGeneration(ctx, dev.NewStream(), m, prompt, o.maxTokens, tok.RealIDs(), o.warmup, o.iterations, progress)
	if err != nil {
		return err
	}
	r.Generation, r.TokensPerSecond = g, g.TokensPerSecond
	r.LatencyMS = map[string]float64{
		"p50": bench.Percentile(g.TokenMS, 50), "p95": bench.Percentile(g.TokenMS, 95), "first": bench.Percentile(g.FirstMS, 50),
	}
	return nil
}

// Text prints the figures.
func (r *benchResult) Text(p *cli.Page) {
	dev := fmt.Sprintf("%v, %v, %v workers", r.Device["name"], r.Device["isa"], r.Device["workers"])
	if r.Generation != nil {
		p.Pairs("model", filepath.Base(r.Model), "device", dev,
			"prompt", fmt.Sprintf("%d tokens, first token after %.2f ms (%.0f tokens/s)", r.Generation.PromptTokens, r.LatencyMS["first"], r.Generation.PromptPerSecond),
			"generation", fmt.Sprintf("%.1f tokens/s (%.3f ms a token, p95 %.3f)", r.TokensPerSecond, r.LatencyMS["p50"], r.LatencyMS["p95"]),
			"peak memory", cli.Bytes(r.PeakMemory["host"]))
		return
	}
	p.Pairs("step", fmt.Sprintf("%s taught by %s, %d rows of %d", filepath.Base(r.Model), filepath.Base(r.Teacher), r.batch, r.seq), "device", dev,
		"speed", fmt.Sprintf("%.0f tokens/s, %.1f ms a step (p95 %.1f)", r.TokensPerSecond, r.LatencyMS["p50"], r.LatencyMS["p95"]),
		"products", fmt.Sprintf("%.0f GFLOP/s of %.0f measured for a 1024³ product (%.0f %%)", *r.GFLOPS, *r.PeakGFLOPS, 100**r.MFU),
		"peak memory", cli.Bytes(r.PeakMemory["host"]))
	var rows [][]string
	for _, name := range []string{"data", "teacher", "student", "loss", "optimizer"} {
		rows = append(rows, []string{name, fmt.Sprintf("%.1f", r.StepMS[name]), fmt.Sprintf("%.0f %%", 100*r.StepMS[name]/r.LatencyMS["p50"])})
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
	p.Printf("\n")
	p.Table([]string{"operation", "calls", "ms", "GFLOP/s"}, rows)
}
