package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/dispatch"
	"apr/s3"
)

// runParts dispatches --stage precompute: as an array of Slurm or an Indexed Job, whose processes share the shards and
// find their number in their environment.
func (d *dispatchOptions) runParts(ctx context.Context, e *cli.Env, job dispatch.Job) (cli.Result, error) {
	if err := d.checkParts(e.Settings); err != nil {
		return nil, err
	}
	c, err := d.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	job.RunDir, job.Parts = d.Output, d.ShardCount
	job.Command, job.Env = d.argv(job.Command[0], d.Output, e)
	job.Command = slices.DeleteFunc(job.Command, func(a string) bool { // a stopped part is started again as it is; an array says how many there are
		return a == "--supervise" || d.scheduler == "slurm" && strings.HasPrefix(a, "--shard-count=")
	})
	job.Needs = d.needs()
	if err := job.Check(); err != nil {
		return nil, err
	}
	record, err := d.record(job)
	if err != nil {
		return nil, err
	}
	r := &dispatchResult{dispatchRecord: record, DryRun: d.dryRun}
	if err := d.render(&job, r); err != nil {
		return nil, err
	}
	if err := d.inspectParts(ctx, e, c, &job, r); err != nil {
		return r, err
	}
	r.expectInputs(&job)
	if err := d.render(&job, r); err != nil || d.dryRun {
		return r, err
	}
	return d.startElsewhere(ctx, e, job, r)
}

// checkParts judges the options of a precomputation elsewhere.
func (d *dispatchOptions) checkParts(s cli.Settings) error {
	switch {
	case d.scheduler != "slurm" && d.scheduler != "k8s":
		return fault.New(fault.Unavailable, "not built: --stage precompute with --scheduler %s", d.scheduler).WithHint("--scheduler slurm or k8s, or apr distill --stage precompute")
	case d.Output == "":
		return fault.New(fault.Usage, "--stage precompute needs --output, the folder of the cache there, or s3://bucket/prefix")
	case s.Given("shard"):
		return fault.New(fault.Usage, "--shard has no effect with dispatch: the scheduler numbers the processes; --shard-count N says how many")
	case d.kind == kindJobSet:
		return fault.New(fault.Usage, "--kind jobset with --stage precompute: processes that do not meet need no set").
			WithHint("--kind job")
	case d.machines > 1:
		return fault.New(fault.Usage, "--machines has no effect with --stage precompute").
			WithHint("--shard-count says how many processes there are")
	case d.ShardCount == 0:
		return fault.New(fault.Usage, "--stage precompute needs --shard-count, the number of processes to start")
	}
	return nil
}

// inspectParts checks what can be known before the start, cheap things first; the first failure ends it.
func (d *dispatchOptions) inspectParts(ctx context.Context, e *cli.Env, c distill.Config, job *dispatch.Job, r *dispatchResult) error {
	i := &inspection{dispatchOptions: d, e: e, c: c, job: job, r: r, show: newDistillDisplay(e, d.LogEvery)}
	defer i.show.close()
	var size *distill.CacheSize
	for _, check := range []struct {
		id string
		do func() (verdict, error)
	}{
		{"scheduler", func() (verdict, error) { return i.checkScheduler(ctx) }},
		{"place", i.checkPlace},
		{"teacher_and_data", func() (v verdict, err error) { size, v, err = i.checkRows(ctx); return v, err }},
		{"shards", func() (verdict, error) { return i.checkShards(size) }},
		{"disk", func() (verdict, error) { return i.checkCacheDisk(size) }},
	} {
		start := time.Now()
		v, err := check.do()
		i.show.close()
		if err != nil {
			v = verdict{"failed", err.Error()}
		}
		i.tell(dispatchCheck{check.id, v.status, v.detail, time.Since(start).Seconds()})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPlace looks whether the place of the cache can be named.
func (i *inspection) checkPlace() (verdict, error) {
	if !s3.Is(i.Output) {
		return ok("the folder %s there: all processes have to see it", i.Output)
	}
	if _, err := s3.Parse(i.Output, func(string) string { return "" }); err != nil {
		return verdict{}, err
	}
	if i.scheduler == "k8s" && i.secret == "" {
		return other("warning", "%s: without --secret the pods need credentials from elsewhere", i.Output)
	}
	return ok("%s; credentials are the processes' own business: none is passed on", i.Output)
}

// checkRows opens the teacher and the data and says what the cache will be.
func (i *inspection) checkRows(ctx context.Context) (*distill.CacheSize, verdict, error) {
	dev, _, err := i.planOptions.open(i.e, distill.Group{})
	if err != nil {
		return nil, verdict{}, err
	}
	defer dev.Close()
	size, err := distill.SizeOfCache(ctx, i.c, dev, true, i.show)
	if err != nil {
		return nil, verdict{}, err
	}
	i.r.Inputs = size.Inputs
	v, err := ok("%s rows of %s tokens in all; about %s", cli.Count(int64(size.Rows)), cli.Count(size.Positions), cli.Bytes(i.cacheBytes(size)))
	return size, v, err
}

// cacheBytes is the size of the kind that was asked for.
func (i *inspection) cacheBytes(s *distill.CacheSize) int64 {
	if i.CacheKind == "hidden" {
		return s.Hidden
	}
	return s.Draws
}

// checkShards looks whether every process has a shard.
func (i *inspection) checkShards(s *distill.CacheSize) (verdict, error) {
	each, err := cli.ParseSize(i.ShardSize)
	if err != nil || each == 0 {
		return verdict{}, fault.New(fault.Usage, "--shard-size %s: a shard is not empty", i.ShardSize)
	}
	shards := int64(math.Ceil(float64(i.cacheBytes(s)) / float64(each)))
	what := fmt.Sprintf("about %s shards for %d processes", cli.Count(shards), i.ShardCount)
	if shards < int64(i.ShardCount) {
		return other("warning", "%s: some will have nothing to do; a smaller --shard-size makes more shards", what)
	}
	return ok("%s", what)
}

// checkCacheDisk looks for room. Clusters share their disks; volumes and buckets are not seen from here.
func (i *inspection) checkCacheDisk(s *distill.CacheSize) (verdict, error) {
	need := i.cacheBytes(s)
	if i.e.Settings.Given("min-disk") {
		least, err := cli.ParseSize(i.minDisk)
		if err != nil {
			return verdict{}, fault.New(fault.Usage, "--min-disk: %v", err)
		}
		need = max(need, least)
	}
	switch {
	case s3.Is(i.Output) || i.scheduler == "k8s":
		return other("skipped", "%s needed; the place is not seen from here", cli.Bytes(need))
	case s.Available == 0:
		return other("warning", "%s needed; how much is free is not known", cli.Bytes(need))
	case s.Available < need:
		return verdict{}, fault.In(fault.IO, i.Output, "%s needed, %s free", cli.Bytes(need), cli.Bytes(s.Available)).WithHint("free some, or choose another --output").WithID("E-DISPATCH-030")
	}
	return ok("%s needed; %s free", cli.Bytes(need), cli.Bytes(s.Available))
}
