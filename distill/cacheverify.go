package distill

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"

	"apr/device"
	"apr/internal/fault"
	"apr/teacher/cache"
)

// CacheCheck is what a teacher says once more of sampled rows of its cache.
type CacheCheck struct {
	Rows      int      `json:"rows"` // sampled
	Of        int      `json:"rows_of"`
	Method    string   `json:"method"`    // identical, or goodness of fit
	Identical int      `json:"identical"` // rows whose bytes are the same
	Fit       *Fit     `json:"fit"`       // of draws from another kind of device; else null
	Error     *float64 `json:"error"`     // of hidden states from another kind of device, relative; else null
	Device    string   `json:"device"`
	MadeOn    string   `json:"made_on"`
	Passed    bool     `json:"passed"`
}

// Methods of CacheCheck.
const (
	identical = "identical"
	goodFit   = "goodness of fit"
)

// VerifyCache runs the teacher over sampled rows of a cache, all if samples is 0. On the kind of device that made it
// the bytes have to be the same; on another one draws have to fit the distribution, and hidden states to be within 5 %.
// The fields of c that the header has too must agree with it. Rows that differ are a fault of kind Invalid, beside the
// result.
func VerifyCache(ctx context.Context, c Config, r *cache.Reader, samples int, dev device.Device, obs Observer) (out *CacheCheck, err error) {
	obs.Phase("opening the teacher and the data")
	job := CacheJob{Kind: r.Kind, Draws: r.Draws, Entropy: r.Entropy, Of: 1}
	p := &precomputation{c: c, dev: dev, job: job, verifies: true}
	if p.in, err = openForCache(ctx, c, obs); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.in.close()) }()
	if err := p.describe(); err != nil {
		return nil, err
	}
	if err := r.Same(r.Dir, p.header, "teacher", "teacher_config", "tokenizer", "template", "packing", "seq_len", "vocab"); err != nil {
		return nil, err
	}
	out = &CacheCheck{Of: r.Rows, Device: p.header.Device + ", " + p.header.Algorithms, MadeOn: r.Device + ", " + r.Algorithms, Method: goodFit}
	if out.Device == out.MadeOn {
		out.Method = identical
	}
	p.header = r.Header
	if err := p.planVerified(); err != nil {
		return nil, err
	}
	if err := p.choose(r, samples); err != nil {
		return nil, err
	}
	obs.Phase("loading the teacher")
	if err := p.load(); err != nil {
		return nil, err
	}
	defer p.batch.Free(dev)
	obs.Phase("running the teacher")
	return out, p.compare(ctx, r, out, obs)
}

// choose keeps sampled rows of the data, which the cache must have.
func (p *precomputation) choose(r *cache.Reader, samples int) error {
	missing := 0
	for _, k := range p.keys {
		if !r.Has(k) {
			missing++
		}
	}
	if missing > 0 {
		return fault.In(fault.Invalid, r.Dir, "lacks %d of the %d rows of the data: it was made from other data, or other text was held out", missing, len(p.keys)).
			WithHint("give --data, --eval-data and --val-fraction as for --stage precompute").WithID("E-DISTILL-114")
	}
	if samples == 0 || samples >= len(p.keys) {
		return nil
	}
	var keys []cache.Key
	var at []int
	for _, i := range rand.New(rand.NewPCG(uint64(len(p.keys)), uint64(samples))).Perm(len(p.keys))[:samples] {
		keys, at = append(keys, p.keys[i]), append(at, p.at[i])
	}
	p.keys, p.at = keys, at
	return nil
}

// compare runs the teacher over the chosen rows and judges what the cache has of them.
func (p *precomputation) compare(ctx context.Context, r *cache.Reader, out *CacheCheck, obs Observer) error {
	var chi, likelihood tally
	var difference, size float64
	for lo := 0; lo < len(p.keys); lo += p.header.PassRows {
		if ctx.Err() != nil {
			return fault.New(fault.Stopped, "stopped after %d of %d rows", lo, len(p.keys))
		}
		hi := min(lo+p.header.PassRows, len(p.keys))
		err := p.onePass(lo, hi, func(keys []cache.Key) error {
			switch {
			case out.Method == identical:
				return p.sameRows(r, keys, out)
			case r.Kind == cache.Draws:
				return p.fitRows(r, keys, &chi, &likelihood)
			}
			return p.errorOfRows(r, keys, &difference, &size)
		})
		if err != nil {
			return err
		}
		out.Rows = hi
		obs.Advance(hi, len(p.keys))
	}
	switch {
	case out.Method == identical:
		out.Passed = out.Identical == out.Rows
	case r.Kind == cache.Draws:
		out.Fit = fitOf(chi, likelihood, out.Rows*p.header.SeqLen, p.header.Draws)
		out.Passed = out.Fit.ok()
	default:
		e := math.Sqrt(difference / size)
		out.Error, out.Passed = &e, e <= maxError
	}
	return out.judge(r.Dir)
}

// sameRows counts the rows whose bytes the teacher gives again.
func (p *precomputation) sameRows(r *cache.Reader, keys []cache.Key, out *CacheCheck) error {
	again, err := p.encode(keys)
	if err != nil {
		return err
	}
	for i, k := range keys {
		kept, err := r.Row(k)
		if err != nil {
			return err
		}
		if bytes.Equal(kept, again[i]) {
			out.Identical++
		}
	}
	return nil
}

// judge is the fault of a cache that its teacher would not have made.
func (o *CacheCheck) judge(dir string) error {
	if o.Passed {
		return nil
	}
	err := fault.In(fault.Invalid, dir, "%d of %d sampled rows differ from what the teacher says on the same kind of device", o.Rows-o.Identical, o.Rows)
	switch {
	case o.Fit != nil:
		err = fault.In(fault.Invalid, dir, "the draws of %d sampled rows are not from the teacher's distribution: chi-square divergence %.3g, %.1f standard errors beyond %g; log-probability %+.3g nats, %.1f beyond %g",
			o.Rows, o.Fit.Divergence, o.Fit.DivergenceScore, maxDivergence, o.Fit.Shift, o.Fit.ShiftScore, maxShift)
	case o.Error != nil:
		err = fault.In(fault.Invalid, dir, "the hidden states of %d sampled rows differ from the teacher's by %.3g of their size, more than %g", o.Rows, *o.Error, maxError)
	}
	return err.WithHint("do not train from it; make it again").WithID("E-DISTILL-116")
}
