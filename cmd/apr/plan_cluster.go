package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"apr/internal/cli"
	"apr/internal/fault"
	"apr/plan/cluster"
)

// clusterTable are the options of a simulation.
func (p *planOptions) clusterTable() []cli.Option {
	return []cli.Option{
		{Name: "cluster", Path: true, Value: cli.String(&p.cluster, ""),
			Help: "simulate the job and cluster that this YAML file describes, for each number of --gpus"},
		{Name: "max-step-tokens", Value: cli.Int(&p.maxStepTokens, 4<<20).AtLeast(1),
			Help: "with --cluster: the most tokens of a step; a larger batch makes fewer updates, and another student"},
	}
}

// countsOrAll judges a list of counts, or all.
func countsOrAll(s string) error {
	if s == "all" {
		return nil
	}
	_, err := counts(s)
	return err
}

// maxSimulated bounds the GPUs of a simulation.
const maxSimulated = 1 << 20

// counts reads whole numbers with commas between.
func counts(s string) (all []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > maxSimulated {
			return nil, fmt.Errorf("%q is no number of GPUs from 1 to %d", part, maxSimulated)
		}
		if slices.Contains(all, n) {
			return nil, fmt.Errorf("%d stands there twice", n)
		}
		all = append(all, n)
	}
	return all, nil
}

// withoutCluster refuses what only a simulation reads.
func (p *planOptions) withoutCluster(s cli.Settings) error {
	if strings.Contains(p.GPUs, ",") {
		return fault.New(fault.Usage, "--gpus %s: a list of numbers belongs to --cluster FILE", p.GPUs)
	}
	return only(s, "--cluster FILE", "max-step-tokens")
}

// clusterPlan is the JSON of apr plan --cluster.
type clusterPlan struct {
	Cluster string `json:"cluster"`
	cluster.Plan
}

// runCluster simulates.
func (p *planOptions) runCluster(s cli.Settings) (cli.Result, error) {
	for _, v := range s {
		if v.Name != "cluster" && v.Name != "gpus" && v.Name != "max-step-tokens" && s.Changed(v.Name) {
			return nil, fault.New(fault.Usage, "--%s has no effect with --cluster: the file describes the job", v.Name)
		}
	}
	if !s.Given("gpus") || p.GPUs == "all" {
		return nil, fault.New(fault.Usage, "--cluster needs --gpus, the numbers of GPUs to simulate, such as 8,256,4096")
	}
	gpus, err := counts(p.GPUs)
	if err != nil {
		return nil, fault.New(fault.Usage, "--gpus: %w", err)
	}
	f, err := cluster.Read(p.cluster)
	if err != nil {
		return nil, err
	}
	if least := f.Job.RowTokens; float64(p.maxStepTokens) < least {
		return nil, fault.New(fault.Usage, "--max-step-tokens %d is less than a row of %.0f tokens", p.maxStepTokens, least)
	}
	return &clusterPlan{p.cluster, f.Simulate(gpus, float64(p.maxStepTokens))}, nil
}

// Text prints the table.
func (r *clusterPlan) Text(p *cli.Page) {
	var rows [][]string
	for _, w := range r.Rows {
		row := []string{fmt.Sprint(w.GPUs), w.Way, fmt.Sprint(w.Students), dash(w.Teachers),
			cli.Count(int64(w.TokensPerStep)), fmt.Sprintf("%.1f", w.StepMS), fmt.Sprintf("%.1f", w.ExposedMS)}
		if !w.Finishes {
			row = append(row, "never: interruptions leave no progress", "", "", "", "", "", "", "")
			rows = append(rows, row)
			continue
		}
		rows = append(rows, append(row, cli.Count(int64(w.TokensPerSecond)), percent(w.Efficiency), percent(w.Effective),
			fmt.Sprintf("%.1f", w.Hours), cli.Count(int64(w.GPUHours+0.5)), cli.Count(int64(w.LostGPUHours+0.5)),
			cli.Count(int64(w.StoppedGPUHours+0.5)), cli.Bytes(int64(w.StorageBytes))))
	}
	p.Table([]string{">GPUs", "way", ">train", ">teach", ">tokens a step", ">step ms", ">exposed ms", ">tokens/s",
		">efficiency", ">effective", ">hours", ">GPU-hours", ">lost", ">stopped", ">storage"}, rows)
	p.Printf("\n")
	pairs := []string{"one GPU", fmt.Sprintf("%s tokens/s, alone and without interruptions: efficiency 100 %%",
		cli.Count(int64(r.OneGPU)))}
	for _, l := range r.Limits {
		pairs = append(pairs, l.Way, fmt.Sprintf("more than some %s GPUs do not help: %s",
			cli.Count(int64(l.GPUs)), l.Reason))
	}
	pairs = append(pairs, "limit", fmt.Sprintf("a step has at most %s tokens (--max-step-tokens)",
		cli.Count(int64(r.MaxStepTokens))))
	p.Pairs(pairs...)
}

// percent is a share in percent.
func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// dash is a number, or a dash for none.
func dash(n int) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprint(n)
}
