package runs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	runs "apr/run/list"
	runlog "apr/run/log"
)

// listed lists a folder through its index, and says how many folders' records were read.
func listed(t *testing.T, dir string, afresh bool) (text string, read int) {
	t.Helper()
	ix := runs.OpenIndex(dir, afresh)
	all, err := ix.List()
	must(t, err)
	must(t, ix.Problem)
	return asText(all), ix.Read
}

func asText(all []runs.Summary) (text string) {
	for _, s := range all {
		text += fmt.Sprintln(s.RunID, s.Path, s.Status, s.Steps, s.Loss != nil, s.Started.Unix())
	}
	return text
}

// edit replaces the text of a file.
func edit(t *testing.T, file string, change func(string) string) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte(change(string(b))), 0o600))
}

// The index reads a run again when its records have changed, and else not; whatever happens to its file, the list is
// that of the records.
func TestIndex(t *testing.T) {
	dir := folder(t)
	const all = 4 // three runs, and a folder with a manifest of something else
	want, read := listed(t, dir, false)
	if read != all {
		t.Errorf("%d folders read for a new index, want %d", read, all)
	}
	file := filepath.Join(dir, ".index.jsonl")
	for _, c := range []struct {
		name string
		do   func()
		read int
	}{
		{"nothing", func() {}, 0},
		{"one line less", func() {
			edit(t, file, func(s string) string { return s[:strings.LastIndexByte(s[:len(s)-1], '\n')+1] })
		}, all},
		{"a line more", func() { edit(t, file, func(s string) string { return s + `{"name":"ghost"}` + "\n" }) }, all},
		{"another number in a line", func() {
			edit(t, file, func(s string) string { return strings.Replace(s, `"steps":2`, `"steps":3`, 1) })
		}, all},
		{"a line that is no JSON", func() { edit(t, file, func(s string) string { return s + "{\n" }) }, all},
		{"another version", func() { edit(t, file, func(s string) string { return strings.Replace(s, "index/2", "index/9", 1) }) }, all},
		{"deleted", func() { must(t, os.Remove(file)) }, all},
		{"no index", func() { must(t, os.WriteFile(file, []byte("nonsense"), 0o600)) }, all},
		{"empty", func() { must(t, os.WriteFile(file, nil, 0o600)) }, all},
		{"cut", func() { must(t, os.Truncate(file, 500)) }, all},
		{"a changed run", func() { must(t, os.Chtimes(filepath.Join(dir, "alto", "steps.jsonl"), time.Time{}, time.Unix(1, 0))) }, 1},
	} {
		c.do()
		if got, read := listed(t, dir, false); got != want || read != c.read {
			t.Errorf("%s: %d folders read, want %d:\n%s\nwant\n%s", c.name, read, c.read, got, want)
		}
	}
	if got, read := listed(t, dir, true); got != want || read != all {
		t.Errorf("afresh: %d folders read, want %d:\n%s", read, all, got)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "broken")))
	if got, read := listed(t, dir, false); got == want || read != 0 {
		t.Errorf("without a run: %d folders read, %s", read, got)
	}
	moved := filepath.Join(t.TempDir(), "moved ?#%")
	must(t, os.Rename(dir, moved))
	if all, err := runs.List(moved); err != nil || len(all) != 2 || filepath.Dir(all[0].Path) != moved {
		t.Errorf("a moved folder: %+v, %v", all, err)
	}
}

// The file is JSON lines, one for each run; what killed writers and earlier versions have left is removed when it is written.
func TestIndexFile(t *testing.T) {
	dir := folder(t)
	old, young := filepath.Join(dir, "..index.jsonl.apr-tmp-1"), filepath.Join(dir, "..index.jsonl.apr-tmp-2")
	for _, name := range []string{old, young, filepath.Join(dir, ".index.sqlite")} {
		must(t, os.WriteFile(name, nil, 0o600))
	}
	must(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
	listed(t, dir, false)
	b, err := os.ReadFile(filepath.Join(dir, ".index.jsonl"))
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("%s is no JSON", line)
		}
	}
	if len(lines) != 5 { // the first says what it is
		t.Errorf("%d lines, want 5:\n%s", len(lines), b)
	}
	for name, want := range map[string]bool{old: false, young: true, filepath.Join(dir, ".index.sqlite"): false} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name, err == nil, want)
		}
	}
}

// The list of a folder that cannot be written to is right, and says why it has no index.
func TestIndexCannotBeWritten(t *testing.T) {
	dir := folder(t)
	want, _ := listed(t, dir, false)
	must(t, os.Remove(filepath.Join(dir, ".index.jsonl")))
	must(t, os.Mkdir(filepath.Join(dir, ".index.jsonl"), 0o700))
	ix := runs.OpenIndex(dir, false)
	all, err := ix.List()
	must(t, err)
	if asText(all) != want || ix.Problem == nil {
		t.Errorf("problem %v:\n%s\nwant\n%s", ix.Problem, asText(all), want)
	}
}

// Many listings at once, while runs appear: each is that of the records, and so is the one after them.
func TestIndexConcurrently(t *testing.T) {
	dir := folder(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				id := fmt.Sprintf("new-%d-%d", i, j)
				write(t, filepath.Join(dir, id), id, time.Unix(int64(1000+10*i+j), 0), 0.1, 3)
				all, err := runs.List(dir)
				if err != nil {
					t.Error(err)
				}
				if !strings.Contains(asText(all), id) {
					t.Errorf("%s is not listed", id)
				}
			}
		})
	}
	wg.Wait()
	got, _ := listed(t, dir, false)
	want, _ := listed(t, dir, true)
	if got != want || strings.Count(got, "\n") != 3+8*5 {
		t.Errorf("%s\nwant\n%s", got, want)
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

// BenchmarkIndex lists a folder of 10,000 runs with an index that is up to date, and without one.
func BenchmarkIndex(b *testing.B) {
	dir := b.TempDir()
	for i := range 10_000 {
		path := filepath.Join(dir, fmt.Sprintf("run-%05d", i))
		if err := os.Mkdir(path, 0o700); err != nil {
			b.Fatal(err)
		}
		for name, text := range map[string]string{
			"manifest.json": fmt.Sprintf(`{"schema":"apr.manifest/1","run_id":"run-%05d","started":"2026-01-01T00:00:00Z"}`, i),
			"steps.jsonl":   strings.Repeat(`{"leg":"student","step":1,"loss":2.5,"finite":true}`+"\n", 20), "events.jsonl": "", ".lock": "",
			"receipt.json": `{"status":"completed","finished":"2026-01-01T01:00:00Z"}`,
		} {
			if err := os.WriteFile(filepath.Join(path, name), []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, afresh := range []bool{true, false} {
		b.Run(fmt.Sprintf("afresh=%v", afresh), func(b *testing.B) {
			for b.Loop() {
				if all, err := runs.OpenIndex(dir, afresh).List(); err != nil || len(all) != 10_000 {
					b.Fatal(len(all), err)
				}
			}
		})
	}
}
