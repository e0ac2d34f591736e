//go:build !windows

package distill

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/disk"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// taker moves a run's directory away at a moment, and begins another run at its path.
type taker struct {
	quiet
	t     *testing.T
	path  string
	at    string // a phase, or a step of a leg
	other string // what the other run then has
}

func (q *taker) Phase(name string) { q.take(name) }
func (q *taker) Step(leg string, s runlog.Step) {
	if s.Step == 1 {
		q.take(leg)
	}
}

func (q *taker) take(at string) {
	if at == q.at {
		q.other = takeDir(q.t, q.path)
	}
}

// takeDir moves a run directory away and puts a run with a checkpoint and a student there. It returns what that has.
func takeDir(t *testing.T, path string) string {
	t.Helper()
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	other, err := runlog.Open(path, false, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	if err := other.WriteManifest(runlog.Manifest{RunID: "other"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"checkpoints/step-000003", "checkpoints-control/step-000003", "student", onceFolder} {
		if err := os.MkdirAll(filepath.Join(path, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return filesBelow(t, path)
}

// filesBelow lists what is below a folder, with modes and when files were written.
func filesBelow(t *testing.T, path string) string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		all = append(all, p+" "+info.Mode().String())
		if !e.IsDir() {
			all[len(all)-1] += " " + info.ModTime().String()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

func briefRun(t *testing.T) Config {
	c := brief(t, tinyConfig(t))
	c.Steps, c.Control, c.ValFraction = 4, true, 0.1
	return c
}

// rare makes no checkpoints on the way.
func rare(c Config) Config {
	c.CheckpointEvery = 0
	return c
}

// A run whose directory was moved away while it went on writes nothing into the run that began at its path, and is not
// completed.
func TestTakenDirectory(t *testing.T) {
	for name, x := range map[string]struct {
		at   string
		make func(*testing.T) Config
	}{
		"before a checkpoint":       {LegStudent, briefRun},
		"before a teacher's pass":   {LegStudent, func(t *testing.T) Config { return rare(threeEpochs(t, jobs["hidden"])) }},
		"before the student":        {"writing the student", briefRun},
		"before a control's":        {LegControl, briefRun},
		"before samples or receipt": {"evaluating on held-out text", briefRun},
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := x.make(t)
			d, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			q := &taker{t: t, path: c.Output, at: x.at}
			c.Options = optionsOf(c)
			r, err := Start(context.Background(), c, d, q, func(*runlog.Manifest) {})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			out, err := r.Execute(context.Background())
			if q.other == "" {
				t.Fatalf("nothing was moved: %v", err)
			}
			if fault.KindOf(err) != fault.IO || strings.Count(err.Error(), "another run is there now [E-RUN-011]") != 1 ||
				out.Status != "failed" {
				t.Errorf("%s: %v", out.Status, err)
			}
			if now := filesBelow(t, c.Output); now != q.other {
				t.Errorf("the other run had\n%s\nand has\n%s", q.other, now)
			}
			if old, err := runlog.Read(c.Output + ".old"); err != nil || old.Receipt != nil {
				t.Errorf("the moved run: %+v, %v", old, err)
			}
		})
	}
}

// A checkpoint that is being written when the directory is taken changes nothing there, whatever it was about to do.
func TestTakenDirectoryDuringCheckpoint(t *testing.T) {
	for at := 1; ; at++ {
		contracttest.Cases(t, 1)
		path := filepath.Join(t.TempDir(), "run")
		d, err := runlog.Open(path, false, false)
		if err != nil {
			t.Fatal(err)
		}
		n, other := 0, ""
		c := checkpoints{dir: filepath.Join(path, checkpointFolder), keep: 1, disk: heldDisk{disk.OS{}, func() error {
			if n++; n == at {
				other = takeDir(t, path)
			}
			return d.Held()
		}}}
		err = errors.Join(c.write(crashState(2), crashTensors(2)), c.write(crashState(3), crashTensors(3)),
			c.write(crashState(3), crashTensors(3)))
		if other == "" {
			if err != nil || at < 20 {
				t.Errorf("%d operations: %v", at, err)
			}
			return
		}
		if fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), "E-RUN-011") {
			t.Errorf("operation %d: %v", at, err)
		}
		if now := filesBelow(t, path); now != other {
			t.Errorf("operation %d: the other run had\n%s\nand has\n%s", at, other, now)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
