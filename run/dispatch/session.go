//go:build !windows

package dispatch

import "syscall"

// ownSession starts a program in a session of its own.
var ownSession = &syscall.SysProcAttr{Setsid: true}
