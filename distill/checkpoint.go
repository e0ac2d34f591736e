package distill

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// state is state.json of a checkpoint: everything beside the tensors that the next step depends on, and what must
// agree for the continuation to be bit-exact. All randomness of a run is a function of (seed, position), so the
// position is the state of the generators.
type state struct {
	Schema   string          `json:"schema"` // "apr.checkpoint/1"
	Leg      string          `json:"leg"`
	Step     int             `json:"step"`    // the next step
	Applied  int             `json:"applied"` // optimiser updates done
	Position corpus.Position `json:"position"`
	Seed     uint64          `json:"seed"`
	World    int             `json:"world_size"`
	Must     map[string]any  `json:"must_agree"`
	Progress Outcome         `json:"progress"`
	Best     float64         `json:"best_loss"`
	SHA256   string          `json:"sha256"` // of state.safetensors
	Bytes    int64           `json:"bytes"`
	Written  time.Time       `json:"written"`
}

const (
	tensorsFile = "state.safetensors"
	stateFile   = "state.json"
)

// checkpoints is a folder of checkpoints step-NNNNNN.
type checkpoints struct {
	dir  string
	keep int
}

func (c checkpoints) name(step int) string {
	return filepath.Join(c.dir, fmt.Sprintf("step-%06d", step))
}

// write makes a checkpoint appear, durably, and only then deletes old ones: temporary folder, files synced, rename,
// parent synced.
func (c checkpoints) write(st state, tensors []tensor.Source) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fault.In(fault.IO, c.dir, "cannot be created").Because(err)
	}
	c.sweep()
	tmp := c.name(st.Step) + ".apr-tmp"
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return fault.In(fault.IO, tmp, "cannot be created").Because(err)
	}
	err := c.fill(tmp, st, tensors)
	if err == nil {
		err = c.appear(tmp, c.name(st.Step))
	}
	if err != nil {
		os.RemoveAll(tmp)
		return err
	}
	return c.prune(st.Step)
}

// fill writes the files of a checkpoint; both writers sync what they wrote.
func (c checkpoints) fill(tmp string, st state, tensors []tensor.Source) error {
	path := filepath.Join(tmp, tensorsFile)
	if err := safetensors.Write(path, tensors, safetensors.Options{}); err != nil {
		return err
	}
	var err error
	if st.SHA256, st.Bytes, err = hashFile(path); err != nil {
		return err
	}
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("checkpoint state: %w", err)
	}
	return atomicfile.WriteFile(filepath.Join(tmp, stateFile), append(b, '\n'), false)
}

// appear renames the folder and syncs its parent. A checkpoint of the same step (after a resume) is replaced.
func (c checkpoints) appear(tmp, final string) error {
	if err := os.RemoveAll(final); err != nil {
		return fault.In(fault.IO, final, "cannot be replaced").Because(err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return fault.In(fault.IO, final, "cannot be renamed into place").Because(err)
	}
	d, err := os.Open(c.dir)
	if err != nil {
		return fault.In(fault.IO, c.dir, "cannot be opened").Because(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fault.In(fault.IO, c.dir, "cannot be synced").Because(err)
	}
	return nil
}

// sweep removes what an interrupted writer left behind.
func (c checkpoints) sweep() {
	stray, _ := filepath.Glob(filepath.Join(c.dir, "*.apr-tmp"))
	for _, s := range stray {
		os.RemoveAll(s)
	}
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
		if err := os.RemoveAll(name); err != nil {
			return fault.In(fault.IO, name, "old checkpoint cannot be removed").Because(err)
		}
	}
	return nil
}

// list returns the checkpoints in ascending order of step.
func (c checkpoints) list() ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.In(fault.IO, c.dir, "cannot be read").Because(err)
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "step-") && !strings.HasSuffix(e.Name(), ".apr-tmp") {
			all = append(all, filepath.Join(c.dir, e.Name()))
		}
	}
	slices.SortFunc(all, func(a, b string) int { // longer numbers are larger
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return all, nil
}

// open reads a checkpoint and verifies it.
func openCheckpoint(dir string) (state, *safetensors.File, error) {
	var st state
	path := filepath.Join(dir, stateFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return st, nil, fault.In(fault.NotFound, path, "cannot be read").Because(err)
	}
	if err := json.Unmarshal(b, &st); err != nil {
		return st, nil, fault.In(fault.Format, path, "is not a checkpoint's state").Because(err).WithID("E-CKPT-001")
	}
	path = filepath.Join(dir, tensorsFile)
	sum, n, err := hashFile(path)
	if err != nil {
		return st, nil, err
	}
	if sum != st.SHA256 || n != st.Bytes {
		return st, nil, fault.In(fault.Format, path, "is damaged: SHA-256 %s over %d bytes, state.json says %s over %d", sum, n, st.SHA256, st.Bytes).WithID("E-CKPT-002")
	}
	f, err := safetensors.Open(path)
	return st, f, err
}

// newest opens the newest valid checkpoint; damaged ones are named in skipped.
func (c checkpoints) newest() (st state, f *safetensors.File, from string, skipped []error, err error) {
	all, err := c.list()
	if err != nil {
		return st, nil, "", nil, err
	}
	for _, dir := range slices.Backward(all) {
		st, f, err := openCheckpoint(dir)
		if err == nil {
			return st, f, dir, skipped, nil
		}
		skipped = append(skipped, err)
	}
	if len(skipped) > 0 {
		return st, nil, "", skipped, errors.Join(append([]error{fault.In(fault.Invalid, c.dir, "no checkpoint is valid")}, skipped...)...)
	}
	return st, nil, "", nil, nil
}

func hashFile(path string) (sum string, bytes int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, fault.In(fault.NotFound, path, "cannot be read").Because(err)
	}
	defer f.Close()
	h := sha256.New()
	if bytes, err = io.Copy(h, f); err != nil {
		return "", 0, fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	return hex.EncodeToString(h.Sum(nil)), bytes, nil
}

// trainingTensors are weights and both moments of every part, as float32.
func trainingTensors(m *model.Model, s device.Stream) []tensor.Source {
	var out []tensor.Source
	for _, p := range m.Parts() {
		for _, k := range []struct {
			prefix string
			t      device.Tensor
		}{{"", p.Param.Value}, {"optimizer.m.", p.Param.M}, {"optimizer.v.", p.Param.V}} {
			out = append(out, model.DownloadSource(s, k.prefix+p.Name, p.Shape, p.Of(k.t), tensor.F32))
		}
	}
	return out
}

// restoreTensors is the inverse of trainingTensors.
func restoreTensors(m *model.Model, s device.Stream, f *safetensors.File) error {
	for _, p := range m.Parts() {
		for _, k := range []struct {
			prefix string
			t      device.Tensor
		}{{"", p.Param.Value}, {"optimizer.m.", p.Param.M}, {"optimizer.v.", p.Param.V}} {
			st, ok := f.Tensor(k.prefix + p.Name)
			if !ok || !slices.Equal(st.Shape, p.Shape) || st.DType != tensor.F32 {
				return fault.In(fault.Invalid, f.Path(), "is missing or not float32 of shape %v", p.Shape).At("tensor %q", k.prefix+p.Name).
					WithHint("the checkpoint is of another student").WithID("E-CKPT-003")
			}
			host, err := model.ReadFloat32(f.Path(), st)
			if err != nil {
				return err
			}
			s.Upload(p.Of(k.t), host)
		}
	}
	m.Refresh(s)
	return nil
}
