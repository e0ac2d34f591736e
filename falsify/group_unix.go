//go:build unix

package falsify

import (
	"os/exec"
	"syscall"
)

// endTogether gives cmd a process group of its own; cancelling kills the group.
func endTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
