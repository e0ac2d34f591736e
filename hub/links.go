//go:build !windows

package hub

import "syscall"

// noFollow makes opening a link fail.
const noFollow = syscall.O_NOFOLLOW

// linkHard is for systems whose users may not make symbolic links.
func (d folder) linkHard(_, _ string) bool { return false }
