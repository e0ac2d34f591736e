package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/plan"
	"apr/teacher/cache"
)

// cacheTable are the options of a teacher that is run once.
func (o *distillOptions) cacheTable() []cli.Option {
	return []cli.Option{
		{Name: "stage", Value: cli.Enum(&o.Stage, "", "train", "precompute", "generate"), Default: "the whole run", Help: "precompute: run TEACHER over the data and keep what it says in the cache --output; train: train, from --cache without TEACHER's file; generate: let TEACHER answer the prompts --data"},
		{Name: "cache", Path: true, Value: cli.String(&o.Cache, ""), Help: "learn from this cache of a teacher, a folder or s3://bucket/prefix, as --stage precompute makes it; #sha256=… behind it pins its manifest; a TEACHER beside it is only compared with it"},
		{Name: "teacher-logits", Value: cli.Enum(&o.TeacherLogits, distill.LogitsAuto, distill.LogitsAuto, distill.LogitsLive,
			distill.LogitsCache), Help: "over several epochs: live computes the teacher in each; cache computes it in the " +
			"first, keeps hidden states (or draws, with --cache-kind draws) in OUTPUT/teacher-cache and reads them in the " +
			"others; auto does so, and removes them, where that pays"},
		{Name: "cache-kind", Value: cli.Enum(&o.CacheKind, cache.Draws, cache.Draws, cache.Hidden),
			Default: "draws; hidden with --teacher-logits cache",
			Help: "precompute, --teacher-logits cache: draws (about 37 bytes a token, for forward-kl) or hidden states (2 " +
				"bytes a value, every divergence, the live run's bits)"},
		{Name: "draws", Value: cli.Int(&o.Draws, 50).In(1, cache.MaxDraws),
			Help: "of --cache-kind draws: ids drawn at each position, with replacement, from the teacher's distribution at " +
				"--temperature by --seed"},
		{Name: "cache-entropy", Value: cli.OnOff(&o.CacheEntropy, true),
			Help: "of --cache-kind draws: keep the teacher's entropy beside draws (2 bytes a token), so that training " +
				"reports KL; off reports soft_ce"},
		tokenOption(&o.TokenFile),
		{Name: "tls-ca", Path: true, Value: cli.String(&o.TLSCA, ""), Default: "the system's certificates",
			Help: "of TEACHER tcp://HOST:PORT: trust certificates that these, in PEM, have signed, and no others"},
		{Name: "shard", Value: cli.Checked(&o.Shard, "0/1", func(s string) error { _, _, err := parseShard(s); return err }), Help: "precompute: make every N-th shard from shard I on, as one of N processes: I/N, I from 0; unasked by JOB_COMPLETION_INDEX with --shard-count, or by a Slurm array"},
		{Name: "shard-count", Value: cli.Int(&o.ShardCount, 0).AtLeast(1), Default: "from --shard or the Slurm array", Help: "precompute: number of processes that share the shards: the completions of an Indexed Job"},
		{Name: "shard-size", Value: cli.Checked(&o.ShardSize, "64MB", isSize),
			Help: "precompute: size of a shard, about; one smaller than a pass of the teacher makes its passes smaller"},
	}
}

// parseShard reads I/N.
func parseShard(text string) (i, n int, err error) {
	first, second, ok := strings.Cut(text, "/")
	if ok {
		if i, err = strconv.Atoi(first); err == nil {
			n, err = strconv.Atoi(second)
		}
	}
	if !ok || err != nil || n < 1 || i < 0 || i >= n {
		return 0, 0, fmt.Errorf("%q is not I/N with I from 0 to N-1", text)
	}
	return i, n, nil
}

// precomputes reports whether a cache is made instead of a student.
func (o *distillOptions) precomputes() bool { return o.Stage == "precompute" }

// checkCache judges the options of cacheTable that concern each other.
func (o *distillOptions) checkCache(s cli.Settings) error {
	without, alone := "without --stage precompute", "without --stage precompute or --teacher-logits cache"
	keeps := o.precomputes() || o.TeacherLogits == distill.LogitsCache || o.remotely()
	hidden := keeps && !o.remotely() && o.cacheKind(s) == cache.Hidden
	// A value that is the default is asked for all the same: a run of several epochs keeps hidden states, or nothing. One
	// configuration may serve precompute and the run from its cache.
	asked := func(name string) bool {
		return s.Given(name) && !(o.Cache != "" && strings.HasPrefix(s.Origin(name), "config "))
	}
	for option, name := range map[string]string{"cache": o.Cache, "output": o.Output} {
		if option == "cache" || o.precomputes() {
			if err := checkPlace(option, name); err != nil {
				return err
			}
		}
	}
	return refuseIdle([]idle{
		{"cache", o.Cache != "" && o.precomputes(), "with --stage precompute, whose cache is --output"},
		{"cache-kind", asked("cache-kind") && !keeps, alone},
		{"draws", asked("draws") && !keeps, alone},
		{"cache-entropy", asked("cache-entropy") && !keeps, alone},
		{"shard", s.Changed("shard") && !o.precomputes(), without},
		{"shard-count", s.Given("shard-count") && !o.precomputes(), without},
		{"shard-size", asked("shard-size") && !o.precomputes(), without},
		{"draws", s.Given("draws") && hidden, "with --cache-kind hidden"},
		{"teacher-logits", s.Changed("teacher-logits") && o.precomputes(), "with --stage precompute, which trains nothing"},
		{"teacher-logits", s.Changed("teacher-logits") && o.remotely(), "with a teacher in other processes"},
		{"cache", o.Cache != "" && o.remotely(), "with a teacher in other processes"},
		{"token-file", o.TokenFile != "" && !o.remotely(), "without TEACHER tcp://HOST:PORT"},
		{"tls-ca", o.TLSCA != "" && !o.remotely(), "without TEACHER tcp://HOST:PORT"},
		{"teacher-logits", s.Changed("teacher-logits") && o.Cache != "", "with --cache, which is read in every epoch"},
		{"teacher-logits", s.Changed("teacher-logits") && o.Alpha == 0, "with --alpha 0: no loss compares with the teacher"},
		{"cache-entropy", s.Given("cache-entropy") && hidden, "with --cache-kind hidden"},
		{"resume", o.Resume != "" && o.precomputes(), "with --stage precompute: the same command goes on by itself"},
		{"supervise", o.Supervise && o.precomputes(), "with --stage precompute"},
		{"align", s.Changed("align") && o.precomputes(), "with --stage precompute, which reads no student"},
		{"force", o.Force && o.precomputes(), "with --stage precompute: shards that are there are skipped"},
	})
}

// cacheKind is what of the teacher is kept: draws are asked for, where a run keeps it for itself.
func (o *distillOptions) cacheKind(s cli.Settings) string {
	if !o.precomputes() && !s.Given("cache-kind") {
		return cache.Hidden
	}
	return o.CacheKind
}

// cacheJob is what of the teacher is kept.
func (o *distillOptions) cacheJob(e *cli.Env) (distill.CacheJob, error) {
	i, n, err := o.partOf(e.Settings.Given("shard"), e.Getenv)
	if err != nil {
		return distill.CacheJob{}, err
	}
	size := int64(0)
	if e.Settings.Given("shard-size") {
		if size, err = cli.ParseSize(o.ShardSize); err != nil || size == 0 {
			return distill.CacheJob{}, fault.New(fault.Usage, "--shard-size %s: a shard is not empty", o.ShardSize)
		}
	}
	return distill.CacheJob{Kind: o.CacheKind, Draws: o.Draws, Entropy: o.CacheEntropy, Shard: i, Of: n, ShardBytes: size}, err
}

// precomputeResult is the JSON of apr distill --stage precompute.
type precomputeResult struct {
	*distill.Cached
	Backend string `json:"backend"`
}

// runPrecompute makes a teacher's cache.
func runPrecompute(ctx context.Context, e *cli.Env, o *distillOptions) (cli.Result, error) {
	guard := newSentry(e, o.StallTimeout)
	defer guard.Close()
	job, err := o.cacheJob(e)
	if err != nil {
		return nil, err
	}
	if job.Store, err = cacheStore(ctx, e, o.Output); err != nil {
		return nil, err
	}
	c, err := o.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	b := o.backend(guard)
	dev, err := b.openForRun(ctx, e, &c)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := o.unbuiltOn(dev, e); err != nil {
		return nil, err
	}
	show := newDistillDisplay(e, o.LogEvery)
	defer show.close()
	c.Watch = guard.Watchdog
	out, err := distill.Precompute(ctx, c, job, dev.Device, show)
	show.close()
	if out == nil {
		return nil, err
	}
	return precomputeResult{out, dev.Info().Kind}, err
}

// Text prints what was made.
func (r precomputeResult) Text(p *cli.Page) {
	state := fmt.Sprintf("sealed, manifest %.12s…", r.ManifestSHA)
	if !r.Sealed {
		state = fmt.Sprintf("not sealed: %d of %d shards are missing, which other processes make", r.Missing, r.Shards)
	}
	size := cli.Bytes(r.Bytes)
	if r.PerPosition != nil {
		size += fmt.Sprintf(", %.1f bytes a token", *r.PerPosition)
	}
	pairs := []string{"cache", r.Cache, "kind", r.Kind, "state", state, "rows", fmt.Sprintf("%s, with %s tokens in all", cli.Count(int64(r.Rows)), cli.Count(r.Positions)),
		"shards", fmt.Sprintf("%d, %d of them written now", r.Shards, r.Written), "size", size}
	if r.TokensPerSec != nil {
		pairs = append(pairs, "speed", fmt.Sprintf("%.0f tokens/s", *r.TokensPerSec))
	}
	p.Pairs(pairs...)
	if r.Sealed {
		p.Printf("\n")
		p.Pairs("next", "apr distill --stage train --cache "+quoted(r.Cache)+" --student MODEL -d DATA -o OUT")
	}
}

// cacheSizeResult is the JSON of a plan of --stage precompute.
type cacheSizeResult struct {
	*distill.CacheSize
	Backend string `json:"backend"`
}

// planCache says what a cache would take.
func (p *planOptions) planCache(ctx context.Context, e *cli.Env) (cli.Result, error) {
	c, err := p.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	dev, _, err := p.open(e, distill.Group{})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	show := newDistillDisplay(e, p.LogEvery)
	defer show.close()
	s, err := distill.SizeOfCache(ctx, c, dev, false, show)
	show.close()
	if err != nil {
		return nil, err
	}
	return cacheSizeResult{s, dev.Info().Kind}, nil
}

// Text prints both prices.
func (r cacheSizeResult) Text(p *cli.Page) {
	pairs := []string{"rows", fmt.Sprintf("%s, with %s tokens in all", cli.Count(int64(r.Rows)), cli.Count(r.Positions)),
		"draws", fmt.Sprintf("about %s: %d bytes a token", plan.Amount(r.Draws), r.PerDraw),
		"hidden", fmt.Sprintf("%s: %s bytes a token, and %s of the head", plan.Amount(r.Hidden), cli.Count(int64(r.PerHidden)), plan.Amount(r.Head))}
	if r.Available > 0 {
		pairs = append(pairs, "disk", plan.Amount(r.Available)+" are free")
	}
	p.Pairs(pairs...)
}
