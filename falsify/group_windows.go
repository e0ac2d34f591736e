package falsify

import (
	"os/exec"
	"strconv"
)

// endTogether makes cancelling end cmd and all processes that descend from it.
func endTogether(cmd *exec.Cmd) {
	cmd.Cancel = func() error {
		tree := exec.Command("taskkill", "/t", "/f", "/pid", strconv.Itoa(cmd.Process.Pid))
		if err := tree.Run(); err != nil {
			return cmd.Process.Kill()
		}
		return nil
	}
}
