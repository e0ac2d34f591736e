//go:build gpu || emulate

package distill

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"testing"

	"apr/device/cuda"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/teacher/cache"
)

// runOnCUDA executes c on a device of its own.
func runOnCUDA(t *testing.T, c Config, compute cuda.Compute) *quiet {
	t.Helper()
	d, err := cuda.Open(cuda.Options{Compute: compute})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	q := &quiet{}
	c.Options = optionsOf(c)
	r, err := Start(context.Background(), c, d, q, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Execute(context.Background()); err != nil {
		t.Fatal(err)
	}
	return q
}

// TestCUDACached: on a GPU, hidden states give the live run's student bit for bit, and draws about its losses.
func TestCUDACached(t *testing.T) {
	openEmulator(t)
	c := smallConfig(t, 12)
	const compute = cuda.BF16
	c.Steps, c.BatchSize, c.ValFraction = 2, 2, 0
	live := runOnCUDA(t, c, compute)
	for _, job := range []CacheJob{{Kind: cache.Hidden, Of: 1}, {Kind: cache.Draws, Draws: 50, Entropy: true, Of: 1}} {
		dir := filepath.Join(t.TempDir(), "cache")
		func() {
			d, err := cuda.Open(cuda.Options{Compute: compute})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			made := c
			made.Output, made.StudentConfig = dir, ""
			if _, err := Precompute(context.Background(), made, job, d, &quiet{}); err != nil {
				t.Fatal(err)
			}
		}()
		other := cached(t, c, dir)
		got := runOnCUDA(t, other, compute)
		if job.Kind == cache.Hidden && !bytes.Equal(studentBytes(t, c), studentBytes(t, other)) {
			t.Error("the students differ")
		}
		for i, s := range got.steps {
			if !(math.Abs(float64(s.KL-live.steps[i].KL)) < 0.15) {
				t.Errorf("%s, step %d: KL %v, live %v", job.Kind, i, s.KL, live.steps[i].KL)
			}
		}
		contracttest.Cases(t, 1)
	}
}

// TestCUDATeacherOnce: on a GPU, a teacher that is run in the first epoch and read in the others gives the live run's
// student bit for bit, and its steps need what the plan says.
func TestCUDATeacherOnce(t *testing.T) {
	openEmulator(t)
	c := smallConfig(t, 3)
	c.Steps, c.Epochs, c.BatchSize, c.ValFraction = 0, 2, 2, 0
	runOnCUDA(t, c, cuda.BF16)
	for _, kind := range []string{cache.Hidden, cache.Draws} {
		other := in(t, c)
		other.TeacherLogits, other.LogitsJob = LogitsCache, CacheJob{Kind: kind, Draws: 50}
		runOnCUDA(t, other, cuda.BF16)
		if kind == cache.Hidden && !bytes.Equal(studentBytes(t, c), studentBytes(t, other)) {
			t.Error("the students differ")
		}
		contracttest.Cases(t, 1)
	}
}
