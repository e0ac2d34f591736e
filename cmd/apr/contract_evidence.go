package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"apr/falsify"
	"apr/internal/atomicfile"
	"apr/internal/cli"
)

// evidence is what the last apr contract falsify found of a contract, on this machine and at one commit without changes. It is
// shown as long as that commit is the present one; it proves nothing to others, so it stays in the user's cache.
type evidence struct {
	Status  falsify.Status `json:"status"`
	Upheld  int            `json:"upheld"`
	Checks  int            `json:"checks"`
	Mutants int            `json:"mutants"`
	Killed  int            `json:"killed"`
	Commit  string         `json:"commit"`
	At      time.Time      `json:"at"`
	SHA256  string         `json:"sha256"` // of the contract's file
}

// evidenceFile is where the evidence of a commit is kept; empty: nowhere.
func evidenceFile(commit string) string {
	dir, err := os.UserCacheDir()
	if err != nil || commit == "" {
		return ""
	}
	return filepath.Join(dir, "apr", "evidence", commit+".json")
}

// readEvidence returns the evidence of a commit by contract; what cannot be read is none.
func readEvidence(commit string) map[string]evidence {
	all := map[string]evidence{}
	data, err := os.ReadFile(evidenceFile(commit))
	if err != nil || json.Unmarshal(data, &all) != nil {
		return map[string]evidence{}
	}
	return all
}

// keepEvidence adds the outcome of a falsification to the evidence of its commit. Of a tree with changes nothing is kept: no commit
// names it. A failure to write is a warning: the falsification itself was printed.
func keepEvidence(e *cli.Env, f *falsify.Falsification) {
	path := evidenceFile(f.Commit)
	if path == "" || f.Dirty {
		return
	}
	all := readEvidence(f.Commit)
	for _, c := range f.Contracts {
		all[c.ID] = evidence{c.Status, c.Upheld, len(c.Checks), c.Mutants, c.Killed, f.Commit, f.Started, c.SHA256}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = atomicfile.WriteFile(path, append(text, '\n'), true)
	}
	if err != nil {
		e.Log.Warn("the evidence is not kept for apr contract list", "error", err)
	}
}

// presentEvidence returns the evidence about the contracts of a folder, and why there is none.
func presentEvidence(dir string) (map[string]evidence, string) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--verify", "HEAD")
	if err != nil {
		return nil, "no evidence: " + dir + " is in no git repository with a commit"
	}
	if changes, err := git("status", "--porcelain"); err != nil || changes != "" {
		return nil, "no evidence: the tree has changes, which no commit names"
	}
	all := readEvidence(commit)
	if len(all) == 0 {
		return nil, "no evidence at commit " + commit + ": apr contract falsify makes it"
	}
	return all, ""
}

// about returns the evidence about a contract, nil if there is none about this content of its file.
func about(doc *falsify.Document, all map[string]evidence) *evidence {
	if found, ok := all[doc.Contract.ID]; ok && found.SHA256 == doc.SHA256 {
		return &found
	}
	return nil
}

// evidenceText is one cell of the list.
func evidenceText(e *evidence) string {
	if e == nil {
		return "–"
	}
	return string(e.Status) + " " + e.At.Local().Format("2006-01-02 15:04")
}
