//go:build !windows

package readfile

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apr/internal/fault"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	must(t, os.WriteFile(file, []byte("text"), 0o600))
	must(t, syscall.Mkfifo(fifo, 0o600))
	must(t, os.Symlink(fifo, link))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	for _, c := range []struct {
		name, path, want string
		kind             fault.Kind
	}{
		{"missing", dir + "/x", dir + "/x: file not found [E-FILE-001]", fault.NotFound},
		{"below a file", file + "/x", file + "/x: file not found [E-FILE-001]", fault.NotFound},
		{"directory", dir, dir + ": not a file: it is a directory [E-FILE-002]", fault.NotFound},
		{"fifo", fifo, fifo + ": not a file: only regular files are read, no FIFO, device or socket [E-FILE-003]", fault.NotFound},
		{"link to a fifo", link, link + ": not a file: only regular files are read, no FIFO, device or socket [E-FILE-003]", fault.NotFound},
		{"device", "/dev/zero", "/dev/zero: not a file: only regular files are read, no FIFO, device or socket [E-FILE-003]", fault.NotFound},
		{"loop of links", dir + "/loop", dir + "/loop: cannot be read: too many levels of symbolic links [E-FILE-004]", fault.IO},
	} {
		_, _, err := Open(c.path)
		if err == nil || err.Error() != c.want || fault.KindOf(err) != c.kind {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	if s, err := String(file, 4); s != "text" || err != nil {
		t.Errorf("String: %q, %v", s, err)
	}
	if _, err := String(file, 3); err == nil || err.Error() != file+": file of 4 bytes is over the limit of 3 [E-FILE-005]" {
		t.Errorf("String over the limit: %v", err)
	}
}

// TestWhole: a file that ends early is a fault, one that grew is read on.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		size int64
		want string
	}{
		{3, ""}, {4, ""},
		{5, "m: offset 4: file had 5 bytes and ends here: it was shortened while it was read [E-FILE-008]"},
	} {
		b, err := io.ReadAll(Whole(strings.NewReader("text"), "m", c.size))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if string(b) != "text" || got != c.want || c.want != "" && fault.KindOf(err) != fault.IO {
			t.Errorf("%d bytes: %q, %v, want %s", c.size, b, err, c.want)
		}
	}
}

func TestPlainName(t *testing.T) {
	for _, good := range []string{"model.safetensors", "model-00001-of-00002.safetensors", "...", "é.apr", "console", "com10", "COM", "aux-model"} {
		if err := PlainName(good); err != nil {
			t.Errorf("%q refused: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", "/etc/passwd", "../x", `..\x`, `C:\x`, "C:x", "a\x00b", "a\nb", "\u0085", "NUL", "nul.txt",
		"com1.safetensors", "LPT9", "aux ", "CON.a.b"} {
		if err := PlainName(bad); fault.KindOf(err) != fault.UnsafePath {
			t.Errorf("%q: %v, want an unsafe path", bad, err)
		}
	}
}

func TestInside(t *testing.T) {
	root := t.TempDir()
	repo := filepath.Join(root, "models--org--name")
	snapshot, blobs := filepath.Join(repo, "snapshots", "abc"), filepath.Join(repo, "blobs")
	must(t, os.MkdirAll(snapshot, 0o700))
	must(t, os.MkdirAll(blobs, 0o700))
	must(t, os.WriteFile(filepath.Join(blobs, "0123"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(root, "secret"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(root, "plain"), nil, 0o600))
	must(t, os.Symlink("../../blobs/0123", filepath.Join(snapshot, "in")))
	must(t, os.Symlink("../../../secret", filepath.Join(snapshot, "out")))
	must(t, os.Symlink("models--org--name/blobs/0123", filepath.Join(root, "own")))
	must(t, os.Symlink(snapshot, filepath.Join(root, "link")))
	for _, c := range []struct {
		name, dir, file string
		kind            fault.Kind
	}{
		{"hub link into blobs", snapshot, "in", 0},
		{"the same through a link", filepath.Join(root, "link"), "in", 0},
		{"link out of the repository", snapshot, "out", fault.UnsafePath},
		{"the same through a link", filepath.Join(root, "link"), "out", fault.UnsafePath},
		{"plain file", root, "plain", 0},
		{"link downwards", root, "own", 0},
		{"parent", snapshot, "..", fault.UnsafePath},
		{"missing", snapshot, "none", fault.NotFound},
	} {
		if _, err := Inside(c.dir, c.file); fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	must(t, os.Remove(filepath.Join(blobs, "0123")))
	must(t, os.Remove(blobs))
	if _, err := Inside(snapshot, "in"); fault.KindOf(err) == 0 {
		t.Error("without blobs the snapshot is no hub cache")
	}
}
