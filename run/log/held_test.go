//go:build !windows

package runlog_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// listing is what stands below path, with the content of files.
func listing(t *testing.T, path string) string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(path+"/.", func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		all = append(all, e.Name()+" "+read(t, p))
		return nil
	}))
	return strings.Join(all, "\n")
}

// A run whose directory was moved, removed or linked elsewhere makes and replaces nothing at its path, where another
// run may be.
func TestLostDirectory(t *testing.T) {
	for name, lose := range map[string]func(link, dir string) error{
		"moved":   func(_, dir string) error { return os.Rename(dir, dir+".old") },
		"removed": func(_, dir string) error { return os.RemoveAll(dir) },
		"linked to another": func(link, dir string) error {
			other := dir + ".other"
			return errors.Join(os.Mkdir(other, 0o700), os.Remove(link), os.Symlink(other, link))
		},
	} {
		for _, taken := range []bool{false, true} {
			contracttest.Cases(t, 1)
			link, dir := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "run")
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Symlink(dir, link))
			d := open(t, link, false, false)
			must(t, d.WriteManifest(runlog.Manifest{RunID: "first"}))
			must(t, lose(link, dir))
			why := "it was moved or removed"
			if taken {
				if name != "linked to another" {
					must(t, os.Mkdir(dir, 0o700))
				}
				other := open(t, link, false, false)
				must(t, other.WriteManifest(runlog.Manifest{RunID: "second"}))
				must(t, other.WriteReceipt(runlog.Receipt{}))
				closed(t, other)
				why += ", and another run is there now"
			}
			before := ""
			if taken {
				before = listing(t, link)
			}
			_, err := d.Place("student")
			for what, err := range map[string]error{
				"place": err, "manifest": d.WriteManifest(runlog.Manifest{}), "samples": d.WriteSamples(runlog.Samples{}),
				"truncate": d.TruncateSteps("student", 0),
				"curves":   d.Scalar("x", 0, 1), "receipt": d.WriteReceipt(runlog.Receipt{}),
				"modes": d.MakePrivate("manifest.json"),
			} {
				if fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), why+" [E-RUN-011]") {
					t.Errorf("%s, taken %v: %s: %v", name, taken, what, err)
				}
			}
			if taken {
				if after := listing(t, link); after != before {
					t.Errorf("%s: the other run had\n%s\nand has\n%s", name, before, after)
				}
			}
			closed(t, d)
		}
	}
}
