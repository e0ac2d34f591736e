//go:build !windows

package cli

import (
	"os"
	"syscall"
)

// userSignal is what schedulers send before they end a job.
const userSignal = syscall.SIGUSR1

// stopSignals ask a command to stop.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, userSignal}
