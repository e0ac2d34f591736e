package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"apr/device"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/plan"
)

// group returns the ranks that are planned: as many as apr distill would start or join with these flags. --memory
// describes GPUs of another machine, so this machine's GPUs are not counted then.
func (p *planOptions) group(e *cli.Env) (distill.Group, error) {
	g := distill.Group{World: 1, SameBits: p.Deterministic == "world"}
	elsewhere := p.memory > 0 && p.GPUs != "all" && (p.Backend == "auto" || p.Backend == "cuda")
	switch {
	case p.GPUs == "1":
	case p.WorldSize > 0 || p.Rank >= 0 || !elsewhere:
		if err := p.takeGPUs(e); err != nil {
			return g, err
		}
	default:
		p.WorldSize, _ = strconv.Atoi(p.GPUs) // checked when the option was read
		p.Backend = "cuda"
	}
	if p.WorldSize == 0 && (p.Rank >= 0 || p.Rendezvous != "") || p.WorldSize > 0 && p.Rank >= p.WorldSize {
		return g, fault.New(fault.Usage, "--rank and --rendezvous need --world-size, the number of all ranks").
			WithHint("a plan is of all ranks: --world-size or --gpus is enough%s", p.saysOfRanks()).WithID("E-RANKS-030")
	}
	all := party{world: max(1, p.WorldSize)}
	if err := all.teach(p.TeacherRanks, p.TeacherSplit); err != nil {
		return g, err
	}
	if all.teachers > 0 && p.shape != "" {
		return g, fault.New(fault.Unavailable, "not built yet: --shape with --teacher-ranks").
			WithHint("name files, or leave it out: then the plan is of ranks that each have the teacher").WithID("E-RANKS-045")
	}
	g.World, g.Teachers, g.Split = all.learners(), all.teachers, all.split
	if p.Backend == "cpu" && p.Rank < 0 && g.All() > 1 { // they share this machine's processors
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/g.All()))
	}
	return g, nil
}

// fitsHere refuses more ranks of this machine than it has GPUs.
func (p *planOptions) fitsHere() error {
	if p.opened == nil || p.opened.gpu == nil || p.WorldSize < 2 || p.Rank >= 0 || p.memory > 0 {
		return nil
	}
	n, err := p.opened.gpu.Devices()
	if err != nil || p.Device+p.WorldSize <= n {
		return err
	}
	return fault.New(fault.Unavailable, "%d ranks from GPU %d on: this machine has %d", p.WorldSize, p.Device, n).
		WithHint("--memory plans for GPUs that are elsewhere").WithID("E-RANKS-036")
}

// shareOf is what a rank of a GPU keeps of the training state; ranks of CPUs keep all of it.
func shareOf(g distill.Group) (s device.Share) {
	if g.World > 1 {
		s = device.Share{Rank: 0, World: g.World}
	}
	return s
}

// ranksTable writes the ranks, those that are alike in one line.
func ranksTable(p *cli.Page, r *distill.RanksPlan) {
	var rows [][]string
	for at := 0; at < len(r.Ranks); {
		first := r.Ranks[at]
		n := 1
		for at+n < len(r.Ranks) && r.Ranks[at+n].Rows == first.Rows && r.Ranks[at+n].Memory == first.Memory &&
			r.Ranks[at+n].Exchange == first.Exchange {
			n++
		}
		last := r.Ranks[at+n-1]
		rows = append(rows, []string{through(first.Rank, last.Rank), through(first.FirstRow, last.FirstRow+last.Rows-1),
			strconv.Itoa(first.Rows), cli.Count(first.Memory.Total), plan.Amount(first.Memory.Total),
			plan.Amount(first.Memory.Optimizer), plan.Amount(first.Memory.Gradients),
			plan.Amount(int64(first.Exchange.Gradients)), plan.Amount(int64(first.Exchange.Weights))})
		at += n
	}
	p.Printf("\n")
	p.Table([]string{"ranks", "rows", ">each", ">bytes of one", ">memory", ">optimizer", ">gradients", ">sends: gradients",
		">weights"}, rows)
}

// through writes the numbers from lo to hi.
func through(lo, hi int) string {
	switch {
	case hi < lo:
		return "none"
	case hi == lo:
		return strconv.Itoa(lo)
	}
	return fmt.Sprintf("%d–%d", lo, hi)
}

// ranksLines are what a plan says of ranks beside the table.
func ranksLines(r *distill.RanksPlan, host bool) []string {
	text := fmt.Sprintf("%d, which share the %d rows of a step", r.World, r.Rows)
	if r.Parts > 0 {
		text += fmt.Sprintf("; a step has %d parts, of which each computes %d", r.Parts, r.Parts/r.World)
	}
	lines := []string{"ranks", text}
	if least := slices.MinFunc(r.Ranks, func(a, b distill.RankPlan) int { return a.Rows - b.Rows }); host {
		sum := int64(0)
		for _, k := range r.Ranks {
			sum += k.Memory.Total + k.Exchange.Host
		}
		const together = "together %s of this machine, if all are here; of it %s each for gradients on their way"
		lines = append(lines, "", fmt.Sprintf(together, plan.Amount(sum), plan.Amount(least.Exchange.Host)))
	} else if r.Parts > 0 && r.World > 2 {
		lines = append(lines, "", "gradients of the others arrive in memory that activations had before")
	} else {
		lines = append(lines, "", "gradients and weights travel where they lie: no copies")
	}
	return append(lines, "", "not counted: "+r.NotCounted)
}
