package main

import (
	"strconv"

	"apr/device/cuda"
	"apr/internal/cli"
	"apr/internal/fault"
)

// gpuCount counts the GPUs that the CUDA driver shows; tests replace it. Without a driver there are none.
var gpuCount = func() (int, error) {
	names, err := cuda.DeviceNames()
	return len(names), err
}

// takeDevice is the GPU of a rank that another one has started.
func (o *distillOptions) takeDevice(e *cli.Env) error {
	v := e.Getenv(deviceVariable)
	if v == "" || e.Getenv(startedVariable) == "" {
		return nil
	}
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return fault.In(fault.Usage, deviceVariable, "%q is not a whole number from 0 up", v)
	}
	if o.Backend == "auto" && o.GPUs == "1" {
		if gpus, _ := gpuCount(); gpus == 0 { // the ranks train on the CPU, which has one device
			return nil
		}
	}
	if o.Backend != "cpu" {
		o.Device = int(n)
	}
	return nil
}

// gpusHere are the GPUs of this machine from --device on. The error says why there are none.
func (o *distillOptions) gpusHere() (int, error) {
	n, err := gpuCount()
	return max(0, n-o.Device), err
}

// takeGPUs makes --gpus what it stands for: as many ranks of this machine, each on a GPU of its own, from --device on.
// all on a machine with one GPU is one process without ranks.
func (o *distillOptions) takeGPUs(e *cli.Env) error {
	if o.GPUs == "1" {
		return nil
	}
	switch {
	case o.Rank >= 0 || o.WorldSize > 0 || o.Rendezvous != "":
		if e.Getenv(startedVariable) != "" {
			o.Backend = "cuda"
			return nil // rank 0 has counted
		}
		return fault.New(fault.Usage, "--gpus %s starts the ranks of this machine: --rank, --world-size and --rendezvous "+
			"exclude it", o.GPUs).WithHint("leave out --gpus, or these:%s", o.saysOfRanks()).WithID("E-RANKS-040")
	case o.Backend == "cpu":
		return fault.New(fault.Usage, "--gpus %s with --backend cpu", o.GPUs).
			WithHint("--world-size N starts N ranks on the CPU").WithID("E-RANKS-041")
	case o.Backend != "auto" && o.Backend != "cuda":
		return fault.New(fault.Unavailable, "not built: --gpus %s with --backend %s", o.GPUs, o.Backend).
			WithID("E-RANKS-041")
	}
	n, why := o.gpusHere()
	want := n
	if o.GPUs != "all" {
		want, _ = strconv.Atoi(o.GPUs) // checked when the option was read
	}
	if n == 0 || want > n {
		err := fault.New(fault.Unavailable, "--gpus %s: this machine has %s", o.GPUs, gpusFrom(n, o.Device))
		if why != nil {
			err = err.Because(why)
		}
		return err.WithHint("apr gpu lists them; --backend cpu --world-size N trains with N processes on the CPU").
			WithID("E-RANKS-042")
	}
	o.Backend = "cuda"
	if want > 1 {
		o.WorldSize = want
	}
	return nil
}

// gpusFrom says how many there are.
func gpusFrom(n, first int) string {
	text := strconv.Itoa(n) + " GPUs"
	if n == 1 {
		text = "1 GPU"
	}
	if first > 0 {
		text += " from number " + strconv.Itoa(first) + " on"
	}
	return text
}
