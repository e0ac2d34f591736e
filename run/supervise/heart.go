package supervise

import (
	"encoding/json"
	"os"
	"strconv"
	"time"
)

// Variable names the environment variable that makes a process a supervised child: the number of the pipe that its
// heart beats into.
const Variable = "APR_SUPERVISED"

// Beat is a sign of life of the child, a line of JSON.
type Beat struct {
	// Again asks for another attempt: the process is about to end because another rank of its run was lost.
	Again  bool          `json:"again,omitempty"`
	Doing  string        `json:"doing,omitempty"`
	Steps  int           `json:"steps"`
	Idle   time.Duration `json:"idle"`  // since its last progress
	Limit  time.Duration `json:"limit"` // of it, by the child's own watchdog
	RunDir string        `json:"run_dir,omitempty"`
}

// Heart is the child's end of the pipe. A nil *Heart beats for nobody.
type Heart struct{ pipe *os.File }

// Open returns the heart of a supervised child, or nil if value, that of Variable, is empty or no pipe.
func Open(value string) *Heart {
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil
	}
	if pipe := inherited(fd); pipe != nil {
		return &Heart{pipe}
	}
	return nil
}

// Beat writes a sign of life; one that does not fit into the pipe at once is lost.
func (h *Heart) Beat(b Beat) {
	if h == nil {
		return
	}
	line, err := json.Marshal(b)
	if err != nil {
		return
	}
	// A supervisor that does not read loses beats; the child goes on.
	_ = h.pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = h.pipe.Write(append(line, '\n'))
}
