package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// files writes files below a root.
func files(t *testing.T, all map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range all {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestFree: the tightest limit counts, of the process's group or of one above it; file caches that can go are free; no limit is none.
func TestFree(t *testing.T) {
	const v2, v1 = "30 25 0:26 / /c rw - cgroup2 cgroup2 rw\n", "30 25 0:26 / /c rw - cgroup cgroup rw,memory\n"
	for _, tt := range []struct {
		name, cgroup, mounts string
		files                map[string]string
		want                 int64 // negative: no limit
	}{
		{"a limit", "0::/a/b\n", v2, map[string]string{
			"c/a/b/memory.max": "1000\n", "c/a/b/memory.current": "300\n", "c/a/b/memory.stat": "anon 200\ninactive_file 50\n",
		}, 750},
		{"one above is tighter", "0::/a/b\n", v2, map[string]string{
			"c/a/b/memory.max": "1000\n", "c/a/b/memory.current": "300\n", "c/a/memory.max": "600\n", "c/a/memory.current": "500\n",
		}, 100},
		{"only the one above has a limit", "0::/a/b\n", v2, map[string]string{
			"c/a/b/memory.max": "max\n", "c/a/b/memory.current": "300\n", "c/a/memory.max": "600\n", "c/a/memory.current": "500\n",
		}, 100},
		{"more used than allowed", "0::/a\n", v2, map[string]string{"c/a/memory.max": "10\n", "c/a/memory.current": "30\n"}, 0},
		{"more cached than used", "0::/a\n", v2, map[string]string{
			"c/a/memory.max": "10\n", "c/a/memory.current": "3\n", "c/a/memory.stat": "inactive_file 5\n",
		}, 10},
		{"a container's own root", "0::/\n", v2, map[string]string{"c/memory.max": "1000\n", "c/memory.current": "1\n"}, 999},
		{"none", "0::/a\n", v2, map[string]string{"c/a/memory.max": "max\n", "c/a/memory.current": "30\n"}, -1},
		{"a usage that cannot be read", "0::/a\n", v2, map[string]string{"c/a/memory.max": "10\n"}, -1},
		{"version 1", "4:memory:/a\n", v1, map[string]string{
			"c/a/memory.limit_in_bytes": "1000\n", "c/a/memory.usage_in_bytes": "900\n", "c/a/memory.stat": "inactive_file 7\ntotal_inactive_file 400\n",
		}, 500},
		{"version 1 without", "4:memory:/a\n", v1, map[string]string{
			"c/a/memory.limit_in_bytes": "9223372036854771712\n", "c/a/memory.usage_in_bytes": "900\n",
		}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.files["proc/11/cgroup"], tt.files["proc/self/mountinfo"] = tt.cgroup, tt.mounts
			g, err := Find(files(t, tt.files), 11)
			if err != nil {
				t.Fatal(err)
			}
			if free, ok := g.Free(); ok != (tt.want >= 0) || ok && free != tt.want {
				t.Errorf("%d, %v, want %d", free, ok, tt.want)
			}
		})
	}
}
