package main

import (
	"errors"

	"apr/device"
	"apr/device/dry"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
)

// Slots of an engine, unless --slots says otherwise: as many texts at a time as gain from each other.
const (
	slotsCPU = 16
	slotsGPU = 64
)

// slotsOption is --slots.
func slotsOption(slots *int, help string) cli.Option {
	return cli.Option{Name: "slots", Foreign: []string{"parallel", "max-num-seqs", "np"}, Value: cli.Int(slots, 0).In(0, 4096),
		Default: "16 on a CPU, 64 on a GPU, or what fits", Help: help}
}

// fitEngine returns the options of an engine for texts of capacity tokens. Slots that nobody asked for are as many as fit.
func (o *opened) fitEngine(f *modelfile.Files, slots, capacity, vocab int, score bool) (generate.EngineOptions, error) {
	given := slots > 0
	if !given {
		if slots = slotsCPU; o.gpu != nil {
			slots = slotsGPU
		}
	}
	for {
		n := generate.EngineOptions{Slots: slots, Capacity: capacity, Rows: generate.PassRows(o.Device), Vocab: vocab}
		r, err := o.planEngine(f, n, score)
		if fault.KindOf(err) == fault.Memory && !given && slots > 1 {
			slots /= 2
			continue
		}
		if err == nil && r != nil && o.gpu != nil {
			err = o.gpu.PrepareOnce(r)
		}
		return n, err
	}
}

// planEngine plans an engine before a weight is read. The record is nil for a device that no plan can be made for.
func (o *opened) planEngine(f *modelfile.Files, n generate.EngineOptions, score bool) (*dry.Record, error) {
	planned, ok := o.Device.(dry.Planned)
	if !ok {
		return nil, nil
	}
	return generate.EngineDryRun{
		Target: planned.Target, Model: model.Describe(f), Component: device.StudentWeights, Form: generationForm, Options: n, Score: score,
	}.Plan()
}

// textOf decodes ids.
func textOf(push func(int32) (string, error), flush func() string, ids []int32) (string, error) {
	var text []byte
	for _, id := range ids {
		piece, err := push(id)
		if err != nil {
			return "", err
		}
		text = append(text, piece...)
	}
	return string(append(text, flush()...)), nil
}

// engineError is what a command says of an engine that gave up.
func engineError(err error) error {
	if errors.Is(err, generate.ErrClosed) {
		return fault.New(fault.Inference, "the engine has stopped")
	}
	return err
}
