package distill

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"apr/corpus"
	"apr/format/safetensors"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/tensor"
)

// state is state.json of a checkpoint: everything beside the tensors that the next step depends on, and what must
// agree for the continuation to be bit-exact. All randomness of a run is a function of (seed, position), so the
// position is the state of the generators.
type state struct {
	Schema   string          `json:"schema"` // checkpointSchema
	Leg      string          `json:"leg"`
	Step     int             `json:"step"`    // the next step
	Applied  int             `json:"applied"` // optimiser updates done
	Position corpus.Position `json:"position"`
	Seed     uint64          `json:"seed"`
	World    int             `json:"world_size"`
	Must     map[string]any  `json:"must_agree"`
	Progress Outcome         `json:"progress"`
	Best     float64         `json:"best_loss"`
	Losses   trend           `json:"losses"`
	Refused  int             `json:"refused"`         // steps in a row, up to the last one
	Own      *ownGuard       `json:"own,omitempty"`   // of a student that writes rows itself
	Ahead    *aheadState     `json:"ahead,omitempty"` // rows that it has written for the next step
	SHA256   string          `json:"sha256"`          // of state.safetensors
	Bytes    int64           `json:"bytes"`
	Written  time.Time       `json:"written"`
}

// The files of a checkpoint.
const (
	tensorsFile = "state.safetensors"
	stateFile   = "state.json"
	sumsFile    = "SHA256SUMS" // of the others, as sha256sum -c reads it
)

// checkpointFolder holds the checkpoints of the student's leg; those of another leg have its name behind it.
const checkpointFolder = "checkpoints"

// Suffixes of folders that are no checkpoints, or no longer.
const (
	tempSuffix = ".apr-tmp" // being written, or being removed
	oldSuffix  = ".apr-old" // the one before of the same step, until the new one is durable
)

// checkpoints is a folder of checkpoints step-NNNNNN.
type checkpoints struct {
	dir   string
	keep  int
	disk  disk.Disk
	alive func(doing string) // called while files are written and read; nil: not called
}

func (c checkpoints) name(step int) string {
	return filepath.Join(c.dir, fmt.Sprintf("step-%06d", step))
}

// write makes a checkpoint appear, durably, and only then deletes old ones:
//
//	temporary folder → files, each synced → its names synced → rename → names of the parent synced → old ones removed
//
// A failure leaves those before as they were: the temporary folder is removed, and no sync is tried twice. Only when
// write has returned nil may the checkpoint be announced.
func (c checkpoints) write(st state, tensors []tensor.Source) error {
	if err := c.makeFolder(); err != nil {
		return err
	}
	if err := c.sweep(); err != nil {
		return err
	}
	if err := c.checkSpace(tensors); err != nil {
		return err
	}
	final := c.name(st.Step)
	tmp := final + tempSuffix
	if err := c.disk.Mkdir(tmp); err != nil {
		return c.failed(tmp, "cannot be created", tensors, err)
	}
	err := c.fill(tmp, st, tensors)
	if err == nil {
		err = c.appear(tmp, final, tensors)
	}
	if err != nil {
		_ = disk.RemoveAll(c.disk, tmp) // the failure is known; what stays is swept later
		return err
	}
	return c.prune(st.Step)
}

// makeFolder makes the folder and its name durable, and that of the run that it is part of.
func (c checkpoints) makeFolder() error {
	run := filepath.Dir(c.dir)
	if err := c.disk.Mkdir(c.dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return c.failed(c.dir, "cannot be created", nil, err)
	}
	for _, dir := range []string{run, filepath.Dir(run)} {
		if err := c.disk.SyncDir(dir); err != nil {
			return c.failed(dir, "cannot be synced", nil, err)
		}
	}
	return nil
}

// checkSpace refuses a checkpoint that the disk has no room for, before a byte of it is written.
func (c checkpoints) checkSpace(tensors []tensor.Source) error {
	need := bytesNeeded(tensors)
	if free, ok := c.disk.Free(c.dir); ok && uint64(need) > free {
		return fault.In(fault.IO, c.dir, "no space left for a checkpoint: %d bytes needed, %d free", need, free).
			WithHint("%s", c.makeRoom()).WithID("E-FILE-015")
	}
	return nil
}

// kept says what there still is when one more checkpoint could not be written, and the remedy for either case.
func (c checkpoints) kept(resume, anew string) string {
	// the student's leg comes before the control's
	for _, leg := range []string{c.dir, filepath.Join(filepath.Dir(c.dir), checkpointFolder)} {
		c.dir = leg
		all, err := c.list()
		switch {
		case err != nil:
			return "what was written before is untouched"
		case len(all) > 0:
			return "the last checkpoint is kept" + resume
		}
	}
	return "no checkpoint was written before" + anew
}

// makeRoom says what to do about a full disk.
func (c checkpoints) makeRoom() string {
	return c.kept(": make room and --resume", ": make room and start again, with --force")
}

// bytesNeeded bounds the size of a checkpoint: payloads, a header line for each tensor, the state.
func bytesNeeded(tensors []tensor.Source) int64 {
	need := int64(64 << 10)
	for _, t := range tensors {
		need += t.Size + int64(len(t.Name)) + 128
	}
	return need
}

// failed says what could not be done; of a full disk, how many bytes a checkpoint needs.
func (c checkpoints) failed(path, what string, tensors []tensor.Source, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.In(fault.IO, path, "%s: no space left: %d bytes needed for a checkpoint", what, bytesNeeded(tensors)).
			Because(cause(err)).WithHint("%s", c.makeRoom()).WithID("E-FILE-015")
	}
	return fault.In(fault.IO, path, "%s", what).Because(cause(err)).WithHint("%s", c.kept("", "")).WithID("E-CKPT-005")
}

// cause drops the path from an error of a disk.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// fill writes the files of a checkpoint and makes them and their names durable.
func (c checkpoints) fill(tmp string, st state, tensors []tensor.Source) error {
	var err error
	if st.SHA256, st.Bytes, err = c.writeFile(filepath.Join(tmp, tensorsFile), tensors, func(w io.Writer) error {
		_, err := safetensors.Encode(w, tensors, nil)
		return err
	}); err != nil {
		return err
	}
	text, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("checkpoint state: %w", err)
	}
	put := func(name string, text []byte) (string, error) {
		sum, _, err := c.writeFile(filepath.Join(tmp, name), tensors, func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		})
		return sum, err
	}
	sum, err := put(stateFile, append(text, '\n'))
	if err != nil {
		return err
	}
	if _, err := put(sumsFile, []byte(sums(sum, st.SHA256))); err != nil {
		return err
	}
	if err := c.disk.SyncDir(tmp); err != nil {
		return c.failed(tmp, "cannot be synced", tensors, err)
	}
	return nil
}

// sums is the content of SHA256SUMS.
func sums(ofState, ofTensors string) string {
	return ofState + "  " + stateFile + "\n" + ofTensors + "  " + tensorsFile + "\n"
}

// writeFile writes and syncs a file of a checkpoint, and returns the SHA-256 of what was written.
func (c checkpoints) writeFile(path string, tensors []tensor.Source, emit func(io.Writer) error) (sum string, n int64,
	err error) {
	f, err := c.disk.Create(path)
	if err != nil {
		return "", 0, c.failed(path, "cannot be created", tensors, err)
	}
	w := &hashed{w: f, sum: sha256.New(), alive: c.alive, doing: "writing " + path}
	what := "cannot be written"
	if err = emit(w); err == nil {
		what = "cannot be synced"
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil && cerr != nil {
		what, err = "cannot be closed", cerr
	}
	if err != nil {
		if w.err == nil && what == "cannot be written" {
			return "", 0, err // not the disk's: of a tensor
		}
		return "", 0, c.failed(path, what, tensors, err)
	}
	return hex.EncodeToString(w.sum.Sum(nil)), w.n, nil
}

// hashed passes bytes on and hashes what arrived.
type hashed struct {
	w     io.Writer
	sum   hash.Hash
	n     int64
	err   error // of w
	alive func(string)
	doing string
}

// hashedPiece is how much is passed on at once, so that slow disks show progress.
const hashedPiece = 4 << 20

func (h *hashed) Write(p []byte) (done int, err error) {
	for len(p) > 0 && h.err == nil {
		piece := p[:min(len(p), hashedPiece)]
		n, err := h.w.Write(piece)
		if err == nil && n < len(piece) {
			err = io.ErrShortWrite
		}
		h.sum.Write(piece[:n])
		h.n, h.err = h.n+int64(n), err
		done, p = done+n, p[n:]
		if h.alive != nil {
			h.alive(h.doing)
		}
	}
	return done, h.err
}

// appear renames the folder and makes its name durable. A checkpoint of the same step, which a run writes that was
// resumed from it, steps aside until then.
func (c checkpoints) appear(tmp, final string, tensors []tensor.Source) error {
	aside := false
	switch err := c.disk.Rename(final, final+oldSuffix); {
	case err == nil:
		aside = true
		if err := c.disk.SyncDir(c.dir); err != nil {
			return c.failed(c.dir, "cannot be synced", tensors, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return c.failed(final, "cannot be renamed", tensors, err)
	}
	if err := c.disk.Rename(tmp, final); err != nil {
		return c.failed(final, "cannot be renamed into place", tensors, err)
	}
	if err := c.disk.SyncDir(c.dir); err != nil {
		return c.failed(c.dir, "cannot be synced", tensors, err)
	}
	if aside {
		return c.remove(final + oldSuffix)
	}
	return nil
}
