package runlog

import (
	"encoding/json"
	"os"
	"path/filepath"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// Process names a process for good. The system gives the number of one that has ended to another one; the start time differs.
type Process struct {
	PID     int    `json:"pid"`
	Started string `json:"process_started"` // no other process of that number on any machine has this text; empty: not known here
	Host    string `json:"host"`
}

// lockFile is locked by the process that writes the run, and says which process that is.
const lockFile = ".lock"

// thisProcess names this process.
func thisProcess() Process {
	host, _ := os.Hostname() // an unnamed host is no reason to fail
	return Process{PID: os.Getpid(), Started: ProcessStart(os.Getpid()), Host: host}
}

// signLock writes into the lock file which process holds it, where that can be known.
func signLock(path string) error {
	p := thisProcess()
	if p.Started == "" {
		return nil
	}
	b, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(filepath.Join(path, lockFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fault.In(fault.IO, filepath.Join(path, lockFile), "cannot be written").Because(err)
	}
	return nil
}

// LockedBy returns the process that was the last to lock the run directory, as the lock file says, and whether the lock is held now.
// The lock may be held by another process than the one named: see HoldsLock. A lock file that names none gives a zero Process.
func LockedBy(path string) (p Process, held bool) {
	held = locked(path)
	text, err := readfile.String(filepath.Join(path, lockFile), 4096)
	if err != nil || json.Unmarshal([]byte(text), &p) != nil {
		return Process{}, held
	}
	return p, held
}

// Lock takes the lock of a run directory for this process. A directory that another process writes to is refused (E-RUN-002).
func Lock(path string) (unlock func() error, err error) {
	l, err := lock(path)
	if err != nil {
		return nil, err
	}
	return l.Unlock, nil
}
