package distill

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/corpus"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/disk"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// The first checkpoint comes as soon as it takes at most 1 % of the leg's time, in its window only, and costs a run
// no bit.
func TestFirstCheckpoint(t *testing.T) {
	whole := tinyConfig(t)
	whole.CheckpointEvery = 1000
	_, want := mustRun(t, whole, 1)
	for name, tt := range map[string]struct {
		from, until, cost, interval time.Duration
		first                       bool
	}{
		"cheap":                {0, time.Hour, 1, time.Hour, true},
		"dear":                 {0, time.Hour, time.Hour, time.Hour, false},
		"not measured":         {0, time.Hour, never, time.Hour, false},
		"before the window":    {time.Hour, 2 * time.Hour, 1, time.Hour, false},
		"after the window":     {0, 1, 1, time.Hour, false},
		"no checkpoints asked": {0, time.Hour, 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := in(t, whole)
			c.CheckpointInterval, c.KeepCheckpoints, c.Options = tt.interval, 9, optionsOf(c)
			d, err := cpu.New(cpu.Options{Workers: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			r, err := Start(context.Background(), c, d, &quiet{}, func(*runlog.Manifest) {})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			r.first = window{tt.from, tt.until, func(checkpoints, int64) time.Duration { return tt.cost }}
			if _, err := r.Execute(context.Background()); err != nil {
				t.Fatal(err)
			}
			expected := []string{"step-000008"}
			if tt.first {
				expected = []string{"step-000001", "step-000008"}
			}
			if got := checkpointsOf(t, c); !slices.Equal(got, expected) {
				t.Errorf("checkpoints %v, want %v", got, expected)
			}
			if string(studentBytes(t, c)) != string(want) {
				t.Error("another student")
			}
		})
	}
}

// lame is a disk whose syncs take a time, or fail.
type lame struct {
	disk.Disk
	sync time.Duration
	err  error
	free uint64
}

type lameFile struct {
	disk.File
	lame
}

func (d lame) Create(path string) (disk.File, error) {
	f, err := d.Disk.Create(path)
	return lameFile{f, d}, err
}
func (d lame) Free(string) (uint64, bool) { return d.free, true }
func (f lameFile) Sync() error            { time.Sleep(f.sync); return errors.Join(f.err, f.File.Sync()) }

// What a checkpoint costs is measured on its own disk, and leaves nothing there.
func TestMeasure(t *testing.T) {
	run := t.TempDir()
	on := func(d disk.Disk) checkpoints {
		return checkpoints{dir: filepath.Join(run, checkpointFolder), keep: 1, disk: d}
	}
	slow := lame{disk.OS{}, 50 * time.Millisecond, nil, math.MaxUint64}
	if got := on(slow).measure(1 << 10); got < 50*time.Millisecond || got > time.Minute {
		t.Errorf("a small one: %v", got)
	}
	if got := on(slow).measure(10 * sampleBytes); got < 500*time.Millisecond || got > 10*time.Minute {
		t.Errorf("of ten samples: %v", got)
	}
	for name, d := range map[string]lame{
		"failing sync": {disk.OS{}, 0, syscall.EIO, math.MaxUint64}, "full": {disk.OS{}, 0, nil, 1 << 9},
	} {
		if got := on(d).measure(1 << 10); got != never {
			t.Errorf("%s: %v", name, got)
		}
	}
	if left, err := os.ReadDir(filepath.Join(run, checkpointFolder)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	contracttest.Cases(t, 4)
}

// Checkpoints and outputs that do not fit are refused with the folder and both numbers; what is written already is
// room.
func TestDiskNeed(t *testing.T) {
	d := DiskNeed{Checkpoints: 900, Outputs: 100, Total: 1000}
	for _, tt := range []struct {
		free    uint64
		known   bool
		written int64
		ok      bool
	}{
		{1000, true, 0, true}, {999, true, 0, false}, {0, true, 0, false}, {0, false, 0, true}, {100, true, 900, true}, {99, true, 900, false}, {0, true, 5000, true},
	} {
		err := d.refuse("runs/x", tt.free, tt.known, tt.written)
		if tt.ok != (err == nil) {
			t.Errorf("%+v: %v", tt, err)
		}
		if err != nil && (fault.KindOf(err) != fault.IO || !strings.HasPrefix(err.Error(), "runs/x: no space left")) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	c := tinyConfig(t)
	p, err := NewPrecheck(c, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Models(); err != nil {
		t.Fatal(err)
	}
	one := p.CheckpointBytes()
	for _, tt := range []struct {
		keep, steps int
		control     bool
		want        int64
	}{
		{2, 0, false, 3 * one}, {2, 100, false, 3 * one}, {2, 1, false, one}, {2, 1, true, 2 * one}, {2, 100, true, 5 * one},
		{math.MaxInt, 0, true, math.MaxInt64}, {math.MaxInt, 4, false, 4 * one},
	} {
		c.KeepCheckpoints, c.Control = tt.keep, tt.control
		if got := p.in.diskNeed(c, tt.steps); got.Checkpoints != tt.want || got.Total < got.Checkpoints || got.Available == 0 {
			t.Errorf("%+v: %+v, one checkpoint %d", tt, got, one)
		}
	}
	contracttest.Cases(t, 14)
}

// The frequencies of training ids, with one added to each, score the held-out ones; masked ids count in neither.
func TestUnigram(t *testing.T) {
	train := &corpus.Tokens{IDs: []int32{0, 1, 1, 1, 2, 3}, Mask: []uint8{0, 1, 1, 1, 1, 0}} // 1 three times, 2 once
	held := &corpus.Tokens{IDs: []int32{3, 1, 2, 0, 3}, Mask: []uint8{1, 1, 1, 1, 0}}
	const all = 4 + 4
	want := -(math.Log(4./all) + math.Log(2./all) + math.Log(1./all)) / 3
	if got := unigram(train, held, 4); !(math.Abs(got-want) <= 1e-12) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := unigram(&corpus.Tokens{}, held, 4); !(math.Abs(got-math.Log(4)) <= 1e-12) {
		t.Errorf("without text: %v", got)
	}
}
