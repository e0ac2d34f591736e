//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// readable is what the contract lets every program read beside its toolchain.
var readable = []string{"/dev/null", "/dev/random", "/dev/urandom", "/etc/ld.so.cache", "/etc/localtime", "/usr/lib/locale", "/usr/share/zoneinfo"}

// A program lists no directory of the machine, and opens no file in one, but its toolchain and what everyone may read: every one
// of the root, and of the directories there, is tried.
func TestProgramsReadNothingElse(t *testing.T) {
	if got := slices.Sorted(maps.Keys(everyone)); !slices.Equal(got, readable) {
		t.Errorf("every program may read %q, the contract says %q", got, readable)
	}
	b := open(t, DefaultLimits)
	if b == nil {
		return
	}
	may := func(path string) bool { // or leads there, or is above it: such a directory is tried by its entries
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return true
		}
		return slices.ContainsFunc(append(system, readable...), func(p string) bool {
			p, err := filepath.EvalSymlinks(p)
			return err == nil && (real == p || strings.HasPrefix(real, p+"/"))
		})
	}
	var dirs, files []string
	for _, root := range append([]string{"/"}, entries("/")...) {
		if slices.Contains([]string{"/proc", "/sys"}, root) {
			continue
		}
		for _, path := range entries(root) {
			info, err := os.Stat(path)
			switch {
			case err != nil || may(path):
			case info.IsDir() && len(entries(path)) > 0:
				dirs = append(dirs, path)
			case info.Mode().IsRegular():
				files = append(files, path)
			}
		}
	}
	const script = `for p; do if [ -d "$p" ]; then for f in "$p"/*; do [ "$f" = "$p/*" ] || echo "$p"; break; done; elif true < "$p"; then echo "$p"; fi 2>/dev/null; done`
	for list := range slices.Chunk(append(dirs, files...), 200) {
		r, err := b.Run(context.Background(), Program{Argv: append([]string{"/bin/sh", "-c", script, "sh"}, list...), Read: system})
		if err != nil || r.Exit != 0 || r.Stdout != "" {
			t.Errorf("it reads %q (%v, exit %d, %s)", strings.Fields(r.Stdout), err, r.Exit, r.Stderr)
		}
		contracttest.Cases(t, len(list))
	}
	if r := run(t, b, "", "/bin/sh", "-c", script, "sh", "/usr/lib"); r.Stdout != "/usr/lib\n" { // or nothing would be found
		t.Errorf("its toolchain: %+v", r)
	}
}

// entries are the paths in a directory, none if it cannot be read.
func entries(dir string) (all []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), dirPrefix) { // of tests that run beside this one
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all
}
