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

// hangup is what a terminal that is closed sends. It asks to stop once: the kernel and the shell may both send it,
// seconds apart, and nobody sends it to end a process at once.
const hangup = syscall.SIGHUP
