package distill

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
)

// ControlMost is the share of the training's operations, both legs together, that a control may take without being
// asked for.
const ControlMost = 0.30

// ControlAlways is how many operations a control may take whatever its share: about twenty seconds of one processor
// core. Nobody waits for less, and a run without a control does not say what the teacher was worth.
const ControlAlways = 1e12

// ControlChoice says whether a run trains a control, and why.
type ControlChoice struct {
	Asked  string  `json:"asked"` // auto, ce, none
	On     bool    `json:"on"`
	Share  float64 `json:"share"` // of the training's operations, both legs together; 0: not known
	Reason string  `json:"-"`
	Never  bool    `json:"-"` // asking for one is refused

	stepCost float64 // operations of its step, where they alone speak against it; else 0
}

// nothingHeld is why a control would be of no use.
const nothingHeld = "no text is held out to compare it on"

// dropIdleControl trains no control that nobody asked for where nothing is held out, once the data is loaded.
func (in *inputs) dropIdleControl() {
	if in.control.Asked == "auto" && in.control.On && in.held == nil {
		in.control.On, in.control.Reason = false, nothingHeld
	}
}

// controlDecision is the name of the event that records the choice.
const controlDecision = "control"

// chooseControl decides whether a control is trained, once the step is planned. What it decides changes neither how the
// student's steps are cut nor anything else of the student: a control for which they would have to be cut otherwise is
// not trained.
func (in *inputs) chooseControl(c Config, planned dry.Planned) error {
	in.control = ControlChoice{Asked: "none", Reason: "--control none"}
	if c.Control {
		in.control = ControlChoice{Asked: "ce", On: true, Reason: "asked for"}
	}
	if c.ControlAuto {
		in.control = ControlChoice{Asked: "auto"}
	}
	if c.OnPolicy.On() {
		in.control.Never = true
		in.control.Reason = "the rows that the student writes have no text that one without a teacher could learn from"
		return nil
	}
	if c.Loss.Alpha == 0 || planned == nil || in.planned.Record == nil {
		if c.ControlAuto {
			in.control.Reason = "its cost is not known on this device"
			if c.Loss.Alpha == 0 {
				in.control.Reason, in.control.Never = "without a teacher it is the same student", true
			}
		}
		return nil
	}
	d := in.dryRun(c, planned.Target)
	d.Form, d.Control = in.choice.Chosen.form, true
	alone := d
	alone.Loss, alone.Guide = device.LossSpec{Alpha: 0, Temperature: 1}, Guide{}
	r, err := alone.Record(in.planned.Setting)
	if err != nil {
		return fmt.Errorf("the control's step: %w", err)
	}
	cost := r.Cost().FLOPs
	in.control.Share = cost / (cost + in.planned.Costs.FLOPs)
	switch before, known := controlBefore(c); {
	case !c.ControlAuto:
		return nil
	case len(c.EvalData) == 0 && c.ValFraction == 0:
		in.control.Reason = nothingHeld
		return nil
	case known:
		in.control.On, in.control.Reason = before, "as before the run was stopped"
	case !(in.control.Share <= ControlMost):
		in.control.stepCost = cost
		in.control.Reason = fmt.Sprintf("it would take %.0f %% of the training, more than the %.0f %% that are spent unasked", 100*in.control.Share, 100*ControlMost)
	default:
		in.control.On, in.control.Reason = true, fmt.Sprintf("it takes %.0f %% of the training", 100*in.control.Share)
	}
	if !in.control.On {
		return nil
	}
	return in.keepForControl(c, d)
}

// shortControl trains a control that takes more than its share, but few operations, once the data says how many
// steps there are and what is held out.
func (in *inputs) shortControl(c Config, dev device.Device, obs Observer) error {
	steps := cmp.Or(c.Steps, int(in.loaderSteps))
	if c.MaxSteps > 0 {
		steps = min(steps, c.MaxSteps)
	}
	planned, ok := dev.(dry.Planned)
	k := &in.control
	if !ok || k.stepCost == 0 || in.held == nil || !(k.stepCost*float64(steps) <= ControlAlways) {
		return nil
	}
	k.On, k.Reason = true, fmt.Sprintf("it takes %.0f %% of the training, which is short", 100*k.Share)
	d := in.dryRun(c, planned.Target)
	d.Form, d.Control = in.choice.Chosen.form, true
	if err := in.keepForControl(c, d); err != nil {
		return err
	}
	in.warnOfFewWindows(c, obs)
	return nil
}

// keepForControl plans the step again with the student kept beside the control, cut as it is.
func (in *inputs) keepForControl(c Config, d DryRun) error {
	s := in.planned.Setting
	p, err := d.Plan(Choice{BatchSize: s.BatchSize, MicroRows: s.MicroRows, ChunkRows: c.ChunkRows, Recompute: c.Recompute})
	switch {
	case fault.KindOf(err) == fault.Memory || err == nil && p.Setting != s:
		in.control.On, in.control.Reason = false, "there is no memory to keep the student beside it"
		return nil
	case err != nil:
		return err
	}
	k := in.choice.Chosen
	k.plan, k.Memory, in.planned = p, &p.Memory, p
	k.Reason = needs(p)
	return nil
}

// controlBefore returns whether the run that is resumed trains a control, as its last decision says; false if nothing
// does.
func controlBefore(c Config) (on, known bool) {
	if c.Resume == "" {
		return false, false
	}
	var k ControlChoice
	if !lastDecision(c.Output, controlDecision, &k) {
		return false, true // made by a version that trained one only when asked
	}
	return k.On, true
}

// lastDecision reads the detail of the last decision of that name in the run in dir.
func lastDecision(dir, name string, into any) (found bool) {
	f, err := os.Open(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		return false // a run without events has no checkpoint to continue from either, and that is said later
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Kind, Name string
			Detail     json.RawMessage
		}
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Kind == "decision" && e.Name == name && json.Unmarshal(e.Detail, into) == nil {
			found = true
		}
	}
	return found
}

// ControlChoice returns whether the run trains a control, and why.
func (r *Run) ControlChoice() ControlChoice { return r.in.control }

// recordControl writes down whether a control is trained.
func (r *Run) recordControl() error {
	return r.dir.Event("decision", controlDecision, r.in.control, r.in.control.Reason)
}
