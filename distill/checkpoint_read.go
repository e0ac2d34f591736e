package distill

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/format/safetensors"
	"apr/internal/fault"
)

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
		return st, fault.In(fault.Format, path, "or %s beside it is damaged: its SHA-256 %x or that of the tensors is not "+
			"the same in both", sumsFile, own).WithID("E-CKPT-002")
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
		return st, fault.In(fault.Format, path, "is damaged: SHA-256 %s over %d bytes, state.json says %s over %d", sum, n,
			st.SHA256, st.Bytes).WithID("E-CKPT-002")
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
	st, from, skipped, err = c.newestOf(func(dir string) (st state, err error) {
		st, f, err = c.open(dir)
		return st, err
	})
	return st, f, from, skipped, err
}

// newestOf is newest with a way to read a checkpoint; from is empty if there is none.
func (c checkpoints) newestOf(read func(dir string) (state, error)) (st state, from string, skipped []error,
	err error) {
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
		none := fault.In(fault.Invalid, c.dir, "no checkpoint is valid")
		return st, "", skipped, errors.Join(append([]error{none}, skipped...)...)
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
