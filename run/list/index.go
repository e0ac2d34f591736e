package runs

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver

	"apr/internal/fault"
	runlog "apr/run/log"
)

// indexName is the file of a runs folder that remembers the lines of its list.
const indexName = ".index.sqlite"

// indexVersion is that of the table; an index of another one is made anew.
const indexVersion = 1

// Index remembers the line of each run for as long as the run's records do not change. The records are the truth: an index
// that is missing, damaged, or of another version is made anew, and deleting it loses nothing.
type Index struct {
	db  *sql.DB
	dir string
	// Read counts the runs whose records had to be read.
	Read int
}

// OpenIndex opens the index of a runs folder, or makes it; afresh throws away what it remembers. In a folder that cannot
// be written to, it is kept in memory.
func OpenIndex(dir string, afresh bool) (*Index, error) {
	path := filepath.Join(dir, indexName)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() || !writable(dir) {
		return newIndex(dir, ":memory:")
	}
	if afresh {
		if err := removeIndex(path); err != nil {
			return nil, err
		}
	}
	ix, err := newIndex(dir, path)
	if err == nil {
		return ix, nil
	}
	if err := removeIndex(path); err != nil { // it is damaged, or no index at all
		return nil, err
	}
	return newIndex(dir, path)
}

// writable reports whether a file can be made in a folder.
func writable(dir string) bool {
	f, err := os.CreateTemp(dir, ".index-*")
	if err != nil {
		return false
	}
	f.Close()
	return os.Remove(f.Name()) == nil
}

func removeIndex(path string) error {
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fault.In(fault.IO, path+suffix, "cannot be removed").Because(err)
		}
	}
	return nil
}

// newIndex opens a database and looks through it: one that is damaged is an error.
func newIndex(dir, path string) (*Index, error) {
	source := path
	if path != ":memory:" {
		source = "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=busy_timeout(5000)"
	}
	db, err := sql.Open("sqlite", source)
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot be opened").Because(err)
	}
	db.SetMaxOpenConns(1) // one connection: ":memory:" is a database for each
	ix := &Index{db: db, dir: dir}
	if err := ix.prepare(); err != nil {
		return nil, errors.Join(fault.In(fault.IO, path, "is no index of runs").Because(err), db.Close())
	}
	return ix, nil
}

// prepare checks the database and makes its table.
func (ix *Index) prepare() error {
	var sound string
	if err := ix.db.QueryRow("PRAGMA quick_check").Scan(&sound); err != nil {
		return err
	}
	var version int
	if err := ix.db.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if sound != "ok" || version != 0 && version != indexVersion {
		return fmt.Errorf("check %q, version %d", sound, version)
	}
	_, err := ix.db.Exec(fmt.Sprintf(`CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, version TEXT NOT NULL, summary TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = %d`, indexVersion))
	return err
}

// Close closes the database.
func (ix *Index) Close() error { return ix.db.Close() }

// List returns the runs of the folder, the newest first. Records are read of those runs alone that have changed since.
func (ix *Index) List() ([]Summary, error) {
	paths, err := Paths(ix.dir)
	if err != nil {
		return nil, err
	}
	known, err := ix.load()
	if err != nil {
		return nil, err
	}
	tx, err := ix.db.Begin()
	if err != nil {
		return nil, ix.fault(err)
	}
	defer func() { _ = tx.Rollback() }() // of a list that could not be made; after Commit it does nothing
	all := make([]Summary, 0, len(paths))
	for _, path := range paths {
		name, version := filepath.Base(path), runlog.Version(path)
		row, ok := known[name]
		delete(known, name)
		var s Summary
		if ok && row.version == version && json.Unmarshal([]byte(row.summary), &s) == nil {
			s.Path = path
			all = append(all, s)
			continue
		}
		s = summary(path)
		ix.Read++
		all = append(all, s)
		text, err := json.Marshal(s)
		if err != nil {
			return nil, fmt.Errorf("runs: %w", err)
		}
		if _, err := tx.Exec("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", name, version, string(text)); err != nil {
			return nil, ix.fault(err)
		}
	}
	for name := range known { // runs that are gone
		if _, err := tx.Exec("DELETE FROM runs WHERE name = ?", name); err != nil {
			return nil, ix.fault(err)
		}
	}
	if err := tx.Commit(); err != nil {
		return nil, ix.fault(err)
	}
	newestFirst(all)
	return all, nil
}

// line is a row of the index.
type line struct{ version, summary string }

func (ix *Index) load() (map[string]line, error) {
	rows, err := ix.db.Query("SELECT name, version, summary FROM runs")
	if err != nil {
		return nil, ix.fault(err)
	}
	defer rows.Close()
	known := map[string]line{}
	for rows.Next() {
		var name string
		var l line
		if err := rows.Scan(&name, &l.version, &l.summary); err != nil {
			return nil, ix.fault(err)
		}
		known[name] = l
	}
	if err := rows.Err(); err != nil {
		return nil, ix.fault(err)
	}
	return known, nil
}

func (ix *Index) fault(err error) error {
	return fault.In(fault.IO, filepath.Join(ix.dir, indexName), "cannot be used").Because(err).WithHint("apr runs list --reindex makes it anew")
}
