package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"apr/adapter"
	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/distill"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/plan"
	"apr/teacher"
	"apr/tensor"
)

// models are teacher and student before anything is on the device.
type benchModels struct {
	teacher, student *modelfile.Files // student nil: random by config
	config           arch.Config      // of the student
	adapter          *adapter.Adapter // what trains beside the student's weights; nil: all of it
	types            map[string]tensor.DType
}

// vocab returns how many ids both models have, and the teacher's tokenizer, if there is one, uses.
func (m *benchModels) vocab() int {
	n := min(m.teacher.Config.Vocab, m.config.Vocab)
	if tok, err := m.teacher.Tokenizer(); err == nil {
		n = min(n, tok.RealIDs())
	}
	return n
}

func (o *benchOptions) models() (m benchModels, err error) {
	if o.shape != "" {
		var c arch.Config
		if c, m.config, err = shapePair(o.shape); err != nil {
			return m, err
		}
		m.student = bench.RandomModel(m.config, 2)
		m.teacher, err = randomModel(c, o.randomTypes())
		return m, err
	}
	if m.teacher, err = modelfile.Open(o.kd, o.allowKeys...); err != nil {
		return m, err
	}
	if err := m.teacher.CheckTensors(); err != nil {
		return m, err
	}
	if strings.HasSuffix(o.file, ".json") {
		if m.config, err = modelfile.ReadConfig(o.file, o.allowKeys...); err == nil {
			err = model.Computed(m.config)
		}
		return m, err
	}
	if m.student, err = modelfile.Open(o.file, o.allowKeys...); err == nil {
		m.config = m.student.Config
		err = model.Computed(m.config)
	}
	return m, err
}

// randomTypes names the types of random weights: those of a generation's model, or of a step's teacher.
func (o *benchOptions) randomTypes() string {
	switch {
	case o.quantize != "":
		return o.quantize
	case !o.generates() && o.form().Blocks:
		return string(convert.Q4_K_M)
	}
	return "bf16"
}

// randomModel makes a model of random weights in the types of a scheme, or in bfloat16.
func randomModel(c arch.Config, scheme string) (*modelfile.Files, error) {
	if scheme == "bf16" {
		return bench.RandomModel(c, 1), nil
	}
	return bench.RandomQuantised(c, 1, convert.Scheme(scheme))
}

func (m benchModels) close() {
	for _, f := range []*modelfile.Files{m.teacher, m.student} {
		if f != nil {
			f.Close()
		}
	}
}

// step measures distillation steps.
func (o *benchOptions) step(ctx context.Context, dev *opened, r *benchResult, start time.Time, progress func(int, int)) error {
	last := time.Now()
	took := func(what string) {
		r.Start[what] = milliseconds(time.Since(last))
		last = time.Now()
	}
	m, err := o.models()
	if err != nil {
		return err
	}
	defer m.close()
	if err := o.checkTeacher(dev, m); err != nil {
		return err
	}
	if err := o.trains(dev, &m, r); err != nil {
		return err
	}
	vocab := m.vocab()
	p, err := o.plan(dev, m, vocab)
	if err != nil {
		return err
	}
	r.Plan, r.setting, r.BatchSize, r.SeqLen, r.Alpha = &p, p.Setting, o.batchSize, o.seqLen, &o.alpha
	r.TeacherBackend, r.TeacherGEMM = o.computes(dev)
	took("plan")
	ranks, err := o.join(ctx, dev, r)
	if err != nil {
		return err
	}
	took("ranks")
	if err := prepare(dev, p.Record); err != nil {
		return err
	}
	took("prepare")
	s := dev.NewStream()
	big, student, err := o.load(dev, s, m, o.dryRun(dev, m, vocab).Shares(dev.Info()), took)
	if err != nil {
		return err
	}
	progress, profile := watchProducts(s, o.warmup, progress)
	var before cuda.Stats
	progress, endWatch := watchBusy(dev, o.warmup, progress)
	options := bench.StepOptions{
		BatchSize: o.batchSize, SeqLen: o.seqLen, Warmup: o.warmup, Iterations: o.iterations, Setting: p.Setting, Vocab: vocab, Progress: progress,
		SearchEvery: o.learns.QuantizeSearchEvery, Loss: o.loss(), GroupRows: o.teacherRows, Ranks: ranks,
		Started: func(first time.Duration) {
			r.Start["first step"], r.Start["all"] = milliseconds(first), milliseconds(time.Since(start))
			if dev.gpu != nil {
				dev.gpu.Seal()
				before = dev.gpu.Stats()
			}
		},
	}
	r.Step, err = bench.MeasureStep(ctx, s, student, big, options)
	r.Busy = endWatch()
	if err != nil {
		return err
	}
	r.PeakMemory = peakMemory(dev) // before the square product takes memory of its own
	if total := p.Memory.Total; total > 0 {
		over := float64(r.PeakMemory["device"])/float64(total) - 1
		r.OverPlan = &over
	}
	if dev.gpu != nil {
		r.count(before, dev.gpu.Stats(), o.warmup+o.iterations-1)
	}
	if o.profile && dev.gpu != nil {
		if err := r.profileGPU(dev.gpu, func() error { return bench.RunSteps(ctx, s, student, big, profiledSteps, options) }); err != nil {
			return err
		}
	}
	flops := p.Costs.FLOPs
	if profile != nil {
		flops = r.profileCPU(profile(), float64(o.iterations)) // before the square product, which would pass for one of the step
	}
	r.latencies(o.percentiles, r.Step.Milliseconds)
	if r.speed(); o.group.world > 1 {
		return nil // what bounds a step of one device is measured with one
	}
	return o.bound(ctx, dev, s, p, r, flops)
}

// prepare reserves what a step takes, on a device that can.
func prepare(dev *opened, step *dry.Record) error {
	if p, ok := dev.Device.(dry.Preparer); ok {
		return p.Prepare(step)
	}
	return nil
}

// join meets the other ranks of the measurement; nil where there are none.
func (o *benchOptions) join(ctx context.Context, dev *opened, r *benchResult) (distill.Ranks, error) {
	if o.group.world > 1 {
		r.WorldSize = o.group.world
	}
	return o.group.join(ctx, dev)
}

// bound measures what bounds the step: its products alone, and a square product, whose rate the step's operations are compared with.
func (o *benchOptions) bound(ctx context.Context, dev *opened, s device.Stream, p plan.Plan, r *benchResult, flops float64) error {
	if err := o.measureFloor(ctx, dev, s, p, r); err != nil {
		return err
	}
	peak, err := bench.PeakGFLOPS(ctx, dev, s, o.peakSize)
	if err != nil {
		return err
	}
	r.rates(flops, peak)
	return nil
}

// measureFloor times the step's products alone. Where they cannot run alone, or find no memory, the result says why.
func (o *benchOptions) measureFloor(ctx context.Context, dev *opened, s device.Stream, p plan.Plan, r *benchResult) error {
	if o.floor == 0 {
		return nil
	}
	free := int64(math.MaxInt64)
	if p.Memory.Available > 0 {
		free = p.Memory.Available - p.Memory.Total
	}
	if dev.gpu != nil {
		free = max(free, p.Memory.Arena) // which is one piece, and empty now
	}
	floor, err := bench.MeasureFloor(ctx, dev, s, p, free, time.Duration(o.floor*float64(time.Second)))
	switch fault.KindOf(err) {
	case fault.Memory, fault.Unavailable:
		r.FloorMissing = err.Error()
		return nil
	}
	if err == nil {
		share := floor.Milliseconds / r.Step.Median
		r.FloorMS, r.FloorShare = &floor.Milliseconds, &share
	}
	return err
}

// load puts both models on a device, the student's weights random if it has none; shared, the teacher is what of the
// student does not train.
func (o *benchOptions) load(
	dev *opened, s device.Stream, m benchModels, shared bool, took func(string),
) (big, student *model.Model, err error) {
	if !shared {
		if big, err = model.LoadFrozenAs(dev, m.teacher, device.TeacherWeights, o.form()); err != nil {
			return nil, nil, err
		}
		took("load teacher")
	}
	student, base, err := m.newStudent(dev, s)
	took("load student")
	if shared {
		big = base
	}
	return big, student, err
}

// loss is the objective of the measured steps.
func (o *benchOptions) loss() device.LossSpec {
	l := bench.Loss
	l.Alpha = o.alpha
	return l
}

// computes says how the teacher is computed on a device, and in which arithmetic its products are.
func (o *benchOptions) computes(dev *opened) (way, arithmetic string) {
	switch {
	case dev.gpu == nil:
		return string(teacher.CPU), "f32"
	case o.teacherGEMM == "fp8":
		return o.teacherBackend, o.teacherGEMM
	}
	return o.teacherBackend, dev.gpu.Arithmetic()
}

// watchProducts lets a CPU's stream forget what it counted before the measured iterations, which first touch memory and are slower.
// It returns what to call then instead of progress, and what the stream counts: nil where it does not.
func watchProducts(s device.Stream, warmup int, progress func(int, int)) (look func(done, total int), counted func() []cpu.OpStat) {
	prof, ok := s.(*cpu.Stream)
	if !ok {
		return progress, nil
	}
	prof.ResetProfile()
	return func(done, total int) {
		if done == warmup {
			prof.ResetProfile()
		}
		progress(done, total)
	}, prof.Profile
}

// watchBusy samples a GPU after every iteration that follows the warm-up. It returns a progress callback that does so,
// and a function that stops the sampling and returns the figures, nil if there were no samples.
func watchBusy(dev *opened, warmup int, progress func(int, int)) (look func(done, total int), end func() *busy) {
	if dev.gpu == nil {
		return progress, func() *busy { return nil }
	}
	var shares []float64
	monitor := dev.gpu.Watch(100 * time.Millisecond)
	look = func(done, total int) {
		if u := monitor.Last().Utilisation; u != nil && done > warmup {
			shares = append(shares, float64(*u))
		}
		progress(done, total)
	}
	return look, func() *busy {
		monitor.Close()
		if len(shares) == 0 {
			return nil
		}
		return &busy{bench.Percentile(shares, 50), slices.Min(shares)}
	}
}

// form says how the teacher is kept.
func (o *benchOptions) form() device.Form {
	form := teacher.Backend(o.teacherBackend).Form(o.teacherGEMM == "fp8")
	form.HostExperts = o.teacherExperts == "host"
	return form
}

// plan chooses how the step is cut.
func (o *benchOptions) plan(dev *opened, m benchModels, vocab int) (plan.Plan, error) {
	if _, ok := dev.Device.(dry.Planned); !ok {
		return plan.Plan{}, fault.New(fault.Unavailable, "no plan can be made for this device")
	}
	choice := distill.Choice{BatchSize: o.batchSize, ChunkRows: o.chunkRows, MicroRows: o.microRows}
	if o.recompute != "auto" {
		again, err := model.ParseRecompute(o.recompute)
		if err != nil {
			return plan.Plan{}, err
		}
		choice.Recompute = []model.Recompute{again}
	} else if dev.gpu == nil {
		choice.Recompute = []model.Recompute{model.RecomputeNone}
	}
	d, n := o.dryRun(dev, m, vocab), o.group.world
	if n > 1 { // rows of all ranks, each of which holds what it exchanges
		d.Ranks = distill.Group{World: n}
		choice.BatchSize *= n
	}
	p, err := d.PlanTeacher(choice, &o.teacherRows)
	if err != nil && n > 1 {
		err = fmt.Errorf("all %d ranks: %w", n, err)
	}
	p.BatchSize = o.batchSize
	return p, err
}

// dryRun describes the step.
func (o *benchOptions) dryRun(dev *opened, m benchModels, vocab int) distill.DryRun {
	target := func() dry.Target {
		t := dev.Device.(dry.Planned).Target()
		if o.memory > 0 {
			t.Budget = int64(o.memory * (1 << 30))
		}
		return t
	}
	d := distill.DryRun{
		Target: target, Teacher: model.Describe(m.teacher), Form: o.form(), Student: m.config, Loss: o.loss(),
		Vocab: vocab, SeqLen: o.seqLen, Accum: 1, Adapter: m.adapter, Types: m.types,
	}
	if m.adapter != nil {
		d.Base = model.Describe(m.student)
		d.SameFile = o.file == o.kd && (o.shape == "" || bytes.Equal(m.teacher.Config.JSON(), m.config.JSON()))
	}
	return d
}

// profiledSteps is how many steps a profile adds up.
const profiledSteps = 3

// profileGPU takes the time of every operation of some steps.
func (r *benchResult) profileGPU(dev *cuda.Device, steps func() error) error {
	dev.StartProfile()
	err := steps()
	stats, perr := dev.Profile()
	for _, op := range stats {
		r.Ops = append(r.Ops, opShare{Op: op.Op, Calls: op.Calls / profiledSteps, MS: milliseconds(op.Time) / profiledSteps})
	}
	return errors.Join(err, perr)
}

// count takes what a GPU did per step after the first.
func (r *benchResult) count(before, after cuda.Stats, steps int) {
	if steps == 0 {
		return
	}
	launches := float64(after.Launches-before.Launches+after.Products-before.Products) / float64(steps)
	waits := float64(after.HostWaits-before.HostWaits) / float64(steps)
	late := after.LateLoads
	r.Launches, r.Waits, r.LateLoads = &launches, &waits, &late
}

// profileCPU takes the operations that a CPU counted over some steps, and returns the floating-point operations of one step's products.
func (r *benchResult) profileCPU(all []cpu.OpStat, steps float64) (flops float64) {
	for _, op := range all {
		r.Ops = append(r.Ops, opShare{op.Op.String(), op.Calls / int64(steps), op.Time.Seconds() * 1e3 / steps, float64(op.FLOPs) / steps / 1e9})
		flops += float64(op.FLOPs) / steps
	}
	return flops
}

// rates takes times and speeds; flops are those of a step, peak is in 10⁹ a second. A step faster than the square product shows that
// this was no peak: then there is no utilisation.
func (r *benchResult) rates(flops, peak float64) {
	rate := flops / r.Step.Median / 1e6
	r.GFLOPS, r.PeakGFLOPS = &rate, &peak
	if mfu := rate / peak; mfu <= 1 {
		r.MFU = &mfu
	}
	r.speed()
}

// speed takes over the speed of the steps.
func (r *benchResult) speed() {
	p := r.Step.Phases
	r.TokensPerSecond = r.Step.TokensPerSecond
	spread := r.Step.P95 / r.Step.Median
	r.Spread = &spread
	r.StepMS = &stepMS{
		Data: p["data"], Teacher: p["teacher"], Student: p["student_forward"] + p["student_backward"], Loss: p["loss"], Optimizer: p["optimizer"],
	}
}
