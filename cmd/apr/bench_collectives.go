package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"apr/bench"
	"apr/device"
	"apr/internal/cli"
	"apr/internal/fault"
)

// collectiveNames are the options of --collectives alone.
var collectiveNames = []string{"communicator", "sizes"}

// collectiveOptions are those of --collectives.
func (o *benchOptions) collectiveOptions() []cli.Option {
	return []cli.Option{
		{Name: "collectives", Value: cli.Bool(&o.collectives, false),
			Help: "measure latency and bandwidth of the collectives of ranks on this machine"},
		{Name: "communicator", Value: cli.Enum(&o.communicator, "all", "all", "local", "sockets", "nccl"),
			Help: "with --collectives: goroutines of one process, TCP, or NCCL between GPUs; all = those there are"},
		{Name: "sizes", Value: cli.Checked(&o.sizes, "4KiB,64KiB,1MiB,16MiB", checkSizes),
			Help: "with --collectives: bytes of float32 that are exchanged, with commas between"},
	}
}

// largestCollective bounds the bytes of an array.
const largestCollective = 4 << 30

// readSizes reads sizes with commas between, each a multiple of 4 bytes.
func readSizes(text string) (all []int64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := cli.ParseSize(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if n < 4 || n > largestCollective || n%4 != 0 {
			return nil, fmt.Errorf("%q is not a multiple of 4 bytes up to 4GiB", part)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func checkSizes(text string) error {
	_, err := readSizes(text)
	return err
}

// collectivesResult is the JSON of apr bench --collectives.
type collectivesResult struct {
	Ranks int                   `json:"ranks"`
	Rows  []bench.CollectiveRow `json:"collectives"`
	Left  []string              `json:"not_measured"` // communicators, and why
}

// mostMeasured bounds the ranks.
const mostMeasured = 64

// perCollective is how long a size of an operation is measured.
const perCollective = 200 * time.Millisecond

// runCollectives measures.
func (o *benchOptions) runCollectives(ctx context.Context, e *cli.Env) (cli.Result, error) {
	own := append([]string{"collectives", "world-size"}, collectiveNames...)
	for _, v := range e.Settings {
		if !slices.Contains(own, v.Name) && e.Settings.Changed(v.Name) {
			return nil, fault.New(fault.Usage, "--%s has no effect with --collectives", v.Name)
		}
	}
	sizes, err := readSizes(o.sizes)
	if err != nil {
		return nil, fault.New(fault.Usage, "--sizes: %w", err)
	}
	switch o.ranks = o.worldSize; {
	case !e.Settings.Given("world-size"):
		o.ranks = 2
	case o.ranks < 2 || o.ranks > mostMeasured:
		return nil, fault.New(fault.Usage, "--collectives with --world-size %d: from 2 to %d ranks", o.ranks, mostMeasured)
	}
	r := &collectivesResult{Ranks: o.ranks, Rows: []bench.CollectiveRow{}, Left: []string{}}
	groups, err := o.groups(ctx, e, r)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, g := range groups {
			g.Close()
		}
	}()
	total := 0
	for _, g := range groups {
		total += len(g.Operations)*len(sizes) - len(sizes) + 1
	}
	bar := e.Progress("measuring", int64(total), cli.Count)
	defer bar.Close()
	for _, g := range groups {
		rows, err := bench.MeasureCollectives(ctx, g, sizes, perCollective, func() { bar.Add(1) })
		if err != nil {
			return nil, fault.New(fault.Inference, "%s with %d ranks", g.Name, o.ranks).Because(err)
		}
		r.Rows = append(r.Rows, rows...)
	}
	return r, nil
}

// groups makes the communicators that are asked for. With all, one that is not there is said and left out.
func (o *benchOptions) groups(ctx context.Context, e *cli.Env, r *collectivesResult) (all []*bench.Communicator,
	err error) {
	for _, c := range []struct {
		name string
		make func() (*bench.Communicator, error)
	}{
		{"local", func() (*bench.Communicator, error) { return bench.LocalGroup(o.ranks), nil }},
		{"sockets", func() (*bench.Communicator, error) { return bench.SocketsGroup(ctx, o.ranks) }},
		{"nccl", func() (*bench.Communicator, error) { return o.ncclGroup(e) }},
	} {
		if o.communicator != "all" && o.communicator != c.name {
			continue
		}
		g, err := c.make()
		switch {
		case err == nil:
			all = append(all, g)
		case o.communicator == "all" && fault.KindOf(err) == fault.Unavailable:
			r.Left = append(r.Left, c.name+": "+err.Error())
		default:
			for _, g := range all {
				g.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// ncclGroup are ranks that are goroutines of this process, each with a GPU of its own.
func (o *benchOptions) ncclGroup(e *cli.Env) (g *bench.Communicator, err error) {
	n, why := gpuCount()
	if n < o.ranks {
		err := fault.New(fault.Unavailable, "%d ranks need as many GPUs: this machine has %d", o.ranks, n)
		if why != nil {
			err = err.Because(why)
		}
		return nil, err
	}
	var all []device.Joiner
	defer func() {
		if err != nil {
			for _, d := range all {
				err = errors.Join(err, d.Close())
			}
		}
	}()
	for rank := range o.ranks {
		d, err := (backend{name: "cuda", dtype: "auto", index: rank}).cuda(e)
		if err != nil {
			return nil, err
		}
		if all = append(all, d); rank == 0 {
			if err := d.CanJoin(); err != nil {
				return nil, err
			}
		}
	}
	return bench.DeviceGroup(all)
}

// Text prints the table.
func (r *collectivesResult) Text(p *cli.Page) {
	var rows [][]string
	for _, w := range r.Rows {
		size, algorithm, bus := "–", "–", "–"
		if w.Bytes > 0 {
			size = cli.Bytes(w.Bytes)
			algorithm, bus = fmt.Sprintf("%.3f", w.AlgorithmGB), fmt.Sprintf("%.3f", w.BusGB)
		}
		rows = append(rows, []string{w.Communicator, w.Operation, size, fmt.Sprintf("%.1f", w.MedianUS),
			fmt.Sprintf("%.1f", w.LeastUS), algorithm, bus, fmt.Sprint(w.Calls), w.Algorithm, w.Topology})
	}
	p.Table([]string{"communicator", "operation", ">bytes", ">median µs", ">least µs", ">GB/s", ">bus GB/s", ">calls",
		"algorithm", "ranks are"}, rows)
	p.Printf("\n")
	pairs := []string{"ranks", fmt.Sprint(r.Ranks),
		"bus GB/s", "bytes that each rank has to send or receive, over time: " +
			"sum 2(n-1)/n of the array, scatter and gather (n-1)/n"}
	for _, left := range r.Left {
		pairs = append(pairs, "not measured", left)
	}
	p.Pairs(pairs...)
}
