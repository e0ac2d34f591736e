package runs

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
	runlog "apr/run/log"
)

// indexName is the file of a runs folder that remembers the lines of its list: one JSON line for each folder below it that has
// a manifest.json, after a first line that says so.
const indexName = ".index.jsonl"

// formerIndex is what the index of earlier versions was called; it is removed.
const formerIndex = ".index.sqlite"

// indexSchema is the first line's; an index of another one is made anew.
const indexSchema = "apr.runs-index/1"

// maxIndex bounds the file that is read: a line is some hundred bytes.
const maxIndex = 256 << 20

// Index remembers the line of each run for as long as the run's records do not change. The records are the truth: an index
// that is missing, damaged, or of another version is made anew, and deleting it loses nothing.
//
// Processes need no lock: each replaces the file as a whole by what it saw, the last one wins, and a line that another process
// knew better is found out of date by its version and read again.
type Index struct {
	dir   string
	known map[string]entry
	// Read counts the runs whose records had to be read.
	Read int
	// Problem is why the index could not be written, nil if it could: the list is right all the same.
	Problem error
}

// entry is a line of the index.
type entry struct {
	Name    string   `json:"name"`          // of the folder
	Version string   `json:"version"`       // of the records it was made of
	Run     *Summary `json:"run,omitempty"` // nil: the folder is no run
}

// header is the first line of the index.
type header struct {
	Schema string `json:"schema"`
	SHA256 string `json:"sha256"` // of the lines below
}

func hashOf(lines string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(lines))) }

// OpenIndex reads the index of a runs folder; afresh disregards what it remembers.
func OpenIndex(dir string, afresh bool) *Index {
	ix := &Index{dir: dir, known: map[string]entry{}}
	if !afresh {
		ix.load()
	}
	return ix
}

// load reads the index. Of one that is not what was written nothing is believed.
func (ix *Index) load() {
	text, err := readfile.String(filepath.Join(ix.dir, indexName), maxIndex)
	if err != nil {
		return // missing, or no file: what is not remembered is read
	}
	first, lines, _ := strings.Cut(text, "\n")
	var head header
	if json.Unmarshal([]byte(first), &head) != nil || head != (header{indexSchema, hashOf(lines)}) {
		return
	}
	for line := range strings.Lines(lines) {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil {
			ix.known[e.Name] = e
		}
	}
}

// List returns the runs of the folder, the newest first. Records are read of those runs alone that have changed since.
func (ix *Index) List() ([]Summary, error) {
	paths, err := candidates(ix.dir)
	if err != nil {
		return nil, err
	}
	all := make([]Summary, 0, len(paths))
	lines := make([]entry, 0, len(paths))
	changed := len(paths) != len(ix.known)
	for _, path := range paths {
		name, version := filepath.Base(path), runlog.Version(path)
		e, ok := ix.known[name]
		if !ok || e.Version != version {
			e, changed = entry{Name: name, Version: version}, true
			ix.Read++
			if runlog.IsRun(path) {
				s := summary(path)
				e.Run = &s
			}
		}
		lines = append(lines, e)
		if e.Run != nil {
			s := *e.Run
			s.Path = path // the folder may have moved
			all = append(all, s)
		}
	}
	if changed {
		ix.Problem = ix.write(lines)
	}
	newestFirst(all)
	return all, nil
}

// write replaces the index.
func (ix *Index) write(lines []entry) error {
	var b strings.Builder
	out := json.NewEncoder(&b)
	for _, e := range lines {
		if err := out.Encode(e); err != nil {
			return fmt.Errorf("runs: %w", err)
		}
	}
	first, err := json.Marshal(header{indexSchema, hashOf(b.String())})
	if err != nil {
		return fmt.Errorf("runs: %w", err)
	}
	text := slices.Concat(first, []byte("\n"), []byte(b.String()))
	if err := atomicfile.WritePrivate(filepath.Join(ix.dir, indexName), text, true); err != nil {
		return err
	}
	return ix.sweep()
}

// sweep removes what killed writers of the index have left, and the index of earlier versions.
func (ix *Index) sweep() error {
	entries, err := os.ReadDir(ix.dir)
	if err != nil {
		return fault.In(fault.IO, ix.dir, "cannot be read").Because(err)
	}
	for _, e := range entries {
		stray := atomicfile.IsTemp(e.Name()) && strings.HasPrefix(e.Name(), "."+indexName)
		if info, err := e.Info(); stray && (err != nil || time.Since(info.ModTime()) < time.Hour) {
			continue // at work, or gone already
		}
		if !stray && e.Name() != formerIndex {
			continue
		}
		if err := os.Remove(filepath.Join(ix.dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fault.In(fault.IO, filepath.Join(ix.dir, e.Name()), "cannot be removed").Because(err)
		}
	}
	return nil
}
