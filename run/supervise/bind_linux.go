package supervise

import (
	"os/exec"
	"syscall"
)

// bindToParent lets the kernel tell the child to stop when the thread that started it ends, as it does with its process.
func bindToParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
