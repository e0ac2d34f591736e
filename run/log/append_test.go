package runlog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An event from outside stands between those of the writer, each on a line of its own.
func TestAppendEvent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	d, err := Open(dir, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, do := range []func() error{
		func() error { return d.Event("decision", "a", nil, "") },
		func() error { return AppendEvent(dir, "stall", "b", map[string]int{"x": 1}, "why") },
		func() error { return d.Event("decision", "c", nil, "") },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], `"kind":"stall","name":"b","detail":{"x":1},"reason":"why"`) || !strings.Contains(lines[2], `"c"`) {
		t.Errorf("%q", lines)
	}
	if AppendEvent(filepath.Join(dir, "no"), "a", "b", nil, "") == nil || AppendEvent(dir, "a", "b", make(chan int), "") == nil {
		t.Error("what cannot be written passes")
	}
}
