package distill

import (
	"context"
	"errors"
	"slices"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/plan"
	runlog "apr/run/log"
	"apr/teacher"
)

// Estimate is what a run would need and take, known before it reads a weight, but for the few of a probe.
type Estimate struct {
	Verdict       string          `json:"verdict"` // ready, insufficient_memory, insufficient_disk
	Memory        plan.Memory     `json:"memory"`
	Disk          DiskNeed        `json:"disk"`
	Costs         plan.Costs      `json:"costs"`
	Setting       string          `json:"setting"`
	Experts       string          `json:"experts,omitempty"` // for which split of tokens over experts
	Backend       teacher.Backend `json:"teacher_backend"`
	BackendReason string          `json:"teacher_backend_reason"`
	RowsAhead     string          `json:"rows_ahead,omitempty"` // where rows of --on-policy-lag 1 are written
	Candidates    []*Candidate    `json:"candidates"`
	Steps         int             `json:"steps"`
	TokensPerStep int             `json:"tokens_per_step"`
	StepSeconds   *float64        `json:"seconds_per_step"` // of a probe; null without one
	Seconds       *float64        `json:"seconds"`          // of all steps of the student's leg
	Control       ControlChoice   `json:"control"`
	Data          *DataSize       `json:"data"` // null: it was not read, since no setting fits
	Epochs        float64         `json:"epochs"`
	// that --stage precompute would make; null: not known, or of no use
	Cache        *CacheSize    `json:"teacher_cache,omitempty"`
	Logits       *LogitsChoice `json:"teacher_logits,omitempty"` // null: not known, or there are none
	LogitsReason string        `json:"teacher_logits_reason,omitempty"`
	Ranks        *RanksPlan    `json:"ranks,omitempty"` // null: there is one; Memory and Costs are of one that needs most
	// null: no rank only teaches; Memory and Costs are of one that learns
	Teaching *TeachingPlan `json:"teaching,omitempty"`
	*plan.LargestBatch
}

// DataSize is the text of a run, in documents and tokens.
type DataSize struct {
	Files      int   `json:"files"` // 0: token shards
	Documents  int   `json:"documents"`
	Tokens     int64 `json:"tokens"`
	HeldTokens int64 `json:"held_out_tokens"` // beside Tokens; 0: nothing is held out
}

// dataSize measures the data that was loaded.
func (in *inputs) dataSize() *DataSize {
	d := &DataSize{Files: in.files, Documents: len(in.train.Docs), Tokens: int64(len(in.train.IDs))}
	if in.held != nil {
		d.HeldTokens = int64(len(in.held.IDs))
	}
	return d
}

// EstimateRun plans a run without running it: memory from the headers of files, steps from the data unless they are
// given, time from a probe if c says so. The data is read in any case, so that what is wrong with it is found here.
// A run that does not fit is described, too; then the error is of kind Memory, and the data is not read.
func EstimateRun(ctx context.Context, c Config, dev device.Device, obs Observer) (_ *Estimate, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := c.checkOutput(); err != nil {
		return nil, err
	}
	in := &inputs{records: map[string]runlog.Input{}}
	defer func() { err = errors.Join(err, in.close()) }()
	if err := in.openForPlan(ctx, c, obs); err != nil {
		return nil, err
	}
	chosen := in.choose(ctx, c, dev, obs)
	if chosen != nil && (fault.KindOf(chosen) != fault.Memory || in.choice == nil) {
		return nil, chosen
	}
	e := &Estimate{Candidates: in.choice.Candidates, Verdict: plan.TooLarge, TokensPerStep: c.Rows() * c.SeqLen, Disk: in.diskNeed(c, c.Steps), Steps: c.Steps}
	if e.LargestBatch, err = in.largestBatch(c, dev); err != nil {
		return e, err
	}
	k := in.choice.Chosen
	if k == nil { // none fits: the one that needs least is shown, and of it what does not fit
		k = in.choice.nearest()
		e.describe(k)
		e.Memory = *k.Memory
		return e, chosen
	}
	if err := in.loadData(ctx, c, obs); err != nil { // there is no plan to show: "ready" would be wrong
		return nil, err
	}
	in.dropIdleControl()
	if err := in.shortControl(c, dev, obs); err != nil {
		return nil, err
	}
	e.Verdict, e.Backend, e.BackendReason, e.Control = plan.Ready, in.choice.Backend, in.choice.Reason, in.control
	e.describe(k)
	if e.Data = in.dataSize(); c.Steps == 0 {
		e.Steps = int(in.loaderSteps)
	}
	if in.cache == nil && c.Loss.Alpha != 0 && len(in.more) == 0 && !c.OnPolicy.On() {
		e.Cache = in.cacheSize(c, dev)
	}
	if err := in.chooseLogits(c, dev, e.Steps); err != nil {
		return e, err
	}
	if c.Loss.Alpha != 0 && in.cache == nil {
		e.Logits, e.LogitsReason = &in.logits, in.logits.Reason
	}
	if k.Memory != nil {
		e.describe(k)
	}
	if e.Ranks, err = in.planRanks(c, dev, k); err == nil {
		e.Teaching, err = in.planTeaching(c, dev, k)
	}
	if err != nil {
		return e, err
	}
	e.Disk = in.diskNeed(c, c.Steps)
	if err := in.checkDisk(c, e.Steps); err != nil {
		e.Verdict = plan.NoDisk
		return e, err
	}
	if c.MaxSteps > 0 {
		e.Steps = min(e.Steps, c.MaxSteps)
	}
	if in.epochSteps > 0 {
		e.Epochs = float64(e.Steps) / float64(in.epochSteps)
	}
	if c.Probe && c.OpenDevice != nil && k.Probe == nil && in.cache == nil && !in.elsewhere {
		if k.Probe, err = in.probe(ctx, c, k, obs); err != nil {
			return e, err
		}
	}
	e.time(k.Probe)
	return e, nil
}

// openForPlan opens what a plan reads before it chooses a teacher's backend.
func (in *inputs) openForPlan(ctx context.Context, c Config, obs Observer) error {
	if err := in.openModels(c, obs); err != nil {
		return err
	}
	if err := in.refuseSameFile(c); err != nil {
		return err
	}
	return in.loadPrompts(ctx, c, obs)
}

// time takes over what a probe measured; nil: there was none.
func (e *Estimate) time(p *Probe) {
	if p == nil {
		return
	}
	step := p.Milliseconds / 1e3
	all := step * float64(e.Steps)
	e.StepSeconds, e.Seconds = &step, &all
}

// describe takes over what a candidate's plan says.
func (e *Estimate) describe(k *Candidate) {
	e.Memory, e.Costs, e.Setting = k.plan.Memory, k.plan.Costs, k.Setting
	if k.plan.Record != nil {
		e.Experts = plan.Experts(k.plan.Record)
	}
	switch {
	case k.ahead && k.before == "":
		e.RowsAhead = "written beside the step"
	case k.ahead:
		e.RowsAhead = "written before the step: " + k.before
	}
}

// largestBatch returns the largest batch size that fits with some candidate; nil: no plan can be made for the device.
func (in *inputs) largestBatch(c Config, dev device.Device) (*plan.LargestBatch, error) {
	planned, ok := dev.(dry.Planned)
	if !ok {
		return nil, nil
	}
	var most plan.LargestBatch
	all := in.choice.Candidates
	if in.mayStream(c, dev) && !slices.ContainsFunc(all, func(k *Candidate) bool { return k.Backend == teacher.Stream }) {
		all = append(slices.Clip(all), &Candidate{form: teacher.Stream.Form(c.TeacherFP8)})
	}
	for _, k := range all {
		l := k.plan.Largest // of a refusal
		if l == nil {
			d := in.dryRun(c, planned.Target)
			d.Form, d.GroupRows = k.form, k.Rows
			if k.form.HostLayers {
				d.GroupRows = 1 // what is left when rows through a layer at a time are halved
			}
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
