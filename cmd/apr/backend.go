package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/selfcheck"
)

// backend is what commands say about the device they want.
type backend struct {
	name      string // auto, cpu, cuda, vulkan or vulkan:NAME
	dtype     string // auto, f32; on CUDA also bf16, tf32
	index     int    // of the GPU
	expand    int64  // bytes that a CPU may spend on float32 copies of quantised matrices
	round     bool   // a CPU may round activations to 16 bits in products with quantised matrices
	kernelLog bool
	guard     *sentry // attends the device as soon as it is open; nil: nobody does
}

// opened is a device and why it was taken.
type opened struct {
	device.Device
	asked  string // as backend.name
	reason string
	tried  []string     // why other backends were not taken
	gpu    *cuda.Device // nil on the CPU
	agreed []selfcheck.Agreement
}

// Share is what ranks share of the state of a model that is trained.
func (o *opened) Share() device.Share {
	if o.gpu == nil {
		return device.Share{}
	}
	return o.gpu.Share()
}

// decision is the detail of the event that records the choice.
func (o *opened) decision() map[string]any {
	d := map[string]any{"backend": o.Info().Kind, "asked": o.asked}
	if len(o.tried) > 0 {
		d["tried"] = o.tried
	}
	if len(o.agreed) > 0 {
		d["agreed"] = o.agreed
	}
	return d
}

// prewarm loads all kernels that work without a plan may need, before any weight is loaded.
func (o *opened) prewarm() error {
	if o.gpu == nil {
		return nil
	}
	return o.gpu.Prewarm()
}

// prepare plans a generation of gen.MaxTokens after `prompt` tokens, before a weight is read. What does not fit is a
// fault of kind Memory; a GPU takes the memory and loads the kernels. The record is nil for a device that no plan can
// be made for.
func (o *opened) prepare(m *model.Outline, prompt int, gen generate.Options) (*dry.Record, error) {
	planned, ok := o.Device.(dry.Planned)
	if !ok {
		return nil, nil
	}
	r, err := generate.DryRun{
		Target: planned.Target, Model: m, Component: device.StudentWeights, Form: generationForm, Prompt: prompt, Options: gen,
	}.Plan()
	if err != nil || o.gpu == nil {
		return r, err
	}
	return r, o.gpu.PrepareOnce(r)
}

// generationForm is how commands keep the matrices of a model that generates.
var generationForm = device.Form{Blocks: true}

// open opens the device. auto takes the first GPU of CUDA that works, else one of Vulkan that is faster than the CPU,
// else the CPU; when there is a driver and its GPU cannot be used, a line says why.
func (b backend) open(e *cli.Env) (*opened, error) {
	if b.name == "cpu" {
		return b.cpu(e, "asked for")
	}
	if name, ok := vulkanName(b.name); ok {
		return b.vulkan(name, "asked for")
	}
	gpu, err := b.cuda(e)
	switch {
	case err == nil:
		for _, note := range gpu.Notes() {
			e.Log.Warn(note)
		}
		reason := "asked for"
		if b.name == "auto" {
			reason = "a GPU is there"
		}
		return &opened{Device: gpu, asked: b.name, reason: reason, gpu: gpu}, nil
	case b.name == "cuda" || fault.KindOf(err) != fault.Unavailable:
		return nil, err
	}
	if !withoutGPU(err) {
		e.Log.Warn("the GPU is not used: " + err.Error())
	}
	o, why := b.fasterVulkan(e)
	if o == nil {
		var cpuErr error
		if o, cpuErr = b.cpu(e, "no GPU can be used"); cpuErr != nil {
			return nil, cpuErr
		}
		o.tried = append(o.tried, "vulkan: "+why)
	}
	o.tried = append([]string{"cuda: " + err.Error()}, o.tried...)
	return o, nil
}

// withoutGPU reports whether err says that there is no GPU, so that nobody expects one to be used: no driver was found,
// it sees no device, or the CUDA device is not built in.
func withoutGPU(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && slices.Contains([]string{"E-CUDA-041", "E-CUDA-042", "E-CUDA-057"}, f.ID)
}

func (b backend) cpu(e *cli.Env, reason string) (*opened, error) {
	if b.dtype == "bf16" || b.dtype == "tf32" {
		return nil, fault.New(fault.Unavailable, "--dtype %s on the CPU; it computes in f32", b.dtype)
	}
	if b.kernelLog {
		return nil, fault.New(fault.Unavailable, "--kernel-log: the CPU device loads no kernels")
	}
	dev, err := cpu.New(cpu.Options{ISA: e.Getenv("APR_CPU"), KeepExpanded: b.expand, RoundActivations: b.round})
	if err != nil {
		return nil, err
	}
	return &opened{Device: dev, asked: b.name, reason: reason}, nil
}

// arithmetics are the values of --dtype on CUDA; others are bfloat16.
var arithmetics = map[string]cuda.Compute{"f32": cuda.F32, "tf32": cuda.TF32}

func (b backend) cuda(e *cli.Env) (*cuda.Device, error) {
	o := cuda.Options{Index: b.index, Compute: arithmetics[b.dtype]}
	switch v := e.Getenv(cuda.ManagedVariable); v {
	case "", "auto":
	default:
		managed, err := cuda.AllocationRule(cuda.Discrete, v)
		if err != nil {
			return nil, err
		}
		o.Managed = &managed
	}
	if b.kernelLog {
		o.KernelLog = e.Err
	}
	if dir, err := os.UserCacheDir(); err == nil {
		o.TuningDir = filepath.Join(dir, "apr")
	}
	dev, err := cuda.Open(o)
	if err != nil {
		return nil, err
	}
	if err := dev.Probe(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}
