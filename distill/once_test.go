package distill

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/teacher/cache"
)

// threeEpochs is a run of three epochs over few rows, in shards of a few.
func threeEpochs(t *testing.T, job CacheJob) Config {
	t.Helper()
	c := smallConfig(t, 12)
	c.Steps, c.CheckpointEvery, c.ValFraction = 0, 2, 0
	c.Epochs = 3
	c.TeacherLogits, c.LogitsJob = LogitsCache, job
	return c
}

// jobs are what a run can keep of its teacher.
var jobs = map[string]CacheJob{
	"hidden": {Kind: cache.Hidden, ShardBytes: 1 << 17},
	"draws":  {Kind: cache.Draws, Draws: 50, Entropy: true, ShardBytes: 1 << 12},
}

// withoutOnce is the run that gives the same student without a cache of its own: its teacher is live, or a cache of the
// same draws made before.
func withoutOnce(t *testing.T, c Config) Config {
	t.Helper()
	other := in(t, c)
	other.TeacherLogits = LogitsLive
	if c.LogitsJob.Kind == cache.Draws {
		dir, _ := cacheOf(t, c, c.LogitsJob, 1)
		other = cached(t, other, dir)
	}
	return other
}

// TestTeacherOnce: a teacher that is run in the first epoch and read in the others gives the live run's losses and
// student, bit for bit, and its cache, sealed, gives them again; draws give what a cache of them gives.
func TestTeacherOnce(t *testing.T) {
	for name, job := range jobs {
		t.Run(name, func(t *testing.T) {
			c := threeEpochs(t, job)
			once, q, err := runOnce(t, c, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			other := withoutOnce(t, c)
			live, p, err := runOnce(t, other, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			again := cached(t, c, filepath.Join(c.Output, onceFolder))
			again.TeacherLogits = ""
			if _, _, err := runOnce(t, again, 1, 0); err != nil {
				t.Fatal(err)
			}
			if x := studentBytes(t, c); !bytes.Equal(x, studentBytes(t, other)) || !bytes.Equal(x, studentBytes(t, again)) {
				t.Error("the students differ")
			}
			if once.StepsCompleted != live.StepsCompleted || once.StepsCompleted < 6 {
				t.Fatalf("%d and %d steps", once.StepsCompleted, live.StepsCompleted)
			}
			for i := range q.steps {
				if x, y := q.steps[i], p.steps[i]; x.Loss != y.Loss || x.KL != y.KL || x.CE != y.CE {
					t.Errorf("step %d: %v and %v", i, x, y)
				}
			}
			r, err := cache.Open(filepath.Join(c.Output, onceFolder))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Verify(); err != nil || r.Header.Shards() < 3 {
				t.Errorf("%d shards, %v", r.Header.Shards(), err)
			}
			contracttest.Cases(t, 1)
		})
	}
}

// TestTeacherOnceResumes: stopped after any step, within the first epoch or a later one, and with shards that the
// disk lost meanwhile, the run ends with the bits of an unbroken one that keeps nothing: one that keeps rows would keep
// wrong ones alike.
func TestTeacherOnceResumes(t *testing.T) {
	for name, job := range jobs {
		t.Run(name, func(t *testing.T) {
			c := threeEpochs(t, job)
			out, whole := mustRun(t, withoutOnce(t, c), 0)
			for stop := 1; stop < out.StepsCompleted; stop += 3 {
				one := in(t, c)
				if _, _, err := runOnce(t, one, 1, stop); fault.KindOf(err) != fault.Stopped {
					t.Fatal(err)
				}
				if stop%2 == 0 {
					shards, err := filepath.Glob(filepath.Join(one.Output, onceFolder, "*.shard"))
					if err != nil || len(shards) == 0 {
						t.Fatal(shards, err)
					}
					if err := os.Remove(shards[0]); err != nil {
						t.Fatal(err)
					}
				}
				one.Resume = ResumeAuto
				if _, b := mustRun(t, one, 2); !bytes.Equal(b, whole) {
					t.Errorf("stopped after step %d: the student differs", stop)
				}
				contracttest.Cases(t, 1)
			}
		})
	}
}

// TestTeacherOnceChooses: auto keeps what pays, removes it at the end, and says why it does not.
func TestTeacherOnceChooses(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*Config)
		chosen string
		reason string
	}{
		"slow device": {func(c *Config) { c.Peak = func() float64 { return 1e3 } }, LogitsCache, "it pays over 3.11 epochs"},
		"fast device": {func(c *Config) { c.Peak = func() float64 { return 1e30 } }, LogitsLive,
			"does not pay over 3.11 epochs"},
		"no peak":  {func(c *Config) { c.Peak = nil }, LogitsLive, "not known"},
		"an epoch": {func(c *Config) { c.Epochs = 1 }, LogitsLive, "no more than an epoch"},
		"compared": {func(c *Config) { c.Guide = Guide{Weight: 1, Map: []string{"auto"}} }, LogitsLive,
			"which no cache holds"},
		"asked for": {func(c *Config) { c.TeacherLogits = LogitsLive }, LogitsLive, "asked for"},
	} {
		c := threeEpochs(t, CacheJob{})
		c.TeacherLogits, c.Peak = LogitsAuto, func() float64 { return 1e3 }
		x.change(&c)
		if _, _, err := runOnce(t, c, 0, 0); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
		if err != nil || !strings.Contains(string(events), `"chosen":"`+x.chosen+`"`) || !strings.Contains(string(events),
			x.reason) {
			t.Errorf("%s: %v, not %q with %q", name, err, x.chosen, x.reason)
		}
		if _, err := os.Lstat(filepath.Join(c.Output, onceFolder)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the cache that nobody asked for is there: %v", name, err)
		}
		contracttest.Cases(t, 1)
	}
}

// TestOncePays: the break-even is where the teacher's time in all later epochs is that of writing once and reading in
// them.
func TestOncePays(t *testing.T) {
	o := Once{FLOPs: 2e12, Peak: 1e12, Bytes: 1e9, Bandwidth: 1e9} // 2 s and 1 s
	for epochs, want := range map[float64]bool{1: false, 2: false, 2.1: true, 3: true} {
		if o.Pays(epochs) != want {
			t.Errorf("%g epochs: %v", epochs, !want)
		}
		contracttest.Cases(t, 1)
	}
	if (Once{FLOPs: math.NaN(), Peak: 1, Bytes: 1, Bandwidth: 1}).Pays(9) {
		t.Error("NaN pays")
	}
}
