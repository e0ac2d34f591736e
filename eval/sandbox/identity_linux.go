//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capabilities is a set of a process's capabilities.
type capabilities [2]unix.CapUserData

func heldCapabilities() (c capabilities, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return c, unix.Capget(&header, &c[0])
}

func (c *capabilities) set() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&header, &c[0])
}

// search is the capability to read and search whatever the mode of files: Landlock still decides which.
const search = uint32(1) << unix.CAP_DAC_READ_SEARCH

// setIdentity takes from the calling thread what an administrator has: it becomes user and group id, which owns nothing
// but dir, without other groups, and loses all capabilities for good. If the toolchain lies where only its owner may look,
// as in /root, the thread keeps the capability to read there; if it has none to keep, it keeps its user without capabilities.
// Id 0: the user stays who he is.
func setIdentity(id int, paths []string) error {
	held, err := heldCapabilities()
	if err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	var kept capabilities
	if id != 0 && !everyoneReaches(paths) {
		if held[0].Permitted&search == 0 {
			id = 0
		} else {
			kept[0] = unix.CapUserData{Effective: search, Permitted: search, Inheritable: search}
			held[0].Inheritable |= search
			if err := held.set(); err != nil { // while the bounding set still holds it
				return fmt.Errorf("capabilities: %w", err)
			}
		}
	}
	for c := range uintptr(64) { // fails for those that the kernel lacks, and for ordinary users, who cannot regain any
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
	if id != 0 {
		if err := becomeUser(id); err != nil {
			return err
		}
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if err := kept.set(); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if kept[0].Permitted != 0 {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_DAC_READ_SEARCH, 0, 0); err != nil {
			return fmt.Errorf("capabilities: %w", err)
		}
	}
	return nil
}

// becomeUser changes user and groups of this thread alone; package syscall would change those of all.
func becomeUser(id int) error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil { // exec clears this
		return fmt.Errorf("capabilities: %w", err)
	}
	threads := unix.Rlimit{Cur: maxThreads, Max: maxThreads} // of the user: nobody else has this id
	n := uintptr(id)
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, n, n, n}, {unix.SYS_SETRESUID, n, n, n},
		{unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(&threads))},
	} {
		if _, _, errno := unix.RawSyscall6(call[0], call[1], call[2], call[3], 0, 0, 0); errno != 0 {
			return fmt.Errorf("user id %d: %w", id, errno)
		}
	}
	return nil
}

// maxThreads of all programs of one user id at a time.
const maxThreads = 512

// everyoneReaches reports whether every user may read the files and enter the directories above them.
func everyoneReaches(paths []string) bool {
	for _, path := range paths {
		path, err := filepath.EvalSymlinks(path)
		if err != nil {
			return false
		}
		for want := os.FileMode(0o4); ; want = 0o1 {
			info, err := os.Stat(path)
			if err != nil || info.Mode()&want != want {
				return false
			}
			if path == filepath.Dir(path) {
				break
			}
			path = filepath.Dir(path)
		}
	}
	return true
}
