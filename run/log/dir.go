package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"apr/internal/atomicfile"
	"apr/internal/fault"
)

// Dir is an open, locked run directory.
type Dir struct {
	Path    string
	lock    *flock.Flock
	lost    error // the directory is no longer at Path; nil: it was there when Held last looked
	steps   *lineFile
	event   *lineFile
	curves  tfEvents
	flushed time.Time // when Step last brought its lines to the file system
}

// flushEvery is how long a step may wait before readers see it.
const flushEvery = time.Second

// Open opens the run directory path for writing. An existing non-empty directory is refused (fault of kind Invalid)
// unless resume is set, or force is, which renames it to path.bak-TIME and starts anew. A directory that another
// process is writing to is refused.
func Open(path string, force, resume bool) (*Dir, error) {
	if err := prepare(path, force, resume); err != nil {
		return nil, err
	}
	d := &Dir{Path: path, flushed: time.Now()}
	d.curves.place = d.Place
	var err error
	if d.lock, err = lock(path); err != nil {
		return nil, err
	}
	if d.steps, err = openLines(d.File("steps.jsonl")); err == nil {
		d.event, err = openLines(d.File("events.jsonl"))
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// lock takes the lock of a run directory. The file stays when the run ends: removing it could leave two processes with
// a lock each, one on the file that was and one on the file that is.
func lock(path string) (*flock.Flock, error) {
	name := filepath.Join(path, lockFile)
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fault.In(fault.UnsafePath, name, "is not a regular file").WithID("E-RUN-010")
	}
	l := flock.New(name)
	ok, err := l.TryLock()
	for i := 0; i < 5 && !ok && err == nil; i++ { // somebody who asks whether the run is alive holds it for a moment
		time.Sleep(10 * time.Millisecond)
		ok, err = l.TryLock()
	}
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot be locked").Because(err)
	}
	if !ok {
		return nil, busy(path)
	}
	if err := signLock(path); err != nil {
		return nil, errors.Join(err, l.Unlock())
	}
	return l, nil
}

// busy refuses a run that another process is writing.
func busy(path string) error {
	return fault.In(fault.Invalid, path, "another process is writing this run").
		WithHint("apr runs tail %s follows it, apr runs stop %s ends it", path, path).WithID("E-RUN-002")
}

// moveAside renames a run directory, unless a process is writing to it.
func moveAside(path string) error {
	l, err := lock(path)
	if err != nil {
		return err
	}
	if err := os.Rename(path, path+".bak-"+time.Now().UTC().Format("20060102T150405.000")); err != nil {
		return errors.Join(fault.In(fault.IO, path, "cannot be moved aside").Because(err), l.Unlock())
	}
	return l.Unlock()
}

// Check refuses what Open would refuse for the directory's state, and changes nothing: a run asks before it reads its
// data.
func Check(path string, force, resume bool) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && resume:
		return fault.In(fault.NotFound, path, "there is no run to resume").WithID("E-RUN-003")
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fault.In(fault.IO, path, "is not a directory that can be read").Because(err)
	case used(entries) && resume && !IsRun(path) && !begun(path):
		return fault.In(fault.NotFound, path, "is not a run directory: there is nothing to resume").WithID("E-RUN-003")
	case used(entries) && !resume && !force:
		if _, held := LockedBy(path); held {
			return busy(path)
		}
		return fault.In(fault.Invalid, path, "output directory exists and is not empty").
			WithHint("choose another --output, --resume it, or --force, which renames it").WithID("E-RUN-001")
	}
	return nil
}

// The files of a run directory that stand there before the run.
const (
	DispatchFile = "dispatch.json" // how it was dispatched
	DispatchLog  = "dispatch.log"  // what the dispatched process prints
)

// used reports whether a directory holds anything but what dispatching leaves, or is about to write, for the run to
// come.
func used(entries []os.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Name() != DispatchFile && e.Name() != DispatchLog && !atomicfile.IsTemp(e.Name())
	})
}

// Prepare makes the directory of a run, as Open does, for one that another process will open.
func Prepare(path string, force, resume bool) error { return prepare(path, force, resume) }

func prepare(path string, force, resume bool) error {
	if err := Check(path, force, resume); err != nil {
		return err
	}
	if entries, err := os.ReadDir(path); err == nil && used(entries) && !resume {
		if err := moveAside(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fault.In(fault.IO, path, "cannot be created").Because(err)
	}
	return nil
}

// File returns the path of a file of the run. Place returns that of one which is about to be made or replaced.
func (d *Dir) File(name string) string { return filepath.Join(d.Path, name) }

// Place is File while the directory is held, see Held.
func (d *Dir) Place(name string) (string, error) { return d.File(name), d.Held() }

// Held refuses a run directory that was moved or removed: the lock and the open files went with it, and at its path
// another run may have begun. Once lost, it stays lost.
func (d *Dir) Held() error {
	if d.lost != nil {
		return d.lost
	}
	mine, err := d.lock.Stat()
	if err != nil {
		return fault.In(fault.IO, d.File(lockFile), "cannot be looked at").Because(err)
	}
	there, err := os.Stat(d.File(lockFile))
	if err == nil && os.SameFile(mine, there) {
		return nil
	}
	gone := fault.In(fault.IO, d.Path, "is no longer the directory of this run: it was moved or removed")
	switch {
	case err == nil:
		gone.Msg += ", and another run is there now"
	case !errors.Is(err, os.ErrNotExist):
		gone = fault.In(fault.IO, d.File(lockFile), "cannot be looked at").Because(err)
	}
	d.lost = gone.WithID("E-RUN-011").
		WithHint("nothing more was written there; where it was moved to, " +
			"apr distill --resume=RUN goes on from its last checkpoint")
	return d.lost
}

// The names of a run's first manifest, and of the manifest of its n-th resumption.
const (
	manifestFile    = "manifest.json"
	resumedManifest = "manifest.resume-%d.json"
)

// WriteManifest writes manifest.json, atomically, and the event that an attempt begins; a resumed run keeps its
// first manifest and numbers the others.
func (d *Dir) WriteManifest(m Manifest) error {
	m.Schema = ManifestSchema
	name := manifestFile
	for i := 1; ; i++ {
		if _, err := os.Lstat(d.File(name)); errors.Is(err, os.ErrNotExist) {
			if err := d.writeJSON(name, m); err != nil {
				return err
			}
			return d.Event(Attempt, fmt.Sprint(i), map[string]any{"manifest": name, "run_id": m.RunID, "pid": os.Getpid()}, "")
		} else if err != nil {
			return fault.In(fault.IO, d.File(name), "cannot be looked at").Because(err)
		}
		name = fmt.Sprintf(resumedManifest, i)
	}
}

// Step appends a step to steps.jsonl and to the TensorBoard event file. Readers see it within a second or so, and so
// often it looks whether the directory is held.
func (d *Dir) Step(s Step) error {
	now := time.Now()
	if err := errors.Join(d.steps.append(s), d.curves.add(now, s.Step, s.scalars())); err != nil {
		return err
	}
	if now.Sub(d.flushed) < flushEvery {
		return nil
	}
	d.flushed = now
	return errors.Join(d.steps.flush(), d.curves.flush(), d.Held())
}

// Scalar appends a number that is not a step's to the TensorBoard event file, such as a held-out loss.
func (d *Dir) Scalar(tag string, step int, value float64) error {
	return d.curves.add(time.Now(), step, []Scalar{{tag, value}})
}

// Event appends an event with the present time.
func (d *Dir) Event(kind, name string, detail any, reason string) error {
	if err := d.steps.flush(); err != nil {
		return err
	}
	e := Event{Time: time.Now().UTC(), Kind: kind, Name: name, Detail: detail, Reason: reason}
	if err := d.event.append(e); err != nil {
		return err
	}
	return d.event.flush()
}

// Flush brings all appended lines to the file system.
func (d *Dir) Flush() error {
	return errors.Join(d.steps.flush(), d.event.flush(), d.curves.flush())
}

// Sync makes the lines of steps and events durable. A checkpoint must not outlive the steps that it counts: a
// resumption refuses records that lack some.
func (d *Dir) Sync() error {
	err := d.Flush()
	for _, l := range []*lineFile{d.steps, d.event} {
		if e := l.f.Sync(); e != nil && err == nil {
			err = fault.In(fault.IO, l.f.Name(), "cannot be written").Because(e)
		}
	}
	return err
}

// TruncateSteps drops the steps of a leg from step `from` on, which a resumed run will do again.
func (d *Dir) TruncateSteps(leg string, from int) error {
	if err := d.Held(); err != nil {
		return err
	}
	return d.steps.filter(func(line []byte) bool {
		var s Step
		return json.Unmarshal(line, &s) == nil && (s.Leg != leg || s.Step < from)
	})
}

// WriteReceipt writes receipt.json, the last file of a run, with the hashes of the records as they then are.
func (d *Dir) WriteReceipt(r Receipt) error {
	err := d.Flush()
	r.Schema, r.Finished = "apr.receipt/1", time.Now().UTC()
	sums, failed := HashRecords(d.Path)
	r.Records = sums
	return errors.Join(err, failed, d.writeJSON("receipt.json", r))
}

func (d *Dir) writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return d.write(name, append(b, '\n'))
}

func (d *Dir) write(name string, text []byte) error {
	path, err := d.Place(name)
	if err != nil {
		return err
	}
	return atomicfile.WritePrivate(path, text, true)
}

// Close flushes and unlocks.
func (d *Dir) Close() error {
	errs := []error{d.curves.close()}
	for _, l := range []*lineFile{d.steps, d.event} {
		if l != nil {
			errs = append(errs, l.flush(), l.f.Close())
		}
	}
	return errors.Join(append(errs, d.lock.Unlock())...)
}

// lineFile appends JSON lines.
type lineFile struct {
	f *os.File
	w *bufio.Writer
}

func openLines(path string) (*lineFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot be opened").Because(err)
	}
	if err := dropCutLine(f); err != nil {
		return nil, errors.Join(fault.In(fault.IO, path, "cannot be cut to whole lines").Because(err), f.Close())
	}
	return &lineFile{f: f, w: bufio.NewWriterSize(f, 1<<16)}, nil
}

// dropCutLine removes what follows the last newline: a line cut by a crash, to which the next one would be joined.
func dropCutLine(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	block := make([]byte, 4096)
	for lo := st.Size(); lo > 0; {
		n := min(lo, int64(len(block)))
		lo -= n
		if _, err := f.ReadAt(block[:n], lo); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(block[:n], '\n'); i >= 0 {
			return truncate(f, st.Size(), lo+int64(i)+1)
		}
	}
	return truncate(f, st.Size(), 0)
}

func truncate(f *os.File, from, to int64) error {
	if from == to {
		return nil
	}
	return f.Truncate(to)
}

func (l *lineFile) append(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", l.f.Name(), err)
	}
	if _, err := l.w.Write(append(b, '\n')); err != nil {
		return fault.In(fault.IO, l.f.Name(), "cannot be written").Because(err)
	}
	return nil
}

func (l *lineFile) flush() error {
	if err := l.w.Flush(); err != nil {
		return fault.In(fault.IO, l.f.Name(), "cannot be written").Because(err)
	}
	return nil
}

// filter rewrites the file with the complete lines that keep returns true for.
func (l *lineFile) filter(keep func([]byte) bool) error {
	if err := l.flush(); err != nil {
		return err
	}
	path := l.f.Name()
	old, err := os.ReadFile(path)
	if err != nil {
		return fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	var kept []byte
	for len(old) > 0 {
		end := bytes.IndexByte(old, '\n')
		if end < 0 {
			break // a line cut by a crash
		}
		if keep(old[:end]) {
			kept = append(kept, old[:end+1]...)
		}
		old = old[end+1:]
	}
	// Windows renames nothing over a file that is open.
	written := errors.Join(l.f.Close(), atomicfile.WritePrivate(path, kept, true))
	fresh, err := openLines(path)
	if err != nil {
		return errors.Join(written, err)
	}
	*l = *fresh
	return written
}
