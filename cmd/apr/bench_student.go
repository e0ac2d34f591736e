package main

import (
	"fmt"
	"slices"
	"strings"

	"apr/adapter"
	"apr/convert"
	"apr/device"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
)

// studentNames are the options of distill that say how the student of a measured step trains. What does not change its
// time is left out.
var studentNames = []string{"lora", "lora-rank", "lora-dropout", "lora-targets", "quantize-aware", "quantize-search-every"}

// studentOptions are the options of distill by these names.
func (o *benchOptions) studentOptions() (table []cli.Option) {
	for _, t := range o.learns.table() {
		if !slices.Contains(studentNames, t.Name) {
			continue
		}
		switch t.Name {
		case "lora":
			t.Help = "measure steps that train low-rank adapters on the frozen student, whose random weights have the teacher's types"
		case "quantize-aware":
			t.Help = "measure steps of a student that trains as this quantisation will hold it"
		case "quantize-search-every":
			t.Help = "steps between searches for the scales of --quantize-aware, over which the time of one is spread; 0 = search once"
		}
		t.Group, t.Bits, t.Replaces, t.Foreign, t.First = "", 0, nil, nil, false
		table = append(table, t)
	}
	return table
}

// checkStudent judges the options of a student that concern each other.
func (o *benchOptions) checkStudent(s cli.Settings) error {
	switch l := &o.learns; {
	case l.LoRA && l.QuantizeAware != "":
		return fault.New(fault.Usage, "--lora and --quantize-aware exclude each other: adapters train beside frozen weights")
	case l.LoRA && strings.HasSuffix(o.file, ".json"):
		return fault.New(fault.Usage, "--lora trains adapters of a model that is there: %s has no weights", o.file).WithHint("give a model, or --shape TEACHER:STUDENT")
	}
	var all []idle
	for _, i := range o.learns.idleOptions(s) {
		if slices.Contains(studentNames, i.option) {
			all = append(all, i)
		}
	}
	return refuseIdle(all)
}

// benchLoRA are the adapters of a measured step.
type benchLoRA struct {
	Rank       int      `json:"rank"`
	Targets    []string `json:"targets"`
	Dropout    float64  `json:"dropout"`
	Parameters int64    `json:"parameters"`
}

// trains finds what of the student trains, and in which types, or why it cannot.
func (o *benchOptions) trains(dev device.Device, m *benchModels, r *benchResult) (err error) {
	l := &o.learns
	if l.QuantizeAware != "" {
		r.QuantizeAware = l.QuantizeAware
		if m.types, _, err = convert.TrainedTypes(convert.Scheme(l.QuantizeAware), m.config); err != nil {
			return err
		}
		return model.QuantizedBy(dev, m.config, m.types)
	}
	if !l.LoRA {
		return nil
	}
	if o.shape != "" {
		if m.student, err = randomModel(m.config, o.randomTypes()); err != nil {
			return err
		}
	}
	if m.adapter, err = adapter.New(m.config, l.LoRATargets, l.LoRARank, l.LoRAAlpha, l.LoRADropout); err != nil {
		return err
	}
	r.LoRA = &benchLoRA{l.LoRARank, l.LoRATargets, l.LoRADropout, m.adapter.Parameters()}
	return nil
}

// newStudent puts the student on a device, its weights random if it has none. base is a view of it without adapters.
func (m benchModels) newStudent(dev device.Device, s device.Stream) (student, base *model.Model, err error) {
	if m.adapter != nil {
		student, base, err = distill.LoadAdapted(dev, m.student, m.adapter, 42)
		if err == nil {
			student.Init(s, 42)
		}
		return student, base, err
	}
	student = model.NewTrainableAs(dev, m.config, m.types)
	if m.student == nil {
		student.Init(s, 42)
		return student, nil, nil
	}
	return student, nil, student.LoadWeights(s, m.student)
}

// student describes what is special about the student of a step.
func (r *benchResult) student() []string {
	switch {
	case r.LoRA != nil:
		return []string{"student", fmt.Sprintf("adapters of rank %d on %s: %s parameters train", r.LoRA.Rank, strings.Join(r.LoRA.Targets, ", "), cli.Count(r.LoRA.Parameters))}
	case r.QuantizeAware != "":
		return []string{"student", fmt.Sprintf("in blocks, %s: a search for their scales takes %.1f ms, which adds %.2f ms to a step on average", r.QuantizeAware, *r.Step.Search, *r.Step.Amortised)}
	}
	return nil
}
