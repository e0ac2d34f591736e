package runs_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// listed lists a folder through its index, and says how many runs' records were read.
func listed(t *testing.T, dir string, afresh bool) (text string, read int) {
	t.Helper()
	ix, err := runs.OpenIndex(dir, afresh)
	must(t, err)
	all, err := ix.List()
	must(t, err)
	must(t, ix.Close())
	for _, s := range all {
		text += fmt.Sprintln(s.RunID, s.Path, s.Status, s.Steps, s.Loss != nil, s.Started.Unix())
	}
	return text, ix.Read
}

// The index reads a run again when its records have changed, and else not; whatever happens to its file, the list is
// that of the records.
func TestIndex(t *testing.T) {
	dir := folder(t)
	want, read := listed(t, dir, false)
	if read != 3 {
		t.Errorf("%d runs read for a new index, want 3", read)
	}
	file := filepath.Join(dir, ".index.sqlite")
	for _, c := range []struct {
		name string
		do   func()
		read int
	}{
		{"nothing", func() {}, 0},
		{"one deleted row", func() { query(t, file, "DELETE FROM runs WHERE name = 'alpha'") }, 1},
		{"a row of no run", func() { query(t, file, "INSERT INTO runs VALUES ('ghost', '', '{}')") }, 0},
		{"a line that is no JSON", func() { query(t, file, "UPDATE runs SET summary = '{' WHERE name = 'alto'") }, 1},
		{"another version", func() { query(t, file, "PRAGMA user_version = 99") }, 3},
		{"another table", func() { query(t, file, "PRAGMA user_version = 0; DROP TABLE runs") }, 3},
		{"deleted", func() { must(t, os.Remove(file)) }, 3},
		{"no database", func() {
			must(t, os.WriteFile(file, []byte("nonsense, and long enough for nobody's header to be it"), 0o600))
		}, 3},
		{"empty", func() { must(t, os.WriteFile(file, nil, 0o600)) }, 3},
		{"flipped header", func() { flipByte(t, file, 3) }, 3},
		{"cut", func() { must(t, os.Truncate(file, 5000)) }, 3},
		{"a changed run", func() { must(t, os.Chtimes(filepath.Join(dir, "alto", "steps.jsonl"), time.Time{}, time.Unix(1, 0))) }, 1},
	} {
		c.do()
		if got, read := listed(t, dir, false); got != want || read != c.read {
			t.Errorf("%s: %d runs read, want %d:\n%s\nwant\n%s", c.name, read, c.read, got, want)
		}
	}
	if got, read := listed(t, dir, true); got != want || read != 3 {
		t.Errorf("afresh: %d runs read, want 3:\n%s", read, got)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "broken")))
	if got, read := listed(t, dir, false); got == want || read != 0 {
		t.Errorf("without a run: %d runs read, %s", read, got)
	}
	moved := filepath.Join(t.TempDir(), "moved ?#%")
	must(t, os.Rename(dir, moved))
	if all, err := runs.List(moved); err != nil || len(all) != 2 || filepath.Dir(all[0].Path) != moved {
		t.Errorf("a moved folder: %+v, %v", all, err)
	}
}

// A run that ends without a word changes its status, not its files.
func TestIndexSeesTheLock(t *testing.T) {
	dir := t.TempDir()
	d, err := runlog.Open(filepath.Join(dir, "run"), false, false)
	must(t, err)
	must(t, d.WriteManifest(runlog.Manifest{RunID: "x"}))
	status := func() string {
		all, err := runs.List(dir)
		must(t, err)
		return all[0].Status
	}
	if got := status(); got != runlog.Running {
		t.Errorf("at work: %s", got)
	}
	must(t, d.Close())
	if got := status(); got != runlog.Failed {
		t.Errorf("after the end: %s", got)
	}
}

func query(t *testing.T, file, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	must(t, err)
	_, err = db.Exec(text)
	must(t, err)
	must(t, db.Close())
}

func flipByte(t *testing.T, file string, at int) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	b[at] ^= 0xff
	must(t, os.WriteFile(file, b, 0o600))
}
