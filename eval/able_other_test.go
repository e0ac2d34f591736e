//go:build !linux

package eval_test

// able: only Linux has what confines programs.
func able() bool { return false }
