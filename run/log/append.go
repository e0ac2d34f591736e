package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"apr/internal/fault"
)

// Abort is the kind of the event of a process that a second signal ended at once; its name says which.
const Abort = "abort"

// LostRank is the kind of the event of a run that ends because it cannot go on without a rank; its name says how that
// was lost, as package collective has it, its reason which rank and why.
const LostRank = "lost rank"

// AppendEvent appends an event, with the present time, to the run directory dir from outside of the process or goroutine
// that writes it: a supervisor or a watchdog. The line is written at once and whole.
func AppendEvent(dir, kind, name string, detail any, reason string) error {
	path := filepath.Join(dir, "events.jsonl")
	b, err := json.Marshal(Event{Time: time.Now().UTC(), Kind: kind, Name: name, Detail: detail, Reason: reason})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fault.In(fault.IO, path, "cannot be opened").Because(err)
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fault.In(fault.IO, path, "cannot be written").Because(err)
	}
	return nil
}
