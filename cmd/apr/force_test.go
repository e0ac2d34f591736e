package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"apr/internal/contracttest"
)

// --force replaces and moves nothing that the run reads: shards that an index names, files deep in a folder of data, and what a hard
// link in the old output is.
func TestForceKeepsInputs(t *testing.T) {
	inModelFolder(t)
	teacher := shards(t)
	names, err := filepath.Glob(filepath.Join(teacher, "*.safetensors"))
	if err != nil || len(names) < 2 {
		t.Fatalf("%v: %v", names, err)
	}
	text := []byte("package main\n\nfunc main() { println(1, 2, 3) }\n")
	if err := errors.Join(os.MkdirAll("text/deep/more", 0o700), os.WriteFile("text/deep/more/a.txt", text, 0o600), os.Mkdir("old", 0o700), os.Link(names[1], "old/mine")); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(teacher, "model.safetensors.index.json")
	for _, tt := range []struct {
		name, data, output string
		id                 string
	}{
		{"a shard", "text", names[1], "E-DISTILL-041"},
		{"a folder in the data", "text", "text/deep", "E-DISTILL-042"},
		{"a hard link to a shard", "text", "old", "E-DISTILL-042"},
	} {
		contracttest.Cases(t, 1)
		before, err := os.Stat(names[1])
		if err != nil {
			t.Fatal(err)
		}
		code, v := call(t, "distill", index, "--student-config", "teacher/config.json", "-d", tt.data, "--steps", "1", "--batch-size", "1", "--seq-len", "8",
			"--backend", "cpu", "--val-fraction", "0", "-o", tt.output, "--force")
		if code != 5 || errorID(v) != tt.id {
			t.Errorf("%s: exit %d, %v", tt.name, code, v["error"])
		}
		after, err := os.Stat(names[1])
		if err != nil || !os.SameFile(before, after) {
			t.Fatalf("%s: the shard is another file (%v)", tt.name, err)
		}
		for _, name := range []string{"text/deep/more/a.txt", "old/mine"} {
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if moved, _ := filepath.Glob("*/*.bak-*"); len(moved) > 0 {
			t.Errorf("%s: %s", tt.name, fmt.Sprint(moved))
		}
	}
}
