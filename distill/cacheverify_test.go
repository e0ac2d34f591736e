package distill

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/teacher/cache"
)

// madeElsewhere makes the cache of a run's rows with another header than its bytes are of.
func madeElsewhere(t *testing.T, c Config, job CacheJob, header, bytes func(*cache.Header)) string {
	t.Helper()
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	job.Of = 1
	p := &precomputation{c: c, job: job, dev: d}
	if p.in, err = openForCache(context.Background(), c, &quiet{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.in.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.describe(); err != nil {
		t.Fatal(err)
	}
	said := p.header
	header(&said)
	dir := filepath.Join(t.TempDir(), "cache")
	if p.w, err = cache.Create(dir, said, p.keys); err != nil {
		t.Fatal(err)
	}
	if err := writeHead(dir, p.in.teacher, job.Kind == cache.Hidden, "test"); err != nil {
		t.Fatal(err)
	}
	bytes(&p.header)
	if err := p.run(context.Background(), &quiet{}, &Cached{}); err != nil {
		t.Fatal(err)
	}
	if missing, err := SealCache(cache.Folder(dir)); err != nil || len(missing) > 0 {
		t.Fatal(missing, err)
	}
	return dir
}

// TestVerifyCache: what a teacher says again is compared byte for byte on the kind of device that made the cache, and
// by goodness of fit elsewhere; draws of another seed, temperature or teacher are found out.
func TestVerifyCache(t *testing.T) {
	c := smallConfig(t, 60)
	same := func(*cache.Header) {}
	elsewhere := func(h *cache.Header) { h.Device = "cuda sm_90" }
	draws, hidden := CacheJob{Kind: cache.Draws, Draws: 50, Entropy: true}, CacheJob{Kind: cache.Hidden}
	for _, tt := range []struct {
		name          string
		c             Config
		job           CacheJob
		header, bytes func(*cache.Header)
		method, wrong string // empty: it passes
	}{
		{"draws", c, draws, same, same, identical, ""},
		{"hidden states", c, hidden, same, same, identical, ""},
		{"draws of another seed", c, draws, same, func(h *cache.Header) { h.Seed++ }, identical, "sampled rows differ"},
		{"draws from elsewhere", c, draws, elsewhere, same, goodFit, ""},
		{"draws from elsewhere, of another seed", c, draws, elsewhere, func(h *cache.Header) { h.Seed++ }, goodFit, ""},
		{"draws from elsewhere, colder", c, draws, elsewhere, func(h *cache.Header) { h.Temperature = 0.9 }, goodFit, "not from the teacher's distribution"},
		{"draws from elsewhere, warmer", c, draws, elsewhere, func(h *cache.Header) { h.Temperature = 1.1 }, goodFit, "not from the teacher's distribution"},
		{"hidden states from elsewhere", c, hidden, elsewhere, same, goodFit, ""},
	} {
		dir := madeElsewhere(t, tt.c, tt.job, tt.header, tt.bytes)
		r, err := cache.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		d, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		out, err := VerifyCache(context.Background(), tt.c, r, 16, d, &quiet{})
		switch {
		case out == nil:
			t.Errorf("%s: %v", tt.name, err)
		case out.Method != tt.method || out.Passed != (tt.wrong == "") || out.Rows != 16:
			t.Errorf("%s: %+v, fit %+v", tt.name, out, out.Fit)
		case tt.wrong == "" && err != nil || tt.wrong != "" && (fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.wrong)):
			t.Errorf("%s: %v", tt.name, err)
		}
		if out != nil && out.Fit != nil {
			t.Logf("%s: %+v", tt.name, *out.Fit)
		}
		contracttest.Cases(t, 1)
	}
}

// TestVerifyCacheMemory: a pass that does not fit is not answered with other rows or another teacher, which the cache
// decides.
func TestVerifyCacheMemory(t *testing.T) {
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for verifies, want := range map[bool]string{true: "verify the cache where there is more", false: "lower --seq-len"} {
		contracttest.Cases(t, 1)
		p := &precomputation{c: smallConfig(t, 8), job: CacheJob{Kind: cache.Hidden, Of: 1}, dev: d, verifies: verifies}
		if p.in, err = openForCache(context.Background(), p.c, &quiet{}); err != nil {
			t.Fatal(err)
		}
		if err := p.describe(); err != nil {
			t.Fatal(err)
		}
		var f *fault.Error
		err := p.plan(p.header, &p.way, small{d, 1})
		if !errors.As(err, &f) || f.Kind != fault.Memory || !strings.Contains(f.Hint, want) ||
			verifies == strings.Contains(f.Hint, "--seq-len") {
			t.Errorf("verify %v: %v", verifies, err)
		}
		if err := p.in.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFitIsStandardNormal: of draws from the distribution itself both sums have their mean and their variance.
func TestFitIsStandardNormal(t *testing.T) {
	const vocab, n, positions, trials = 40, 50, 30, 200
	state := uint64(1)
	uniform := func() float64 {
		state = state*6364136223846793005 + 1442695040888963407
		return float64(state>>11) / (1 << 53)
	}
	var chi, likelihood [2]float64 // sums of z and z²
	for range trials {
		f := fitter{temperature: 1.5}
		for range positions {
			logits := make([]float32, vocab)
			for i := range logits {
				logits[i] = float32(8 * uniform())
			}
			counts, sum := make([]uint8, vocab), 0.0
			for _, l := range logits {
				sum += math.Exp(float64(l) / 1.5)
			}
			for range n {
				u, at := uniform()*sum, 0
				for u -= math.Exp(float64(logits[0]) / 1.5); u > 0 && at < vocab-1; u -= math.Exp(float64(logits[at]) / 1.5) {
					at++
				}
				counts[at]++
			}
			var drawn []cache.Entry
			for id, k := range counts {
				if k > 0 {
					drawn = append(drawn, cache.Entry{ID: int32(id), Count: k})
				}
			}
			f.add(logits, drawn, n)
		}
		for _, s := range []struct {
			sums  *[2]float64
			tally tally
		}{{&chi, f.chi}, {&likelihood, f.likelihoods}} {
			z := (s.tally.sum - s.tally.mean) / math.Sqrt(s.tally.variance)
			s.sums[0] += z / trials
			s.sums[1] += z * z / trials
		}
	}
	for name, s := range map[string][2]float64{"chi-square": chi, "log-likelihood": likelihood} {
		if !(math.Abs(s[0]) < 0.25) || !(s[1] > 0.7 && s[1] < 1.35) {
			t.Errorf("%s: mean %.3f, mean square %.3f of %d scores", name, s[0], s[1], trials)
		}
		contracttest.Cases(t, 1)
	}
	if nan := math.NaN(); (Fit{0, nan, 0, 0}).ok() || (Fit{0, 0, 0, nan}).ok() || !(Fit{0.02, 1, -0.01, -2}).ok() {
		t.Error("a score that is no number passes")
	}
}
