package distill

import (
	"context"
	"errors"
	"path/filepath"

	"apr/device"
	"apr/device/dry"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/plan"
	runlog "apr/run/log"
	"apr/teacher"
)

// Estimate is what a run would need and take, known before it reads a weight, but for the few of a probe.
type Estimate struct {
	Verdict       string          `json:"verdict"` // ready, insufficient_memory
	Memory        plan.Memory     `json:"memory"`
	Disk          DiskNeed        `json:"disk"`
	Costs         plan.Costs      `json:"costs"`
	Setting       string          `json:"setting"`
	Experts       string          `json:"experts,omitempty"` // for which split of tokens over experts
	Backend       teacher.Backend `json:"teacher_backend"`
	BackendReason string          `json:"teacher_backend_reason"`
	Candidates    []*Candidate    `json:"candidates"`
	Steps         int             `json:"steps"`
	TokensPerStep int             `json:"tokens_per_step"`
	StepSeconds   *float64        `json:"seconds_per_step"` // of a probe; null without one
	Seconds       *float64        `json:"seconds"`          // of all steps of the student's leg
	Control       ControlChoice   `json:"control"`
	*plan.LargestBatch
}

// DiskNeed is what a run writes, in bytes.
type DiskNeed struct {
	Checkpoints int64  `json:"checkpoints"` // at the highest point: those kept, and one being written, of each leg
	Outputs     int64  `json:"outputs"`
	Total       int64  `json:"total"`
	Available   uint64 `json:"available"` // 0: unknown
}

// EstimateRun plans a run without running it: memory from the headers of files, steps from the data unless they are
// given, time from a probe if c says so. A run that does not fit is described, too; then the error is of kind Memory.
func EstimateRun(ctx context.Context, c Config, dev device.Device, obs Observer) (_ *Estimate, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	in := &inputs{records: map[string]runlog.Input{}}
	defer func() { err = errors.Join(err, in.close()) }()
	if err := in.openModels(c, obs); err != nil {
		return nil, err
	}
	chosen := in.choose(ctx, c, dev, obs)
	if chosen != nil && (fault.KindOf(chosen) != fault.Memory || in.choice == nil) {
		return nil, chosen
	}
	e := &Estimate{Candidates: in.choice.Candidates, Verdict: plan.TooLarge, TokensPerStep: c.Rows() * c.SeqLen, Disk: in.diskNeed(c), Steps: c.Steps}
	if e.LargestBatch, err = in.largestBatch(c, dev); err != nil {
		return e, err
	}
	k := in.choice.Chosen
	if k == nil { // none fits: the one that needs least is shown
		e.describe(in.choice.nearest())
		return e, chosen
	}
	e.Verdict, e.Backend, e.BackendReason, e.Control = plan.Ready, in.choice.Backend, in.choice.Reason, in.control
	e.describe(k)
	if c.Steps == 0 {
		if err := in.loadData(ctx, c, obs); err != nil {
			return e, err
		}
		e.Steps = int(in.loaderSteps)
	}
	if c.MaxSteps > 0 {
		e.Steps = min(e.Steps, c.MaxSteps)
	}
	if c.Probe && c.OpenDevice != nil && k.Probe == nil {
		if k.Probe, err = in.probe(ctx, c, k, obs); err != nil {
			return e, err
		}
	}
	if k.Probe != nil {
		step := k.Probe.Milliseconds / 1e3
		all := step * float64(e.Steps)
		e.StepSeconds, e.Seconds = &step, &all
	}
	return e, nil
}

// describe takes over what a candidate's plan says.
func (e *Estimate) describe(k *Candidate) {
	e.Memory, e.Costs, e.Setting = k.plan.Memory, k.plan.Costs, k.Setting
	if k.plan.Record != nil {
		e.Experts = plan.Experts(k.plan.Record)
	}
}

// largestBatch returns the largest batch size that fits with some candidate; nil: no plan can be made for the device.
func (in *inputs) largestBatch(c Config, dev device.Device) (*plan.LargestBatch, error) {
	planned, ok := dev.(dry.Planned)
	if !ok {
		return nil, nil
	}
	var most plan.LargestBatch
	for _, k := range in.choice.Candidates {
		l := k.plan.Largest // of a refusal
		if l == nil {
			d := in.dryRun(c, planned.Target)
			d.Form = k.form
			found, err := d.LargestBatch(Choice{ChunkRows: c.ChunkRows, Recompute: c.Recompute})
			if err != nil {
				return nil, err
			}
			l = &found
		}
		if l.Size > most.Size || l.Size == most.Size && l.IsBound {
			most = *l
		}
	}
	return &most, nil
}

// diskNeed adds up what a run writes: checkpoints of float32 weights and two moments, the student twice in float32, and
// once more where it is exported to.
func (in *inputs) diskNeed(c Config) (d DiskNeed) {
	params := in.studentConfig.Parameters()
	legs, copies := int64(1), int64(2)
	if c.Control || in.control.On {
		legs = 2
	}
	if c.Export != "" {
		copies++
	}
	d.Checkpoints = 12 * params * (legs*int64(c.KeepCheckpoints) + 1)
	d.Outputs = 4 * params * copies
	d.Total = d.Checkpoints + d.Outputs
	for dir := filepath.Dir(c.Output); ; dir = filepath.Dir(dir) { // the run directory may not exist yet
		if free, ok := atomicfile.Free(dir); ok {
			d.Available = free
			return d
		}
		if dir == filepath.Dir(dir) {
			return d
		}
	}
}
