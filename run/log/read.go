package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// The states of a run. They are derived, never stored.
const (
	Running   = "running"
	Completed = "completed"
	Stopped   = "stopped" // by a signal; it can be resumed
	Failed    = "failed"  // with a receipt that says why, or without: killed
)

// How long a document and a line of a run directory may be.
const (
	maxDocument = 64 << 20
	maxLine     = 16 << 20
)

// Record is what a run directory says about its run. Parts that a run has not written yet, or never will, are nil.
type Record struct {
	Path     string
	Manifest *Manifest   // of the beginning
	InForce  *Manifest   // of the last resumption, whose settings may differ; Manifest, if there was none
	Settings string      // the file that InForce is from
	Resumed  []*Manifest // of each resumption, in order
	Receipt  *Receipt    // of this state: the receipt of a run that was resumed since is left out
	Steps    []Step
	Events   []Event
	Samples  *Samples
	Status   string
	Reason   string // why a run stopped or failed, as far as it is known
	// RestartedBy is the supervisor that starts a killed run again; 0: none does.
	RestartedBy int
	// Damaged counts lines of steps.jsonl and events.jsonl that cannot be read. A last line without its end is not one of
	// them: it is being written.
	Damaged int
}

// Attempts returns the manifests of all attempts, the first one's first.
func (r *Record) Attempts() []*Manifest { return append([]*Manifest{r.Manifest}, r.Resumed...) }

// ID returns the run's identity: that of the manifest, or the name of the directory.
func (r *Record) ID() string {
	if r.Manifest != nil && r.Manifest.RunID != "" {
		return r.Manifest.RunID
	}
	return filepath.Base(filepath.Clean(r.Path))
}

// Read reads a run directory that may be in use. A directory that is none (IsRun) is a fault of kind NotFound; a manifest,
// receipt or samples file that is not JSON is one of kind Format.
func Read(path string) (*Record, error) { return read(path, true) }

// ReadStatus reads a run directory as Read does, but for steps and samples: enough for the status.
func ReadStatus(path string) (*Record, error) { return read(path, false) }

func read(path string, all bool) (*Record, error) {
	r := &Record{Path: path}
	if err := r.readManifests(); err != nil {
		return nil, err
	}
	locked := locked(path) // first: what follows is at least as new
	var receipt Receipt
	found, err := readJSON(filepath.Join(path, "receipt.json"), &receipt)
	if err != nil {
		return nil, err
	} else if found {
		r.Receipt = &receipt
	}
	if err := readLines(filepath.Join(path, "events.jsonl"), &r.Events, &r.Damaged); err != nil {
		return nil, err
	}
	r.judge(locked)
	if !all {
		return r, nil
	}
	var samples Samples
	if found, err = readJSON(filepath.Join(path, SamplesFile), &samples); err != nil {
		return nil, err
	} else if found {
		r.Samples = &samples
	}
	return r, readLines(filepath.Join(path, "steps.jsonl"), &r.Steps, &r.Damaged)
}

// readManifests reads what the run was asked to do, at the beginning and at each resumption.
func (r *Record) readManifests() error {
	m, err := readRunManifest(r.Path)
	if err != nil {
		return err
	}
	r.Manifest, r.InForce, r.Settings = m, m, manifestFile
	for i := 1; ; i++ {
		m, name := &Manifest{}, fmt.Sprintf(resumedManifest, i)
		if found, err := readJSON(filepath.Join(r.Path, name), m); err != nil || !found {
			return err
		}
		r.InForce, r.Settings, r.Resumed = m, name, append(r.Resumed, m)
	}
}

// readRunManifest reads manifest.json of a run directory. What is none is a fault of kind NotFound, and a damaged manifest one
// of kind Format.
func readRunManifest(path string) (*Manifest, error) {
	m := &Manifest{}
	found, err := readJSON(filepath.Join(path, manifestFile), m)
	switch {
	case !found && err == nil:
		return nil, fault.In(fault.NotFound, path, "is not a run directory: it has no manifest.json").WithID("E-RUN-004")
	case begun(path) && err == nil && m.Schema != ManifestSchema:
		return nil, fault.In(fault.Format, filepath.Join(path, manifestFile), "is not a record of a run: its schema is %q, not %q", m.Schema, ManifestSchema).WithID("E-RUN-005")
	case begun(path) && err != nil:
		return nil, err
	case err != nil || m.Schema != ManifestSchema:
		return nil, fault.In(fault.NotFound, path, "is not a run directory: its manifest.json is of something else").WithID("E-RUN-004")
	}
	return m, nil
}

// IsRun reports whether path is a run directory: its manifest is of a run, or it is damaged and stands beside a run's steps.
func IsRun(path string) bool {
	_, err := readRunManifest(path)
	return err == nil || fault.KindOf(err) != fault.NotFound
}

// begun reports whether a directory has the file of steps, which a run opens before it writes its manifest.
func begun(path string) bool {
	st, err := os.Stat(filepath.Join(path, "steps.jsonl"))
	return err == nil && st.Mode().IsRegular()
}

// judge derives the status: a receipt counts unless something happened after it was written; then the lock says that a
// process is at work; then the last event says whether it stopped in order.
func (r *Record) judge(locked bool) {
	var last Event
	for i := len(r.Events) - 1; i >= 0 && last.Kind == ""; i-- {
		if r.Events[i].Kind != "record" { // measurements, which a run also takes when it has stopped
			last = r.Events[i]
		}
	}
	if r.Receipt != nil && last.Time.After(r.Receipt.Finished) {
		r.Receipt = nil // of a part before the last resumption
	}
	switch {
	case r.Receipt != nil:
		r.Status, r.Reason = r.Receipt.Status, r.Receipt.Reason
	case last.Kind == "stop":
		r.Status, r.Reason = Stopped, "stopped by a "+last.Name+"; apr runs resume goes on with it"
	case locked:
		r.Status = Running
	case last.restarting() != 0:
		r.RestartedBy = last.restarting()
		r.Status, r.Reason = Running, "its process died and is started again by its supervisor"
	case last.Kind == Abort:
		r.Status, r.Reason = Failed, "ended at once by a "+last.Name
	case last.Kind == LostRank:
		r.Status, r.Reason = Failed, last.Reason
	default:
		r.Status, r.Reason = Failed, "ended without a receipt: it was killed, or its machine went down"
	}
}

// restarting returns the living supervisor that starts the run again after the death that the event tells; else 0.
func (e Event) restarting() int {
	var d struct {
		Again      bool    `json:"started_again"`
		Supervisor Process `json:"supervisor"`
	}
	b, err := json.Marshal(e.Detail)
	if e.Kind != "death" || err != nil || json.Unmarshal(b, &d) != nil || !d.Again || !d.Supervisor.Alive() {
		return 0
	}
	return d.Supervisor.PID
}

// locked reports whether a process holds the run's lock. A shared lock is tried, so that two readers do not see each
// other.
func locked(path string) bool {
	name := filepath.Join(path, lockFile)
	if _, err := os.Stat(name); err != nil {
		return false
	}
	l := flock.New(name, flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock()
	if err != nil || !free {
		return err == nil
	}
	return l.Unlock() != nil
}

// Last returns the last step that was applied, or nil.
func (r *Record) Last() *Step {
	for i := range slices.Backward(r.Steps) {
		if !r.Steps[i].Refused() {
			return &r.Steps[i]
		}
	}
	return nil
}

// Updated returns when the run was last written to, as its records say.
func (r *Record) Updated() time.Time {
	t := r.Manifest.Started
	if n := len(r.Events); n > 0 && r.Events[n-1].Time.After(t) {
		t = r.Events[n-1].Time
	}
	if r.Receipt != nil && r.Receipt.Finished.After(t) {
		t = r.Receipt.Finished
	}
	return t
}

// Version returns a text that changes whenever the records of a run do, or its status. It reads no record.
func Version(path string) string {
	var b strings.Builder
	for _, name := range []string{manifestFile, "steps.jsonl", "events.jsonl", "receipt.json", SamplesFile} {
		if st, err := os.Stat(filepath.Join(path, name)); err == nil {
			fmt.Fprintf(&b, "%x.%x", st.Size(), st.ModTime().UnixNano())
		}
		b.WriteByte('-')
	}
	fmt.Fprint(&b, locked(path))
	return b.String()
}

// missing reports whether there is nothing under a name; a directory or a FIFO there is no file that a run wrote.
func missing(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.ID == "E-FILE-001"
}

// readJSON decodes a document, and reports false if there is none.
func readJSON(path string, v any) (bool, error) {
	text, err := readfile.String(path, maxDocument)
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return false, fault.In(fault.Format, path, "is not a record of a run").Because(err).WithID("E-RUN-005")
	}
	return true, nil
}

// readLines decodes the complete lines of a file; there may be none.
func readLines[T any](path string, into *[]T, damaged *int) error {
	f, _, err := readfile.Open(path)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = scanLines(f, func(line []byte) {
		var v T
		if json.Unmarshal(line, &v) != nil {
			*damaged++
			return
		}
		*into = append(*into, v)
	})
	if err != nil {
		return fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	return nil
}

// scanLines calls each for every complete line and returns the bytes of these lines. Of a line over the limit, each gets
// nil.
func scanLines(r io.Reader, each func([]byte)) (int64, error) {
	var done int64
	br := bufio.NewReaderSize(r, 1<<16)
	var line []byte
	var long int64 // bytes of a line over the limit
	for {
		part, err := br.ReadSlice('\n')
		if long > 0 || len(line)+len(part) > maxLine {
			long += int64(len(line) + len(part))
			line = line[:0]
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return done, nil
		case err != nil:
			return done, err
		default:
			done += int64(len(line)) + long
			if long > 0 {
				each(nil)
			} else if text := bytes.TrimSpace(line); len(text) > 0 {
				each(text)
			}
			line, long = line[:0], 0
		}
	}
}

// Follower reads the steps of a run as they are written.
type Follower struct {
	path   string
	at     int64       // bytes read: whole lines
	inode  fs.FileInfo // of the file they were read from
	Damage int         // lines that cannot be read
}

// Follow returns a follower at the beginning of a run's steps.
func Follow(path string) *Follower { return &Follower{path: filepath.Join(path, "steps.jsonl")} }

// Next returns the steps that were written since the last call. When a resumed run has replaced the file, it begins
// again and again is true: earlier steps may be returned a second time.
func (f *Follower) Next() (steps []Step, again bool, err error) {
	file, size, err := readfile.Open(f.path)
	if missing(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, false, readfile.Fault(f.path, err)
	}
	if again = f.inode != nil && (!os.SameFile(st, f.inode) || size < f.at); again {
		f.at = 0
	}
	f.inode = st
	if _, err := file.Seek(f.at, io.SeekStart); err != nil {
		return nil, again, readfile.Fault(f.path, err)
	}
	n, err := scanLines(file, func(line []byte) {
		var s Step
		if json.Unmarshal(line, &s) != nil {
			f.Damage++
			return
		}
		steps = append(steps, s)
	})
	f.at += n
	if err != nil {
		return steps, again, readfile.Fault(f.path, err)
	}
	return steps, again, nil
}

// UnmarshalJSON reads null as NaN: what was not finite, or not computed.
func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}

// Finite reports whether n is a number.
func (n Number) Finite() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// ReadManifest reads a run's manifest alone; nil if there is none that can be read.
func ReadManifest(path string) *Manifest {
	var m Manifest
	if found, err := readJSON(filepath.Join(path, manifestFile), &m); err != nil || !found {
		return nil
	}
	return &m
}
