package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"

	"apr/adapter"
	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/device/dry"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// shapePair returns the published configurations that a --shape TEACHER:STUDENT names.
func shapePair(shape string) (big, small arch.Config, err error) {
	first, second, ok := strings.Cut(shape, ":")
	if !ok {
		return big, small, fault.New(fault.Usage, "--shape %q is not TEACHER:STUDENT", shape).WithHint("apr bench --help lists the shapes")
	}
	if big, err = bench.Shape(first); err == nil {
		small, err = bench.Shape(second)
	}
	if err == nil {
		err = cmp.Or(model.Computed(big), model.Computed(small))
	}
	return big, small, err
}

// shapePlan is the JSON of apr plan --shape: without files there are neither outputs nor a probe, so disk and time are
// not known.
type shapePlan struct {
	Shape          string             `json:"shape"`
	Verdict        string             `json:"verdict"` // ready, insufficient_memory
	Memory         plan.Memory        `json:"memory"`
	Costs          plan.Costs         `json:"costs"`
	Setting        string             `json:"setting"`
	TeacherBackend teacher.Backend    `json:"teacher_backend"`
	TeacherTypes   string             `json:"teacher_types"` // of the weights: bf16 or a scheme of quantize
	BatchSize      int                `json:"batch_size"`
	GradAccum      int                `json:"grad_accum"`
	SeqLen         int                `json:"seq_len"`
	Backend        string             `json:"backend"`
	Device         string             `json:"device"`
	Ranks          *distill.RanksPlan `json:"ranks,omitempty"` // null: there is one
	*plan.LargestBatch
}

// fileOptions are the options that name files, which a plan by shape does without, or that only a run has.
var fileOptions = []string{"teacher", "student", "student-config", "data", "dataset", "eval-data", "output", "resume", "steps", "epochs"}

// runShape plans a step of published shapes: the ways to compute the teacher in order, up to one that fits.
func (p *planOptions) runShape(e *cli.Env, group distill.Group) (cli.Result, error) {
	for _, name := range fileOptions {
		if e.Settings.Given(name) {
			return nil, fault.New(fault.Usage, "--shape and --%s exclude each other: shapes need no files", name)
		}
	}
	big, small, err := shapePair(p.shape)
	if err = errors.Join(err, p.unbuilt(e.Settings)); err != nil {
		return nil, err
	}
	c, err := p.config(e.Settings)
	if err != nil {
		return nil, err
	}
	if most := min(big.MaxPositions, small.MaxPositions); c.SeqLen > most {
		return nil, fault.New(fault.Usage, "--seq-len %d is more than the models' %d positions", c.SeqLen, most)
	}
	c.Ranks = group
	if err := group.Check(c.Rows()); err != nil {
		return nil, err
	}
	dev, _, err := p.open(e, group)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := p.fitsHere(); err != nil {
		return nil, err
	}
	planned, ok := dev.(dry.Planned)
	if !ok {
		return nil, fault.New(fault.Unavailable, "no plan can be made for this device")
	}
	info := dev.Info()
	if err := cmp.Or(model.Served(big, info), model.Served(small, info)); err != nil {
		return nil, err
	}
	ways, err := shapeWays(c.TeacherBackend, info.Kind == "cuda")
	if err != nil {
		return nil, err
	}
	var least *shapePlan
	for _, way := range ways {
		r, err := planShape(c, big, small, way, planned.Target)
		if r == nil {
			return nil, err
		}
		r.Shape, r.Backend, r.Device = p.shape, info.Kind, info.Name
		if err == nil {
			return r, nil
		}
		if least == nil || r.Memory.Total < least.Memory.Total {
			least = r
		}
	}
	return least, fault.New(fault.Memory, "a step of %d × %d rows of %d positions does not fit: it needs %s, %s are available",
		c.GradAccum, c.BatchSize, c.SeqLen, plan.Amount(least.Memory.Total), plan.Amount(least.Memory.Available)).
		WithHint("a smaller --batch-size, --grad-accum or --seq-len, or smaller models")
}

// shapeWays lists the ways to compute a teacher that may be in blocks.
func shapeWays(asked teacher.Backend, cuda bool) ([]teacher.Backend, error) {
	if _, err := (teacher.Situation{Asked: asked, CUDA: cuda, Quantised: true, Fits: true}).Rule(); err != nil {
		return nil, err
	}
	switch {
	case !cuda:
		return []teacher.Backend{teacher.CPU}, nil
	case asked == teacher.Auto:
		return []teacher.Backend{teacher.Cublas, teacher.Q4K, teacher.Stream}, nil
	}
	return []teacher.Backend{asked}, nil
}

// planShape plans one way. A plan that does not fit comes with an error of kind Memory.
func planShape(c distill.Config, big, small arch.Config, way teacher.Backend, target func() dry.Target) (*shapePlan, error) {
	r := &shapePlan{TeacherBackend: way, TeacherTypes: "bf16", BatchSize: c.BatchSize, GradAccum: c.GradAccum, SeqLen: c.SeqLen}
	if way == teacher.Q4K || way == teacher.Stream {
		r.TeacherTypes = string(convert.Q4_K_M)
	}
	f, err := randomModel(big, r.TeacherTypes)
	if err != nil {
		return nil, err
	}
	d := distill.DryRun{
		Target: target, Teacher: model.Describe(f), Form: way.Form(c.TeacherFP8), Student: small, Loss: c.Loss, Vocab: min(big.Vocab, small.Vocab),
		SeqLen: c.SeqLen, Accum: c.GradAccum, Control: c.Control, Apart: c.DocumentMask,
		Ranks: c.Ranks,
	}
	if c.Quantize != nil {
		if d.Types, _, err = c.Quantize.Types(small); err != nil {
			return nil, err
		}
	}
	if c.LoRA != nil {
		if d.Adapter, err = adapter.New(small, c.LoRA.Targets, c.LoRA.Rank, c.LoRA.Alpha, c.LoRA.Dropout); err != nil {
			return nil, err
		}
		base, err := randomModel(small, r.TeacherTypes)
		if err != nil {
			return nil, err
		}
		d.Base, d.SameFile = model.Describe(base), bytes.Equal(big.JSON(), small.JSON())
	}
	choice := distill.Choice{BatchSize: c.BatchSize, ChunkRows: c.ChunkRows, Recompute: c.Recompute}
	step, err := d.PlanTeacher(choice, &d.GroupRows)
	if err != nil && fault.KindOf(err) != fault.Memory {
		return nil, err
	}
	r.Verdict, r.Memory, r.Costs, r.Setting, r.LargestBatch = step.Verdict, step.Memory, step.Costs, step.Setting.String(), step.Largest
	if r.LargestBatch == nil {
		largest, lerr := d.LargestBatch(choice)
		if lerr != nil {
			return nil, lerr
		}
		r.LargestBatch = &largest
	}
	if c.Ranks.World > 1 {
		ranks, rerr := d.PlanRanks(step)
		if rerr != nil {
			return nil, rerr
		}
		r.Ranks = ranks
	}
	return r, err
}

// fetches says what comes from the host.
func (r *shapePlan) fetches() string {
	if r.Costs.Host == nil {
		return ""
	}
	return ": " + r.Costs.Host.String()
}

// Text prints the plan.
func (r *shapePlan) Text(p *cli.Page) {
	p.Printf("%s", r.Memory.Table())
	var ranks []string
	if r.Ranks != nil {
		ranksTable(p, r.Ranks)
		ranks = ranksLines(r.Ranks, r.Backend == "cpu")
	}
	p.Printf("\n")
	p.Wrapped(append([]string{"verdict", strings.ReplaceAll(r.Verdict, "_", " "), "device", r.Device, "step", r.Setting,
		"teacher", fmt.Sprintf("%s, its weights in %s%s", r.TeacherBackend, r.TeacherTypes, r.fetches()),
		"largest batch", largestBatch(r.LargestBatch)}, ranks...)...)
}
