//go:build !linux

package supervise

import "os/exec"

// bindToParent does nothing: the child outlives a supervisor that is killed.
func bindToParent(*exec.Cmd) {}
