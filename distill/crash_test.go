package distill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/crashdisk"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/internal/torture"
	"apr/tensor"
)

// writer is a way to write a checkpoint: the protocol, or a broken one.
type writer func(c checkpoints, st state, tensors []tensor.Source) error

// story is a sequence of steps that are checkpointed: four, the last once more as after a resumption from it, then an
// earlier one, for which the later ones are given up.
var story = []int{1, 2, 3, 4, 4, 3, 5}

// powerCut writes the checkpoints of the story to a disk and looks, after every operation, at every state that a power
// cut may leave. It returns how many states there were and the first few in which the last announced checkpoint, or the
// one being written, did not load.
func powerCut(t *testing.T, d *crashdisk.Disk, wrap func(disk.Disk) disk.Disk, write writer, mustWrite bool) (states int, bad []string) {
	t.Helper()
	if err := errors.Join(d.Mkdir("/runs"), d.SyncDir("/"), d.Mkdir("/runs/r")); err != nil {
		t.Fatal(err)
	}
	announced, writing := 0, 0
	seen := map[string]bool{}
	enough := func() bool { return len(bad) >= 3 || !mustWrite && len(bad) > 0 } // a control is caught by one
	d.After = func(op string) {
		for s := range d.States() {
			if enough() {
				return
			}
			states++
			if key := fmt.Sprint(announced, writing, s); !seen[key] {
				seen[key] = true
				if err := survives(s, announced, writing); err != nil {
					bad = append(bad, fmt.Sprintf("after %s: %v", op, err))
				}
			}
		}
	}
	for i, step := range story {
		writing = step
		c := checkpoints{dir: "/runs/r/checkpoints", keep: 2, disk: wrap(d)}
		if enough() {
			return states, bad
		}
		if err := write(c, crashState(step), crashTensors(i)); err != nil {
			if mustWrite {
				t.Fatal(err)
			}
			bad = append(bad, err.Error())
			return states, bad
		}
		announced = step
		d.After("announcing")
	}
	return states, bad
}

// survives loads the newest checkpoint of a disk after a power cut, lets a new process sweep, load again, and write the
// next checkpoint.
func survives(s *crashdisk.Disk, announced, writing int) error {
	c := checkpoints{dir: "/runs/r/checkpoints", keep: 2, disk: s}
	if announced == 0 {
		return nil // nothing was promised
	}
	check := func() error {
		st, _, _, err := c.newestOf(c.verify)
		if err != nil {
			return err
		}
		if st.Step != announced && st.Step != writing {
			return fmt.Errorf("step %d is loaded, %d was announced and %d being written", st.Step, announced, writing)
		}
		return nil
	}
	if err := check(); err != nil {
		return fmt.Errorf("%w in\n%.2000s", err, s)
	}
	if err := c.sweep(); err != nil {
		return err
	}
	if err := check(); err != nil {
		return fmt.Errorf("after the sweep: %w in\n%.2000s", err, s)
	}
	if err := c.write(crashState(9), crashTensors(9)); err != nil {
		return fmt.Errorf("the next checkpoint: %w", err)
	}
	st, _, _, err := c.newestOf(c.verify)
	if err == nil && st.Step != 9 {
		err = fmt.Errorf("step %d is loaded after the next checkpoint", st.Step)
	}
	return err
}

func crashState(step int) state {
	return state{Schema: checkpointSchema, Leg: LegStudent, Step: step}
}

// crashTensors are small tensors whose content depends on seed.
func crashTensors(seed int) []tensor.Source {
	text := func(c byte, n int) []byte { return bytes.Repeat([]byte{c + byte(seed)}, n) }
	return []tensor.Source{
		tensor.BytesSource(tensor.Info{Name: "a", DType: tensor.F32, Shape: []int{2, 2}}, text('a', 16)),
		tensor.BytesSource(tensor.Info{Name: "optimizer.m.a", DType: tensor.F32, Shape: []int{2, 2}}, text('m', 16)),
	}
}

func plain(d disk.Disk) disk.Disk { return d }

// noFileSync is a disk whose user forgets to sync files, noDirSync one whose user forgets directories.
type noFileSync struct{ disk.Disk }

type unsynced struct{ disk.File }

func (unsynced) Sync() error { return nil }

func (d noFileSync) Create(p string) (disk.File, error) {
	f, err := d.Disk.Create(p)
	return unsynced{f}, err
}

type noDirSync struct{ disk.Disk }

func (noDirSync) SyncDir(string) error { return nil }

// retrying is a disk whose user tries a failed sync of a file again.
type retrying struct{ disk.Disk }

type tried struct{ disk.File }

func (f tried) Sync() error {
	if err := f.File.Sync(); err == nil {
		return nil
	}
	return f.File.Sync()
}

func (d retrying) Create(p string) (disk.File, error) {
	f, err := d.Disk.Create(p)
	return tried{f}, err
}

// inPlace overwrites the one checkpoint there is.
func inPlace(c checkpoints, st state, tensors []tensor.Source) error {
	dir := c.name(0)
	if err := c.makeFolder(); err != nil {
		return err
	}
	if err := c.disk.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, name := range []string{tensorsFile, stateFile, sumsFile} {
		if err := c.disk.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := c.fill(dir, st, tensors); err != nil {
		return err
	}
	return c.disk.SyncDir(c.dir)
}

// Whatever a power cut leaves, after any operation: the last announced checkpoint loads. Four broken protocols show
// that the simulated disk would tell.
func TestTorturePowerCut(t *testing.T) {
	states, bad := powerCut(t, crashdisk.New(), plain, checkpoints.write, true)
	for _, b := range bad {
		t.Error(b)
	}
	caught := map[string]bool{}
	for name, broken := range map[string]struct {
		wrap  func(disk.Disk) disk.Disk
		write writer
	}{
		"in place":          {plain, inPlace},
		"no file synced":    {func(d disk.Disk) disk.Disk { return noFileSync{d} }, checkpoints.write},
		"no folder synced":  {func(d disk.Disk) disk.Disk { return noDirSync{d} }, checkpoints.write},
		"failed sync again": {func(d disk.Disk) disk.Disk { return retrying{d} }, checkpoints.write},
	} {
		d := crashdisk.New()
		if name == "failed sync again" {
			syncs := 0
			d.Fault = func(_ int, op string) error {
				if op == "sync" {
					if syncs++; syncs == 4 { // the tensors of the second checkpoint
						return syscall.EIO
					}
				}
				return nil
			}
		}
		n, bad := powerCut(t, d, broken.wrap, broken.write, false)
		caught[name] = len(bad) > 0
		t.Logf("control %q: %d states, first of its faults: %.120q", name, n, bad)
	}
	contracttest.Cases(t, states)
	torture.Row(t, "power cut: states of a simulated disk after every operation; the announced checkpoint loads", states, len(bad),
		"broken protocols: "+torture.Caught(t, caught))
	contracttest.Cases(t, states)
}

// At any operation that fails, however it fails, the run ends with exit 7, the last announced checkpoint loads, now and
// after a power cut, and the next checkpoint can be written.
func TestTortureFaults(t *testing.T) {
	injected, bad := 0, 0
	seen := map[string]bool{}
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC, crashdisk.ErrShort} {
		for n := 0; ; n++ {
			op, err := failAt(t, n, cause, seen)
			if op == "" {
				break
			}
			if op == "write" || !errors.Is(cause, crashdisk.ErrShort) {
				injected++
			}
			if err != nil {
				bad++
				t.Errorf("%v at operation %d, %s: %v", cause, n, op, err)
			}
		}
	}
	contracttest.Cases(t, injected)
	torture.Row(t, "faults: full disk, I/O error, short write, failed sync, at every operation; exit 7, the last checkpoint kept", injected, bad, "–")
	contracttest.Cases(t, injected)
}

// failAt lets the n-th operation of a story fail. It returns which that is, none if the story has fewer. States that
// were seen are not judged again.
func failAt(t *testing.T, n int, cause error, seen map[string]bool) (failed string, err error) {
	t.Helper()
	d := crashdisk.New()
	if err := errors.Join(d.Mkdir("/runs"), d.SyncDir("/"), d.Mkdir("/runs/r")); err != nil {
		t.Fatal(err)
	}
	from := d.Operations()
	d.Fault = func(k int, op string) error {
		if k-from != n {
			return nil
		}
		failed = op
		return cause
	}
	c := checkpoints{dir: "/runs/r/checkpoints", keep: 2, disk: d}
	announced := 0
	for i, step := range []int{1, 2, 3, 3, 4} {
		werr := c.write(crashState(step), crashTensors(i))
		if werr == nil {
			announced = step
			continue
		}
		if failed == "" {
			return "?", werr
		}
		d.Fault = nil
		if err := judge(werr, failed, cause); err != nil {
			return failed, err
		}
		for s := range d.States() {
			key := fmt.Sprint(announced, step, s)
			if seen[key] {
				continue
			}
			seen[key] = true
			if err := survives(s, announced, step); err != nil {
				return failed, fmt.Errorf("after a power cut: %w", err)
			}
		}
		if err := survives(d, announced, step); err != nil {
			return failed, err
		}
		return failed, nil
	}
	if failed != "" && (cause != crashdisk.ErrShort || failed == "write") {
		return failed, errors.New("nobody noticed")
	}
	return failed, nil
}

// judge requires exit 7, and of a full disk the bytes that are needed.
func judge(err error, op string, cause error) error {
	if fault.ExitCode(err) != 7 {
		return fmt.Errorf("exit %d: %w", fault.ExitCode(err), err)
	}
	if errors.Is(cause, syscall.ENOSPC) && strings.Contains("mkdir create write sync syncdir", op) && !strings.Contains(err.Error(), "bytes needed") {
		return fmt.Errorf("the bytes needed are not told: %w", err)
	}
	return nil
}

// A disk that is too small is found before anything is written, with the bytes needed.
func TestCheckpointNeedsSpace(t *testing.T) {
	d := crashdisk.New()
	if err := errors.Join(d.Mkdir("/runs"), d.Mkdir("/runs/r")); err != nil {
		t.Fatal(err)
	}
	c := checkpoints{dir: "/runs/r/checkpoints", keep: 2, disk: d}
	if err := c.write(crashState(1), crashTensors(1)); err != nil {
		t.Fatal(err)
	}
	d.Space = 1000
	d.Fault = func(_ int, op string) error {
		if op == "write" || op == "create" {
			t.Error("written although there is no room")
		}
		return nil
	}
	err := c.write(crashState(2), crashTensors(2))
	if fault.ExitCode(err) != 7 || !strings.Contains(err.Error(), fmt.Sprintf("%d bytes needed, 1000 free", bytesNeeded(crashTensors(2)))) {
		t.Errorf("error %v (exit %d)", err, fault.ExitCode(err))
	}
	if st, _, _, err := c.newestOf(c.verify); err != nil || st.Step != 1 {
		t.Errorf("step %d, %v", st.Step, err)
	}
}

// What a full disk leaves to resume is said as it is: nothing, before the first checkpoint.
func TestFullDiskSaysWhatIsKept(t *testing.T) {
	for _, full := range []struct {
		name string
		fill func(*crashdisk.Disk)
	}{
		{"known before", func(d *crashdisk.Disk) { d.Space = 1000 }},
		{"found while writing", func(d *crashdisk.Disk) {
			d.Fault = func(_ int, op string) error {
				if op == "write" {
					return syscall.ENOSPC
				}
				return nil
			}
		}},
	} {
		for _, announced := range []string{"", "checkpoints", "checkpoints-control"} {
			d := crashdisk.New()
			if err := errors.Join(d.Mkdir("/runs"), d.Mkdir("/runs/r")); err != nil {
				t.Fatal(err)
			}
			if announced != "" {
				if err := (checkpoints{dir: "/runs/r/" + announced, keep: 2, disk: d}).write(crashState(1), crashTensors(1)); err != nil {
					t.Fatal(err)
				}
			}
			full.fill(d)
			err := checkpoints{dir: "/runs/r/checkpoints-control", keep: 2, disk: d}.write(crashState(2), crashTensors(2))
			want := "the last checkpoint is kept: make room and --resume"
			if announced == "" {
				want = "no checkpoint was written before: make room and start again, with --force"
			}
			var f *fault.Error
			if !errors.As(err, &f) || f.ID != "E-FILE-015" || f.Hint != want {
				t.Errorf("%s, with %q: %v, hint %q; want %q", full.name, announced, err, f.Hint, want)
			}
		}
	}
}

// rotten is a disk on which one bit of one file has changed.
type rotten struct {
	disk.Disk
	file string
	at   int
	bit  byte
	size int // of the file
}

func (r *rotten) Open(p string) (io.ReadCloser, error) {
	f, err := r.Disk.Open(p)
	if err != nil || filepath.Base(p) != r.file {
		return f, err
	}
	b, err := io.ReadAll(f)
	if r.size = len(b); r.at < len(b) {
		b[r.at] ^= r.bit
	}
	return io.NopCloser(bytes.NewReader(b)), err
}

// Every single bit of every file of a checkpoint: a flip is found, and the one before is taken, with a message.
func TestTortureBitRot(t *testing.T) {
	d := crashdisk.New()
	if err := errors.Join(d.Mkdir("/runs"), d.Mkdir("/runs/r")); err != nil {
		t.Fatal(err)
	}
	c := checkpoints{dir: "/runs/r/checkpoints", keep: 2, disk: d}
	for step := range 2 {
		if err := c.write(crashState(step+1), crashTensors(step)); err != nil {
			t.Fatal(err)
		}
	}
	trials, bad := 0, 0
	for _, name := range []string{tensorsFile, stateFile, sumsFile} {
		r := &rotten{Disk: d, file: name, size: 1}
		c := checkpoints{dir: c.dir, keep: 2, disk: r}
		for r.at = 0; r.at < r.size; r.at++ {
			for bit := range 8 {
				r.bit = 1 << bit
				trials++
				if _, err := c.verify(c.name(2)); fault.KindOf(err) != fault.Format {
					bad++
					t.Errorf("bit %d of byte %d of %s: %v", bit, r.at, name, err)
				}
			}
		}
	}
	sound, err := c.verify(c.name(2))
	if err != nil || sound.Step != 2 {
		t.Errorf("the sound checkpoint: step %d, %v", sound.Step, err)
	}
	contracttest.Cases(t, trials)
	torture.Row(t, "bit rot: every bit of every file of a checkpoint; found", trials, bad, "the sound one loads")
	contracttest.Cases(t, trials)
}
