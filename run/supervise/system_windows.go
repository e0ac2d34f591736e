package supervise

import (
	"os"

	"apr/internal/fault"
)

// passedOn returns the signals that a supervisor passes on to its child.
func passedOn() []os.Signal { return []os.Signal{os.Interrupt} }

// Supported returns the fault that Run would return.
func Supported() error {
	return fault.New(fault.Unavailable, "Windows cannot supervise a run").
		WithHint("leave out --supervise; after a crash go on with --resume").WithID("E-SUPERVISE-002")
}

// inherited returns nil: there is no supervisor here.
func inherited(int) *os.File { return nil }
