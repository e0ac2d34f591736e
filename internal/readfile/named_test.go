//go:build !windows

package readfile

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"apr/internal/fault"
)

// TestCheckNamed: a content of a hub's cache has the SHA-256 that is its name; nothing else is looked at.
func TestCheckNamed(t *testing.T) {
	root := t.TempDir()
	repo := filepath.Join(root, "models--org--name")
	blobs, snapshot := filepath.Join(repo, "blobs"), filepath.Join(repo, "snapshots", "abc")
	must(t, os.MkdirAll(blobs, 0o700))
	must(t, os.MkdirAll(snapshot, 0o700))
	must(t, os.MkdirAll(filepath.Join(root, "blobs"), 0o700))
	name := fmt.Sprintf("%x", sha256.Sum256([]byte("text")))
	for _, c := range []struct {
		what, dir, name, content string
		want                     fault.Kind
	}{
		{"sound", blobs, name, "text", 0},
		{"damaged", blobs, name, "tezt", fault.Invalid},
		{"cut", blobs, name, "tex", fault.Invalid},
		{"named by git", blobs, name[:40], "tezt", 0},
		{"no cache", filepath.Join(root, "blobs"), name, "tezt", 0},
		{"a folder of that name", snapshot, name, "tezt", 0},
	} {
		content, link := filepath.Join(c.dir, c.name), filepath.Join(snapshot, "model.safetensors")
		must(t, os.WriteFile(content, []byte(c.content), 0o600))
		must(t, os.Symlink(content, link))
		for _, path := range []string{content, link} {
			if err := CheckNamed(path); fault.KindOf(err) != c.want {
				t.Errorf("%s, %s: %v", c.what, path, err)
			}
		}
		must(t, os.Remove(link))
	}
	if err := CheckNamed(filepath.Join(blobs, "none")); fault.KindOf(err) != fault.NotFound {
		t.Errorf("missing: %v", err)
	}
}
