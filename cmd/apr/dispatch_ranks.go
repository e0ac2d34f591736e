package main

import (
	"slices"
	"strconv"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/dispatch"
)

// ranksOfMachine judges how many ranks the job has, and returns those of each machine.
func (d *dispatchOptions) ranksOfMachine(s cli.Settings) (int, error) {
	refuse := func(format string, args ...any) (int, error) {
		return 0, fault.New(fault.Usage, format, args...).WithID("E-DISPATCH-050")
	}
	cluster := d.scheduler == "slurm" || d.scheduler == "k8s"
	switch {
	case s.Given("rank") || s.Given("rendezvous"):
		return refuse("--rank and --rendezvous have no effect with dispatch: the ranks of a job find each other")
	case d.machines > 1 && !cluster:
		return 0, fault.New(fault.Unavailable, "not built: --machines %d with --scheduler %s", d.machines, d.scheduler).
			WithHint("--scheduler slurm or k8s, or apr distill --rank --world-size --rendezvous on each machine").
			WithID("E-DISPATCH-050")
	case d.GPUs != "1" && d.WorldSize > 0:
		return refuse("--gpus and --world-size exclude each other: the ranks are --machines × --gpus")
	case d.GPUs != "1" && d.Backend == "cpu":
		return refuse("--gpus %s with --backend cpu: --world-size N starts N ranks on CPUs", d.GPUs)
	case d.GPUs == "all" && cluster:
		return refuse("--gpus all: the job asks %s for a number of GPUs of each machine", d.scheduler)
	case d.machines > 1 && d.GPUs == "1" && d.Backend != "cpu" && d.Backend != "cuda":
		return refuse("--machines %d needs --gpus N, the GPUs of each, --backend cuda for one, or --backend cpu", d.machines)
	case d.WorldSize > 0 && d.WorldSize%d.machines != 0:
		return refuse("--world-size %d is not a multiple of --machines %d", d.WorldSize, d.machines)
	case d.WorldSize > 0:
		return d.WorldSize / d.machines, nil
	}
	if d.GPUs == "all" {
		return 1, nil // of this machine, or that of ssh, which counts
	}
	return strconv.Atoi(d.GPUs)
}

// spread makes of a job one with ranks, whose memory the checks plan.
func (d *dispatchOptions) spread(s cli.Settings, c *distill.Config, job *dispatch.Job) error {
	each, err := d.ranksOfMachine(s)
	if err != nil {
		return err
	}
	all := party{world: each * d.machines, sameBits: d.Deterministic == "world"}
	if d.GPUs == "all" {
		all.world = max(all.world, d.TeacherRanks+1) // at least; the machine with the GPUs counts them
	}
	if err := all.teach(d.TeacherRanks, d.TeacherSplit); err != nil {
		return err
	}
	c.Ranks = all.config()
	if err := c.Validate(); err != nil {
		return err
	}
	if d.GPUs != "1" && d.GPUs != "all" {
		job.GPUs = each
	}
	if d.machines == 1 {
		return nil // the command starts its ranks itself
	}
	job.Machines, job.Ranks = d.machines, each
	job.Command = slices.DeleteFunc(job.Command, func(a string) bool { // the scheduler's variables say it
		return strings.HasPrefix(a, "--gpus=") || strings.HasPrefix(a, "--world-size=") || strings.HasPrefix(a, "--machines=")
	})
	if d.GPUs != "1" && !s.Given("backend") {
		job.Command = append(job.Command, "--backend=cuda")
	}
	return nil
}
