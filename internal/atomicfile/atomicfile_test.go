//go:build !windows

package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"apr/internal/fault"
)

// faulty is the real file system whose n-th operation (from 0) fails with err. A short write takes half the bytes.
type faulty struct {
	osSystem
	n, count int
	err      error
	short    bool
	noLinks  bool
	log      []string
}

func (s *faulty) fails(op string) error {
	s.log = append(s.log, op)
	s.count++
	if s.count-1 == s.n {
		return s.err
	}
	return nil
}

func (s *faulty) lstat(p string) (fs.FileInfo, error) {
	if err := s.fails("lstat"); err != nil {
		return nil, err
	}
	return s.osSystem.lstat(p)
}

func (s *faulty) createTemp(dir, pattern string, mode fs.FileMode) (tempFile, error) {
	if err := s.fails("create"); err != nil {
		return nil, err
	}
	f, err := s.osSystem.createTemp(dir, pattern, mode)
	if err != nil {
		return nil, err
	}
	return &faultyFile{f, s}, nil
}

func (s *faulty) rename(a, b string) error {
	if err := s.fails("rename"); err != nil {
		return err
	}
	return s.osSystem.rename(a, b)
}

func (s *faulty) link(a, b string) error {
	if s.noLinks {
		return syscall.EPERM
	}
	if err := s.fails("link"); err != nil {
		return err
	}
	return s.osSystem.link(a, b)
}

func (s *faulty) syncDir(d string) error {
	if err := s.fails("syncdir"); err != nil {
		return err
	}
	return s.osSystem.syncDir(d)
}

func (s *faulty) free(string) (uint64, bool) { return 0, false }

type faultyFile struct {
	tempFile
	s *faulty
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.s.fails("write"); err != nil {
		n, _ := f.tempFile.Write(p[:len(p)/2])
		if f.s.short {
			return n, nil
		}
		return n, err
	}
	return f.tempFile.Write(p)
}

func (f *faultyFile) Sync() error {
	if err := f.s.fails("sync"); err != nil {
		return err
	}
	return f.tempFile.Sync()
}

func (f *faultyFile) Close() error {
	if err := f.s.fails("close"); err != nil {
		f.tempFile.Close()
		return err
	}
	return f.tempFile.Close()
}

// save writes "new content" in three pieces.
func save(sys system, path string, force bool) error {
	f, err := create(sys, path, force, shared)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Expect(11); err != nil {
		return err
	}
	for _, s := range []string{"new", " ", "content"} {
		if _, err := f.Write([]byte(s)); err != nil {
			return err
		}
	}
	return f.Commit()
}

// TestEveryFailure lets each operation fail in turn: the error is an I/O fault, the old file is whole, and nothing
// stays behind. Only a failed sync of the directory leaves the new name, which is complete.
func TestEveryFailure(t *testing.T) {
	for _, force := range []bool{true, false} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			for _, short := range []bool{false, true} {
				for n := 0; ; n++ {
					sys := &faulty{n: n, err: cause, short: short}
					dir := t.TempDir()
					path := filepath.Join(dir, "model")
					if force {
						write(t, path, "old content")
					}
					err := save(sys, path, force)
					if sys.count <= n {
						if err != nil {
							t.Fatal(err)
						}
						break // n is past the last operation
					}
					name := fmt.Sprintf("force %v, %v, short %v, operation %d (%s)", force, cause, short, n, sys.log[n])
					if fault.KindOf(err) != fault.IO {
						t.Errorf("%s: got %v, want an I/O fault", name, err)
					}
					checkDir(t, name, dir, force, sys.log[n])
				}
			}
		}
	}
}

func checkDir(t *testing.T, name, dir string, force bool, op string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[bool]string{true: "old content", false: ""}[force]
	if op == "syncdir" {
		want = "new content"
	}
	got, _ := os.ReadFile(filepath.Join(dir, "model"))
	if string(got) != want {
		t.Errorf("%s: target holds %q, want %q", name, got, want)
	}
	for _, e := range entries {
		if e.Name() != "model" {
			t.Errorf("%s: %s left behind", name, e.Name())
		}
	}
}

func TestOrder(t *testing.T) {
	for force, want := range map[bool]string{
		true:  "[lstat create write write write sync close rename syncdir]",
		false: "[lstat create write write write sync close link syncdir]",
	} {
		sys := &faulty{n: -1}
		if err := save(sys, filepath.Join(t.TempDir(), "model"), force); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(sys.log); got != want {
			t.Errorf("force %v: %s, want %s", force, got, want)
		}
	}
}

func TestWithoutHardLinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model")
	if err := save(&faulty{n: -1, noLinks: true}, path, false); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "new content" {
		t.Errorf("got %q", got)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	write(t, old, "old")
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		force      bool
		kind       fault.Kind
		text       string
	}{
		{"existing", old, false, fault.Invalid, old + ": already exists [E-FILE-011]"},
		{"directory", dir, true, fault.Invalid, dir + ": is a directory [E-FILE-012]"},
		{"fifo", fifo, true, fault.Invalid, fifo + ": exists and is not a regular file [E-FILE-012]"},
		{"no directory", dir + "/no/x", false, fault.NotFound, dir + "/no/x: directory \"" + dir + "/no\" not found [E-FILE-001]"},
		{"file as directory", old + "/x", false, fault.IO, old + "/x: cannot be created: not a directory [E-FILE-013]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Create(c.path, c.force)
			if err == nil {
				f.Close()
				t.Fatal("accepted")
			}
			if err.Error() != c.text || fault.KindOf(err) != c.kind {
				t.Errorf("got %v (%v)\nwant %s (%v)", err, fault.KindOf(err), c.text, c.kind)
			}
		})
	}
}

// TestRace makes the target appear between Create and Commit: it must not be replaced without force.
func TestRace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	f, err := Create(path, false)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "theirs")
	if err := f.Commit(); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Commit: %v", err)
	}
	checkDirNames(t, dir, "model")
	if got, _ := os.ReadFile(path); string(got) != "theirs" {
		t.Errorf("target holds %q", got)
	}
}

func TestAbort(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "model"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	f.Abort()
	f.Abort()
	if _, err := f.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Write after Abort: %v", err)
	}
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Commit after Abort: %v", err)
	}
	checkDirNames(t, dir)
}

func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "model"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, ok := f.sys.free(dir); !ok {
		t.Fatal("free space unknown")
	}
	if err := f.Expect(1<<63 - 1); fault.KindOf(err) != fault.IO {
		t.Errorf("Expect: %v", err)
	}
	checkDirNames(t, dir)
}

func TestLinkIsReplaced(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	write(t, target, "target")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(link, []byte("new"), true); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(target); string(got) != "target" {
		t.Errorf("the link was followed: target holds %q", got)
	}
	usual, err := os.OpenFile(filepath.Join(dir, "usual"), os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer usual.Close()
	want, err := usual.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode() != want.Mode() {
		t.Errorf("mode %v, %v; want a regular file of mode %v, as others are made", info.Mode(), err, want.Mode())
	}
	if err := WritePrivate(link, []byte("private"), true); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestIsTemp(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "model"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 || !IsTemp(entries[0].Name()) || IsTemp("model") {
		t.Errorf("temporary name %v not recognised", entries)
	}
}

func checkDirNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("directory holds %v, want %v", got, want)
	}
}

func write(t *testing.T, path, s string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
}
