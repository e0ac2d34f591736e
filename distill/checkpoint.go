package distill

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
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
	for _, leg := range []string{c.dir, filepath.Join(filepath.Dir(c.dir), checkpointFolder)} { // the student's leg comes before the control's
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
		return fault.In(fault.IO, path, "%s: no space left: %d bytes needed for a checkpoint", what, bytesNeeded(tensors)).Because(cause(err)).
			WithHint("%s", c.makeRoom()).WithID("E-FILE-015")
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
		sum, _, err := c.writeFile(filepath.Join(tmp, name), tensors, func(w io.Writer) error { _, err := w.Write(text); return err })
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
func (c checkpoints) writeFile(path string, tensors []tensor.Source, emit func(io.Writer) error) (sum string, n int64, err error) {
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

// remove removes a checkpoint: first its name, so that half of one is never taken for one.
func (c checkpoints) remove(dir string) error {
	gone := strings.TrimSuffix(dir, oldSuffix) + ".gone" + tempSuffix
	err := c.disk.Rename(dir, gone)
	if err == nil {
		err = disk.RemoveAll(c.disk, gone)
	}
	if err != nil {
		return fault.In(fault.IO, dir, "old checkpoint cannot be removed").Because(cause(err)).WithID("E-CKPT-006")
	}
	return nil
}

// sweep removes what an interrupted writer left behind, and puts a checkpoint back that had stepped aside for one that
// did not come.
func (c checkpoints) sweep() error {
	entries, err := c.disk.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.In(fault.IO, c.dir, "cannot be read").Because(cause(err)).WithID("E-CKPT-007")
	}
	for _, e := range entries {
		path := filepath.Join(c.dir, e.Name)
		switch {
		case strings.HasSuffix(e.Name, tempSuffix):
			err = disk.RemoveAll(c.disk, path)
		case strings.HasSuffix(e.Name, oldSuffix):
			plain := strings.TrimSuffix(e.Name, oldSuffix)
			if slices.ContainsFunc(entries, func(e disk.Entry) bool { return e.Name == plain }) {
				err = c.remove(path)
			} else if err = c.disk.Rename(path, filepath.Join(c.dir, plain)); err == nil {
				err = c.disk.SyncDir(c.dir)
			}
		}
		if err != nil {
			return fault.In(fault.IO, path, "what an interrupted writer left cannot be cleared away").Because(cause(err)).WithID("E-CKPT-008")
		}
	}
	return nil
}

// prune keeps the newest checkpoints up to that of the given step, just written. Later ones belong to a continuation
// that was given up for one from an earlier checkpoint: kept, they would be resumed instead of it.
func (c checkpoints) prune(step int) error {
	all, err := c.list()
	if err != nil {
		return err
	}
	newest := slices.Index(all, c.name(step)) + 1
	for _, name := range slices.Concat(all[:max(0, newest-c.keep)], all[newest:]) {
		if err := c.remove(name); err != nil {
			return err
		}
	}
	if newest < len(all) { // one that was given up must not come back
		if err := c.disk.SyncDir(c.dir); err != nil {
			return c.failed(c.dir, "cannot be synced", nil, err)
		}
	}
	return nil
}

// list returns the checkpoints in ascending order of step; of one step, the one that had stepped aside first.
func (c checkpoints) list() ([]string, error) {
	entries, err := c.disk.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.In(fault.IO, c.dir, "cannot be read").Because(cause(err)).WithID("E-CKPT-007")
	}
	var all []string
	for _, e := range entries {
		if e.Dir && strings.HasPrefix(e.Name, "step-") && !strings.HasSuffix(e.Name, tempSuffix) {
			all = append(all, filepath.Join(c.dir, e.Name))
		}
	}
	slices.SortFunc(all, func(a, b string) int { // longer numbers are larger
		x, y := strings.TrimSuffix(a, oldSuffix), strings.TrimSuffix(b, oldSuffix)
		return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y), cmp.Compare(len(b), len(a)))
	})
	return all, nil
}

// verify reads a checkpoint's state after it has found both files to be what was written, byte by byte.
func (c checkpoints) verify(dir string) (st state, err error) {
	path := filepath.Join(dir, sumsFile)
	want, err := c.read(path)
	if err != nil {
		return st, err
	}
	path = filepath.Join(dir, stateFile)
	text, err := c.read(path)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(text, &st); err != nil {
		return st, fault.In(fault.Format, path, "is not a checkpoint's state").Because(err).WithID("E-CKPT-001")
	}
	if own := sha256.Sum256(text); string(want) != sums(hex.EncodeToString(own[:]), st.SHA256) {
		return st, fault.In(fault.Format, path, "or %s beside it is damaged: its SHA-256 %x or that of the tensors is not the same in both", sumsFile, own).WithID("E-CKPT-002")
	}
	if is, want := strings.TrimSuffix(filepath.Base(dir), oldSuffix), filepath.Base(c.name(st.Step)); is != want {
		return st, fault.In(fault.Format, dir, "was renamed: it holds the checkpoint %s", want).WithID("E-CKPT-010")
	}
	path = filepath.Join(dir, tensorsFile)
	sum, n, err := c.hashFile(path)
	if err != nil {
		return st, err
	}
	if sum != st.SHA256 || n != st.Bytes {
		return st, fault.In(fault.Format, path, "is damaged: SHA-256 %s over %d bytes, state.json says %s over %d", sum, n, st.SHA256, st.Bytes).WithID("E-CKPT-002")
	}
	return st, nil
}

// maxState bounds the small files of a checkpoint.
const maxState = 16 << 20

// read reads a small file of a checkpoint.
func (c checkpoints) read(path string) ([]byte, error) {
	f, err := c.disk.Open(path)
	if err != nil {
		return nil, fault.In(fault.NotFound, path, "cannot be read").Because(cause(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot be read").Because(cause(err))
	}
	if len(b) > maxState {
		return nil, fault.In(fault.Format, path, "has more than %d bytes", maxState).WithID("E-CKPT-001")
	}
	return b, nil
}

// open verifies a checkpoint and opens its tensors.
func (c checkpoints) open(dir string) (state, *safetensors.File, error) {
	st, err := c.verify(dir)
	if err != nil {
		return st, nil, err
	}
	f, err := safetensors.Open(filepath.Join(dir, tensorsFile))
	return st, f, err
}

// newest opens the newest valid checkpoint; damaged ones are named in skipped.
func (c checkpoints) newest() (st state, f *safetensors.File, from string, skipped []error, err error) {
	st, from, skipped, err = c.newestOf(func(dir string) (st state, err error) { st, f, err = c.open(dir); return st, err })
	return st, f, from, skipped, err
}

// newestOf is newest with a way to read a checkpoint; from is empty if there is none.
func (c checkpoints) newestOf(read func(dir string) (state, error)) (st state, from string, skipped []error, err error) {
	all, err := c.list()
	if err != nil {
		return st, "", nil, err
	}
	for _, dir := range slices.Backward(all) {
		st, err := read(dir)
		if err == nil {
			return st, dir, skipped, nil
		}
		skipped = append(skipped, err)
	}
	if len(skipped) > 0 {
		return st, "", skipped, errors.Join(append([]error{fault.In(fault.Invalid, c.dir, "no checkpoint is valid")}, skipped...)...)
	}
	return st, "", nil, nil
}

// hashFile returns the SHA-256 and the size of a file.
func (c checkpoints) hashFile(path string) (sum string, bytes int64, err error) {
	f, err := c.disk.Open(path)
	if err != nil {
		return "", 0, fault.In(fault.NotFound, path, "cannot be read").Because(cause(err))
	}
	defer f.Close()
	return hashAll(path, f, c.alive)
}

// hashFile returns the SHA-256 and the size of an input or output.
func hashFile(path string) (sum string, bytes int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, fault.In(fault.NotFound, path, "cannot be read").Because(cause(err))
	}
	defer f.Close()
	return hashAll(path, f, nil)
}

func hashAll(path string, r io.Reader, alive func(string)) (sum string, bytes int64, err error) {
	h := &hashed{w: io.Discard, sum: sha256.New(), alive: alive, doing: "verifying " + path}
	if _, err = io.Copy(h, r); err != nil {
		return "", 0, fault.In(fault.IO, path, "cannot be read").Because(cause(err))
	}
	return hex.EncodeToString(h.sum.Sum(nil)), h.n, nil
}

// trainingTensors are weights and both moments of every part, and what is stored with the model but not trained, as float32.
func trainingTensors(m *model.Model, s device.Stream) []tensor.Source {
	var out []tensor.Source
	for _, p := range m.Parts() {
		for _, k := range companions {
			out = append(out, masterSource(m, s, p, k.prefix+p.Name, k.of))
		}
	}
	return append(append(out, storedTensors(m, s)...), m.FixedSources()...)
}

// storedPrefix precedes the name of a parameter whose blocks a checkpoint holds: scales are searched for now and then, so that blocks do
// not follow from the weights.
const storedPrefix = "blocks."

// storedTensors are the bytes of all blocks.
func storedTensors(m *model.Model, s device.Stream) (out []tensor.Source) {
	for _, p := range m.Params() {
		if len(p.Blocks) == 0 {
			continue
		}
		info := tensor.Info{Name: storedPrefix + p.Name, DType: tensor.U8, Shape: []int{p.Stored.Cols}, Size: int64(p.Stored.Cols)}
		out = append(out, tensor.Source{Info: info, Payload: func(w io.Writer) error {
			all, err := model.StoredBytes(s, p)
			if err != nil {
				return err
			}
			_, err = w.Write(all)
			return err
		}})
	}
	return out
}

// restoreStored is the inverse of storedTensors; weights of other parameters are refreshed.
func restoreStored(m *model.Model, s device.Stream, f *safetensors.File) error {
	for _, p := range m.Params() {
		if p.Shared(device.OfValue) {
			continue // its weight was made when it was spread
		}
		if len(p.Blocks) == 0 {
			s.RefreshWeight(p)
			continue
		}
		name := storedPrefix + p.Name
		st, ok := f.Tensor(name)
		if !ok || st.DType != tensor.U8 || st.Size != int64(p.Stored.Cols) {
			return fault.In(fault.Invalid, f.Path(), "is missing or not %d bytes", p.Stored.Cols).At("tensor %q", name).
				WithHint("the checkpoint is of a student in other types").WithID("E-CKPT-003")
		}
		raw := make([]byte, st.Size)
		if n, err := st.ReadAt(raw, 0); n < len(raw) {
			return fault.In(fault.IO, f.Path(), "cannot be read").At("tensor %q", name).Because(err)
		}
		s.(device.Quantizer).SetStored(p, raw)
	}
	return nil
}

// readState reads a tensor of a checkpoint.
func readState(f *safetensors.File, name string, shape []int) ([]float32, error) {
	st, ok := f.Tensor(name)
	if !ok || !slices.Equal(st.Shape, shape) || st.DType != tensor.F32 {
		return nil, fault.In(fault.Invalid, f.Path(), "is missing or not float32 of shape %v", shape).At("tensor %q", name).
			WithHint("the checkpoint is of another student").WithID("E-CKPT-003")
	}
	return modelfile.ReadFloat32(f.Path(), st)
}

// companions are what a checkpoint holds of each parameter.
var companions = []struct {
	prefix string
	of     device.Companion
}{{"", device.OfValue}, {"optimizer.m.", device.OfM}, {"optimizer.v.", device.OfV}}

// masterSource is a part of a companion as float32; of a student in blocks, the values are the master weights.
func masterSource(m *model.Model, s device.Stream, p model.Part, name string, c device.Companion) tensor.Source {
	if p.Param.Shared(c) {
		return m.CompanionSource(s, p, name, c, tensor.F32)
	}
	return model.DownloadSource(s, name, p.Shape, p.Of(p.Param.Companion(c)), tensor.F32)
}

// restoreTensors is the inverse of trainingTensors. Of companions that ranks share, all values are staged, and spread
// lets every rank take its share.
func restoreTensors(m *model.Model, s device.Stream, f *safetensors.File,
	spread func(param, companion int) error) error {
	read := func(name string, shape []int) ([]float32, error) { return readState(f, name, shape) }
	for i, k := range companions {
		for _, p := range m.Parts() {
			host, err := read(k.prefix+p.Name, p.Shape)
			if err != nil {
				return err
			}
			s.Upload(p.Of(p.Param.Staging(k.of)), host)
		}
		for j, p := range m.Params() {
			if p.Shared(k.of) {
				if err := spread(j, i); err != nil {
					return err
				}
			}
		}
	}
	for name, values := range m.Fixed() {
		host, err := read(name, []int{len(values)})
		if err != nil {
			return err
		}
		copy(values, host)
	}
	return restoreStored(m, s, f)
}
