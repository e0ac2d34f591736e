package main

import (
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/teacher"
)

// check judges the options before anything is opened. What means nothing for the asked measurement is refused: its figures would
// pass for those of another one.
func (o *benchOptions) check(s cli.Settings) error {
	if err := only(s, "--collectives", collectiveNames...); err != nil {
		return err
	}
	switch {
	case o.shape != "" && (o.file != "" || o.kd != ""):
		return fault.New(fault.Usage, "--shape and model files exclude each other")
	case o.shape != "" && !o.random:
		return fault.New(fault.Usage, "--shape needs --random-weights: a shape has no weights of its own")
	case o.shape == "" && o.random:
		return fault.New(fault.Usage, "--random-weights needs --shape")
	case o.shape == "" && o.file == "":
		return fault.New(fault.Usage, "missing FILE, or --shape TEACHER:STUDENT --random-weights")
	}
	if o.shape == "" {
		if err := only(s, "--shape: the weights of a file are measured as they are stored", "quantize"); err != nil {
			return err
		}
	}
	if o.worldSize > 1 && (s.Given("floor") || s.Given("peak-size") || o.profile) {
		return fault.New(fault.Usage, "--floor, --peak-size and --profile measure one device: leave --world-size out")
	}
	if !o.generates() {
		if err := o.checkStudent(s); err != nil {
			return err
		}
		return only(s, "a generation: FILE alone, or --shape of one model", "max-tokens", "prompt", "prompt-tokens")
	}
	if err := o.checkPrompt(s); err != nil {
		return err
	}
	if err := only(s, "a distillation step: --kd TEACHER, or --shape TEACHER:STUDENT", studentNames...); err != nil {
		return err
	}
	return only(s, "a distillation step: --kd TEACHER, or --shape TEACHER:STUDENT", "batch-size", "seq-len", "chunk-rows", "micro-rows",
		"memory", "alpha", "recompute", "teacher-backend", "teacher-gemm", "teacher-experts", "peak-size", "profile", "floor",
		"world-size")
}

func (o *benchOptions) checkPrompt(s cli.Settings) error {
	switch {
	case s.Given("prompt") && o.prompt == "":
		return fault.New(fault.Usage, "--prompt is empty: without it the prompt is random ids, as many as --prompt-tokens")
	case o.prompt != "" && o.shape != "":
		return fault.New(fault.Usage, "--prompt needs a tokenizer, which random weights lack: use --prompt-tokens")
	case o.prompt != "" && s.Given("prompt-tokens"):
		return fault.New(fault.Usage, "--prompt-tokens and --prompt exclude each other: a prompt has the tokens of its text")
	}
	return nil
}

// checkOn refuses what the device cannot do.
func (o *benchOptions) checkOn(dev *opened, s cli.Settings) error {
	if dev.gpu != nil {
		if own := dev.gpu.Arithmetic(); s.Given("teacher-gemm") && o.teacherGEMM == "bf16" && own != "bf16" {
			return fault.New(fault.Unavailable, "not built: --teacher-gemm bf16: teacher and student compute in %s", own)
		}
		return nil
	}
	for _, name := range []string{"teacher-backend", "teacher-gemm", "teacher-experts", "profile"} {
		if s.Given(name) && (name != "profile" || o.profile) {
			return fault.New(fault.Unavailable, "--%s needs a CUDA device", name).WithHint("on a CPU leave it out")
		}
	}
	return nil
}

// checkTeacher refuses a backend that a teacher has nothing for.
func (o *benchOptions) checkTeacher(dev *opened, m benchModels) error {
	if dev.gpu == nil {
		return nil
	}
	situation := teacher.Situation{Asked: teacher.Backend(o.teacherBackend), CUDA: true}
	for _, t := range m.teacher.File.Tensors() {
		situation.Quantised = situation.Quantised || t.DType.IsQuantized()
	}
	_, err := situation.Rule()
	return err
}
