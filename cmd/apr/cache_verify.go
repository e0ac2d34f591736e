package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/teacher/cache"
)

// cacheVerifyOptions are those of apr cache verify: which rows, by which teacher. What the cache's header says of them
// is not asked for again.
type cacheVerifyOptions struct {
	*distillOptions
	path    string
	samples int
}

// ofRows are the options of distill that verify has too: they decide the rows, and where the teacher runs.
var ofRows = []string{"teacher", "data", "dataset", "text-field", "messages-field", "data-cache", "chat-template", "assistant-only", "eval-data", "val-fraction",
	"backend", "dtype", "device", "teacher-backend", "teacher-cache", "kernel-log"}

// cacheAdvice is what to do about options of --stage precompute that verify has not.
var cacheAdvice = advise(map[string]string{
	"it decides no row of the cache: leave it out": "stage output shard shard-count shard-size",
	"the cache's header has it: leave it out": "seq-len packing no-packing document-mask temperature draws seed " +
		"cache-kind cache-entropy",
})

func cacheVerifyCommand() *cli.Command {
	o := &cacheVerifyOptions{distillOptions: &distillOptions{}}
	return &cli.Command{
		Name: "verify", Short: "Check all bytes of a teacher's cache; with TEACHER, recompute sampled rows",
		Long: "Compares every row with its checksum and every file with its hash. With TEACHER and --data it also runs the teacher over sampled\n" +
			"rows. On the kind of device that made the cache their bytes must be the same. Elsewhere draws must fit the teacher's distribution\n" +
			"(docs/cache.md has the limits) and hidden states must be within 5 % of the teacher's. Exit 5 if not.",
		Example: "apr cache verify CACHE\napr cache verify CACHE TEACHER -d data.jsonl --samples 32",
		Exits:   append(slices.Clone(cacheExits), fault.Load, fault.Inference, fault.Network, fault.HTTP404, fault.Memory),
		Options: o.table(), Advice: cacheAdvice,
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return o.run(ctx, e) },
	}
}

func (o *cacheVerifyOptions) table() []cli.Option {
	t := []cli.Option{cachePathOption(&o.path), {Name: "samples", Value: cli.Int(&o.samples, 8).AtLeast(0), Help: "rows to recompute with TEACHER; 0 = all"}}
	for _, opt := range o.distillOptions.table() {
		if slices.Contains(ofRows, opt.Name) {
			opt.Group, opt.First = "", false
			if opt.Name == "teacher" {
				opt.Default, opt.Help = "none: bytes alone are checked", "model that made the cache"
			}
			t = append(t, opt)
		}
	}
	return t
}

// cacheVerifyResult is the JSON of apr cache verify.
type cacheVerifyResult struct {
	Cache   string              `json:"cache"`
	SHA256  string              `json:"sha256"`
	Shards  int                 `json:"shards"`
	Rows    int                 `json:"rows"`
	Bytes   int64               `json:"size_bytes"`
	Teacher *distill.CacheCheck `json:"teacher"` // null: not asked for
	Passed  bool                `json:"passed"`
}

func (o *cacheVerifyOptions) run(ctx context.Context, e *cli.Env) (cli.Result, error) {
	if err := o.checkVerify(e.Settings); err != nil {
		return nil, err
	}
	dir, err := localCache(ctx, e, o.path)
	if err != nil {
		return nil, err
	}
	reader, err := cache.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := reader.Verify(); err != nil {
		return nil, err
	}
	r := cacheVerifyResult{Cache: o.path, SHA256: reader.SHA256, Shards: reader.Shards(), Rows: reader.Rows, Bytes: reader.Bytes}
	if o.Teacher != "" {
		r.Teacher, err = o.recompute(ctx, e, reader)
	}
	if err != nil && r.Teacher == nil {
		return nil, err
	}
	r.Passed = err == nil
	return r, err
}

// checkVerify refuses options that need a teacher where there is none, and a teacher without rows.
func (o *cacheVerifyOptions) checkVerify(s cli.Settings) error {
	if o.Teacher != "" {
		if len(o.Data) == 0 && o.Dataset == "" {
			return fault.New(fault.Usage, "missing --data PATH or --dataset DIR: a cache has no ids, only what TEACHER "+
				"says of them").WithHint("give --data or --dataset, and what --stage precompute had of --eval-data, " +
				"--val-fraction, --text-field, --messages-field, --chat-template and --assistant-only; the cache's header " +
				"has the others")
		}
		return nil
	}
	for _, name := range append([]string{"samples"}, ofRows...) {
		if s.Given(name) {
			return fault.New(fault.Usage, "--%s has no effect without TEACHER", name)
		}
	}
	return nil
}

// recompute runs the teacher over sampled rows.
func (o *cacheVerifyOptions) recompute(ctx context.Context, e *cli.Env, reader *cache.Reader) (_ *distill.CacheCheck, err error) {
	d := &distillOptions{}
	settings, err := cli.Restore(d.table(), o.restored(e.Settings, reader.Header))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.check(settings), d.unbuilt(settings)); err != nil {
		return nil, err
	}
	c, err := d.config(settings)
	if err != nil {
		return nil, err
	}
	c.AllowKeys = e.AllowConfigKeys
	if err := bringInputs(ctx, e, &c); err != nil {
		return nil, err
	}
	b := backend{name: d.Backend, dtype: d.DType, index: d.Device, expand: d.keepExpanded(), kernelLog: d.KernelLog}
	dev, err := b.openForRun(ctx, e, &c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	show := newDistillDisplay(e, 0)
	defer show.close()
	return distill.VerifyCache(ctx, c, reader, o.samples, dev.Device, show)
}

// restored are the settings of the precomputation: those that were given, and those of the cache's header.
func (o *cacheVerifyOptions) restored(s cli.Settings, h cache.Header) map[string]cli.Setting {
	all := givenOf(s, ofRows)
	of := map[string]any{"stage": "precompute", "output": "unused", "seq_len": h.SeqLen,
		"packing": strings.HasPrefix(h.Packing, "packed"), "document_mask": strings.HasSuffix(h.Packing, "documents apart")}
	if h.Kind == cache.Draws {
		of["temperature"] = h.Temperature
	}
	for key, v := range of {
		all[key] = cli.Setting{Value: v, Origin: "the cache"}
	}
	return all
}

// givenOf returns the settings of these options that were given, as a record has them.
func givenOf(s cli.Settings, names []string) map[string]cli.Setting {
	all := map[string]cli.Setting{}
	for _, name := range names {
		if !s.Given(name) {
			continue
		}
		v := s.Value(name)
		if list, ok := v.([]string); ok {
			var elements []any
			for _, e := range list {
				elements = append(elements, e)
			}
			v = elements
		}
		all[strings.ReplaceAll(name, "-", "_")] = cli.Setting{Value: v, Origin: s.Origin(name)}
	}
	return all
}

// Text prints what was compared.
func (r cacheVerifyResult) Text(p *cli.Page) {
	p.Pairs("cache", r.Cache, "bytes", fmt.Sprintf("as they were written: %s, %s, %s",
		plural(r.Shards, "shard"), plural(r.Rows, "row"), cli.Bytes(r.Bytes)),
		"sha256", r.SHA256)
	t := r.Teacher
	if t == nil {
		return
	}
	found := fmt.Sprintf("%d of %d sampled rows are identical", t.Identical, t.Rows)
	switch {
	case t.Fit != nil:
		found = fmt.Sprintf("%d sampled rows fit: chi-square divergence %.2g, log-probability %+.2g nats a draw", t.Rows, t.Fit.Divergence, t.Fit.Shift)
	case t.Error != nil:
		found = fmt.Sprintf("%d sampled rows: relative error %.3g", t.Rows, *t.Error)
	}
	p.Pairs("teacher", found, "device", t.Device, "made on", t.MadeOn)
}
