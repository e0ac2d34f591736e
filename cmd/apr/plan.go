package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/plan"
)

func planCommand() *cli.Command {
	o := &distillOptions{}
	p := &planOptions{distillOptions: o}
	table := append(ofDistill(o.table()),
		cli.Option{Name: "shape", Replaces: fileOptions, Value: cli.String(&p.shape, ""), Help: "plan for published shapes TEACHER:STUDENT instead of files; apr bench --help lists them"},
		cli.Option{Name: "no-probe", Value: cli.Bool(&p.noProbe, false), Help: "skip the timed probe: no estimate of time, teacher backend by rule"},
		cli.Option{Name: "memory", Value: cli.GiB(&p.memory), Default: "all free memory",
			Help: "plan for this much free device memory: 24 (GiB), 512MiB, 16GB; --backend cuda: this machine needs no GPU"},
	)
	table = append(table, p.clusterTable()...)
	for i := range table {
		table[i].Required = false // the teacher, beside --shape
		if table[i].Name == "gpus" {
			table[i].Value = cli.Checked(&o.GPUs, "1", countsOrAll)
			table[i].Hidden, table[i].ListedBy, table[i].Group = false, "", ""
			table[i].Help = "number of ranks to plan, one GPU each; with --cluster: numbers of GPUs to simulate, such as 8,256,4096"
		}
	}
	return &cli.Command{
		Name: "plan", Short: "Say what a distillation needs and takes, without running it",
		Long: "Says what a distillation would take: memory by component, from the headers of the files; disk; how the teacher is computed;\n" +
			"the largest batch that fits; and the time, from a probe of a few steps. The data is read, so that what is wrong\n" +
			"with it is found here. What does not fit is refused with exit code 23 before any weight is read. The\n" +
			"content of the models is not checked; distill checks it before its first step.\n" +
			"--shape plans a pair of published models without their files; disk and time are then unknown.\n" +
			"--cluster simulates a job on many GPUs from a description (examples/cluster.yaml): training online, from a\n" +
			"teacher's cache, and fed by a pool of teachers, with interruptions, restarts and checkpoints.",
		Example: "apr plan TEACHER --student MODEL -d data.jsonl\n" +
			"apr plan examples/gosrc/distill.yaml --no-probe\n" +
			"apr plan --shape qwen2.5-7b:qwen2.5-0.5b --backend cuda --memory 24 --batch-size 8 --seq-len 1024\n" +
			"apr plan --shape qwen2.5-7b:qwen2.5-0.5b --backend cuda --memory 141 --batch-size 32 --gpus 4\n" +
			"apr plan teacher.gguf --student-config config.json -d src/ --backend cuda --memory 24 --no-probe\n" +
			"apr plan --cluster examples/cluster.yaml --gpus 8,256,4096",
		Exits:   append(openExits, fault.Invalid, fault.Inference, fault.Memory),
		Options: table, Nested: distillNested, Advice: distillAdvice, EnvPrefix: "APR_DISTILL_", ConfigArg: true, Stray: strayOfDistill, PrintConfig: true, Complete: o.complete,
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return p.run(ctx, e) },
	}
}

// planOptions are those of distill and a few more.
type planOptions struct {
	*distillOptions
	noProbe bool
	memory  float64
	shape   string  // TEACHER:STUDENT; empty: models are files
	opened  *opened // the device to plan for; nil: it is imagined

	cluster       string // a description; empty: one machine is planned for
	maxStepTokens int
}

// planResult is the JSON of apr plan.
type planResult struct {
	*distill.Estimate
	Backend string `json:"backend"`
	Device  string `json:"device"`
	base    bool   // nothing teaches: what counts as the teacher's is of the model that the student begins as
}

func (p *planOptions) run(ctx context.Context, e *cli.Env) (cli.Result, error) {
	if p.cluster != "" {
		return p.runCluster(e.Settings)
	}
	if err := p.withoutCluster(e.Settings); err != nil {
		return nil, err
	}
	if err := alone(e); err != nil {
		return nil, err
	}
	group, err := p.group(e)
	if err != nil {
		return nil, err
	}
	if p.noProbe && p.Probe && e.Settings.Given("probe") && !e.Settings.Over("no-probe", "probe") {
		return nil, fault.New(fault.Usage, "--probe on and --no-probe contradict each other")
	}
	switch {
	case p.precomputes() && p.shape == "":
		return p.planCache(ctx, e)
	case p.shape != "":
		return p.runShape(e, group)
	case p.Teacher == "" && p.Alpha != 0:
		return nil, fault.New(fault.Usage, "missing argument TEACHER: model that teaches").WithHint("--shape TEACHER:STUDENT plans without files")
	}
	c, err := p.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	c.Ranks = group
	if err := group.Check(c.Rows()); err != nil {
		return nil, err
	}
	dev, open, err := p.open(e, group)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := p.fitsHere(); err != nil {
		return nil, err
	}
	if c.Probe = p.Probe && !p.noProbe && open != nil; c.Probe {
		c.OpenDevice = open
	}
	show := newDistillDisplay(e, p.LogEvery)
	defer show.close()
	if p.opened != nil {
		c.Peak = peakRate(ctx, e, p.opened)
	}
	est, err := distill.EstimateRun(ctx, c, dev, show)
	show.close()
	if est == nil {
		return nil, err
	}
	if f := (*fault.Error)(nil); errors.As(err, &f) {
		f.Hint, _, _ = strings.Cut(f.Hint, "\n") // the table comes with the result
	}
	return &planResult{Estimate: est, Backend: dev.Info().Kind, Device: dev.Info().Name, base: c.NoTeacher}, err
}

// open opens the device to plan for, and says how to open another one for a probe; nil: the device is imagined.
func (p *planOptions) open(e *cli.Env, g distill.Group) (device.Device, func() (device.Device, error), error) {
	b := backend{name: p.Backend, dtype: p.DType, index: p.Device, expand: p.keepExpanded()}
	dev, err := b.open(e)
	if fault.KindOf(err) == fault.Unavailable && p.Backend == "cuda" && p.memory > 0 {
		target := func() dry.Target {
			t := cuda.ImaginedTarget(arithmetics[p.DType], p.bytes())
			t.Share = shareOf(g)
			return t
		}
		return imagined{dry.New(target()), target}, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := p.unbuiltOn(dev, e); err != nil {
		dev.Close()
		return nil, nil, err
	}
	p.opened = dev
	if dev.gpu != nil {
		dev.gpu.KeepShare(shareOf(g))
	}
	open := func() (device.Device, error) { return b.open(e) }
	planned, ok := dev.Device.(dry.Planned)
	if p.memory == 0 || !ok {
		return dev.Device, open, nil
	}
	l := limited{Planned: planned, budget: p.bytes()}
	if dev.gpu != nil {
		b := cuda.MemoryBudget(cuda.Discrete, p.bytes(), cuda.HostMemory{})
		l.budget, l.reserve = max(1, b.Bytes), b.Free-b.Bytes
	}
	return l, open, nil
}

func (p *planOptions) bytes() int64 { return int64(p.memory * (1 << 30)) }

// limited is a device with another budget.
type limited struct {
	dry.Planned
	budget, reserve int64
}

func (l limited) Target() dry.Target {
	t := l.Planned.Target()
	t.Budget, t.Reserve = l.budget, l.reserve
	return t
}

// imagined is a GPU that is not there.
type imagined struct {
	*dry.Device
	target func() dry.Target
}

func (i imagined) Target() dry.Target { return i.target() }

// largestBatch says which batch size is the largest that fits; empty: not known.
func largestBatch(l *plan.LargestBatch) string {
	switch {
	case l == nil:
		return ""
	case l.Size == 0:
		return "none fits"
	case l.IsBound:
		return fmt.Sprintf("--batch-size %d fits, cut into micro-batches if need be; larger ones were not tried", l.Size)
	}
	return fmt.Sprintf("--batch-size %d fits, cut into micro-batches if need be; %d does not", l.Size, l.Size+1)
}

// Text prints the plan.
func (r *planResult) Text(p *cli.Page) {
	table := r.Memory.Table()
	if r.base {
		table = strings.Replace(table, "teacher   ", "base model", 1)
	}
	p.Printf("%s", table)
	if r.Ranks != nil {
		ranksTable(p, r.Ranks)
	}
	pairs := []string{"verdict", strings.ReplaceAll(r.Verdict, "_", " "), "device", r.Device, "step", r.Setting}
	if d := r.Data; d != nil {
		pairs = append(pairs, "data", dataText(distill.Outline{
			Files: d.Files, Documents: d.Documents, Tokens: d.Tokens, HeldTokens: d.HeldTokens, Steps: r.Steps, Epochs: r.Epochs,
		}, cmp.Or(p.Columns(), math.MaxInt)-len("largest batch  ")))
	}
	if r.Ranks != nil {
		pairs = append(pairs, ranksLines(r.Ranks, r.Backend == "cpu")...)
	}
	if r.Teaching != nil {
		pairs = append(pairs, teachingLines(r.Teaching)...)
	}
	if r.Experts != "" {
		pairs = append(pairs, "experts", r.Experts)
	}
	if h := r.Estimate.Costs.Host; h != nil {
		pairs = append(pairs, "host memory", fmt.Sprintf("%s of experts, page-locked; %s", plan.Amount(r.Memory.Host), h))
	}
	if r.BackendReason != "" && !r.base {
		pairs = append(pairs, "teacher", string(r.Estimate.Backend)+", "+r.BackendReason)
	}
	for _, k := range r.Candidates {
		if k.Backend != r.Estimate.Backend {
			pairs = append(pairs, "", fmt.Sprintf("not %s, which %s", k.Backend, k.Why()))
		}
	}
	pairs = append(pairs, "largest batch", largestBatch(r.LargestBatch), "models", "content not checked; distill checks it before its first step",
		"disk", fmt.Sprintf("%s: %s of checkpoints, %s of outputs",
			cli.Bytes(r.Disk.Total), cli.Bytes(r.Disk.Checkpoints), cli.Bytes(r.Disk.Outputs)))
	if r.Disk.Available > 0 {
		pairs = append(pairs, "", fmt.Sprintf("%s are free", cli.Bytes(int64(min(r.Disk.Available, math.MaxInt64)))))
	}
	if r.Seconds != nil {
		pairs = append(pairs, "time", fmt.Sprintf("%s: %s of %.1f ms, %.0f tokens/s, by a probe",
			time.Duration(*r.Seconds*float64(time.Second)).Round(time.Second), plural(r.Steps, "step"), 1e3**r.StepSeconds,
			float64(r.TokensPerStep) / *r.StepSeconds),
			"", "evaluations come on top; distill says the time of the whole once it has timed some steps")
		if r.Ranks != nil {
			pairs = append(pairs, "", "of one rank with its rows, alone: what travels between the ranks is not timed")
		}
	} else if r.Steps > 0 {
		pairs = append(pairs, "steps", fmt.Sprintf("%s of %d tokens; without a probe their time is not known",
			cli.Count(int64(r.Steps)), r.TokensPerStep))
	}
	if s := r.Estimate.Cache; s != nil {
		pairs = append(pairs, "cache", fmt.Sprintf("--stage precompute keeps draws in about %s, or hidden states in %s",
			cli.Bytes(s.Draws), cli.Bytes(s.Hidden)))
	}
	if l := r.Logits; l != nil && l.Epochs > 1 {
		text := "computed in every epoch: "
		if l.Chosen == distill.LogitsCache {
			text = fmt.Sprintf("computed in the first epoch, kept in %s and read in the others: ", plan.Amount(l.Bytes))
		}
		pairs = append(pairs, "teacher logits", text+r.LogitsReason)
	}
	if r.RowsAhead != "" {
		pairs = append(pairs, "rows ahead", r.RowsAhead)
	}
	pairs = append(pairs, r.control()...)
	p.Printf("\n")
	p.Wrapped(pairs...)
}

// control says whether a control is trained, and what it takes beyond the time of the student.
func (r *planResult) control() []string {
	c := r.Control
	if c.Asked == "" {
		return nil
	}
	text := "no: " + c.Reason
	if c.On {
		text = "yes: " + c.Reason
	}
	if c.On && r.Seconds != nil && c.Share < 1 {
		text += fmt.Sprintf(", about %s more", timeText(seconds(*r.Seconds*c.Share/(1-c.Share))))
	}
	return []string{"control", text}
}
