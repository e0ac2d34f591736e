package cli

import (
	"os"
	"syscall"
)

// userSignal does not exist here.
const userSignal syscall.Signal = 0

// hangup does not exist here.
const hangup syscall.Signal = 0

// stopSignals ask a command to stop: Ctrl-C or Ctrl-Break, and closing its window, which Go reports as TERM.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}
