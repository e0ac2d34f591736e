package supervise

import (
	"os"
	"time"

	"apr/internal/fault"
	runlog "apr/run/log"
)

// settle is how long Writer waits for a process that has just taken the lock to say so.
const settle = time.Second

// Writer returns the process that writes the run in dir, for a signal; nil if none does. It is the one that wrote
// itself down when it took the lock, it started when it said so, and it holds the lock now. Anything less is an error
// of kind Invalid: the number of a process that has ended may be another one's by now, which no signal may reach. On
// Linux the handle stays with the process that was looked at.
func Writer(dir string) (*os.Process, runlog.Process, error) {
	for last := time.Now().Add(settle); ; time.Sleep(settle / 10) {
		who, held := runlog.LockedBy(dir)
		if !held {
			return nil, who, nil
		}
		p, err := handle(dir, who)
		if err == nil || time.Now().After(last) {
			return p, who, err
		}
	}
}

// handle opens a process and only then looks whether it is the one that writes the run.
func handle(dir string, who runlog.Process) (*os.Process, error) {
	refuse := func(id, format string, args ...any) error {
		return fault.In(fault.Invalid, dir, format, args...).WithID(id)
	}
	host, _ := os.Hostname()
	switch {
	case who.PID < 1 || who.Started == "":
		return nil, refuse("E-RUN-030", "is being written, but its records name no process; nothing was signalled")
	case who.PID == os.Getpid():
		return nil, refuse("E-RUN-031", "is being written by this process; nothing was signalled")
	}
	p, err := os.FindProcess(who.PID)
	if err != nil {
		return nil, refuse("E-RUN-032",
			"is being written, but not by process %d, which its records name; nothing was signalled", who.PID)
	}
	started, holds := runlog.ProcessStart(who.PID), runlog.HoldsLock(who.PID, dir)
	if started == who.Started && holds {
		return p, nil
	}
	_ = p.Release() // a handle that nobody uses
	switch {
	case who.Host != host:
		return nil, refuse("E-RUN-033",
			"is being written by process %d of machine %q; nothing was signalled here", who.PID, who.Host)
	case started != who.Started:
		return nil, refuse("E-RUN-032", "is being written, but not by process %d, which its records name: "+
			"that one has ended, and another may have its number; nothing was signalled", who.PID)
	}
	return nil, refuse("E-RUN-034",
		"is being written, but process %d, which its records name, does not hold the lock; nothing was signalled", who.PID)
}
