package runlog

import (
	"encoding/json"
	"os"
	"path/filepath"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// Process names a process for good. The system gives the number of one that has ended to another one; the start time
// differs.
type Process struct {
	PID     int    `json:"pid"`
	Started string `json:"process_started"` // no other process of that number on any machine has this text; empty: not known here
	Host    string `json:"host"`
}

// The files of a run directory that belong to the process that writes it.
const (
	lockFile   = ".lock"   // it holds the lock of this one
	writerFile = ".writer" // which process that is, as JSON; it may be that of an earlier process
)

// ThisProcess names this process.
func ThisProcess() Process {
	host, _ := os.Hostname() // an unnamed host is no reason to fail
	return Process{PID: os.Getpid(), Started: ProcessStart(os.Getpid()), Host: host}
}

// Alive reports whether a process is at work on this machine, as far as that can be known here.
func (p Process) Alive() bool {
	host, err := os.Hostname()
	return err == nil && p.Host == host && p.Started != "" && ProcessStart(p.PID) == p.Started
}

// signLock writes down which process holds the lock, where that can be known.
func signLock(path string) error {
	p := ThisProcess()
	if p.Started == "" {
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		return fault.In(fault.Other, path, "the process cannot be written as JSON").Because(err)
	}
	return atomicfile.WritePrivate(filepath.Join(path, writerFile), append(b, '\n'), true)
}

// LockedBy returns the process that was the last to lock the run directory, as it wrote down, and whether the lock is
// held now. The holder may be another process than that one: see HoldsLock. Where none is written down, the Process
// is zero.
func LockedBy(path string) (p Process, held bool) {
	held = locked(path)
	text, err := readfile.String(filepath.Join(path, writerFile), 4096)
	if err != nil || json.Unmarshal([]byte(text), &p) != nil {
		return Process{}, held
	}
	return p, held
}

// Lock takes the lock of a run directory for this process. A directory that another process writes to is refused
// (E-RUN-002).
func Lock(path string) (unlock func() error, err error) {
	l, err := lock(path)
	if err != nil {
		return nil, err
	}
	return l.Unlock, nil
}
