//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leastLandlock is the first version of Landlock that sees files being truncated: Linux 6.2.
const leastLandlock = 3

// Rights to files, by Landlock's names. Symbolic links, sockets, pipes and devices nobody may make.
const (
	readRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	ownRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	allRights  = unix.LANDLOCK_ACCESS_FS_TRUNCATE<<1 - 1 // all that version 3 knows; other rights are not restricted
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// everyone are files outside that any program may use: sources of bytes, libraries' index, and time zones. Not /dev/zero:
// reading a shared mapping of it allocates memory that no limit counts.
var everyone = map[string]uint64{
	os.DevNull:     unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE,
	"/dev/random":  unix.LANDLOCK_ACCESS_FS_READ_FILE,
	"/dev/urandom": unix.LANDLOCK_ACCESS_FS_READ_FILE,

	"/etc/ld.so.cache":    unix.LANDLOCK_ACCESS_FS_READ_FILE,
	"/etc/localtime":      unix.LANDLOCK_ACCESS_FS_READ_FILE,
	"/usr/share/zoneinfo": unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR,
	"/usr/lib/locale":     unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR,
}

// landlockVersion returns the kernel's version of Landlock, 0 if it has none.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func judgeLandlock(version int) error {
	if version < leastLandlock {
		return fmt.Errorf("the kernel's Landlock has version %d, it takes %d or later: Linux 6.2, with landlock among its security modules", version, leastLandlock)
	}
	return nil
}

// rules makes the Landlock rules of a program: it may use what is in dir, read and execute what is in read, and nothing else.
func rules(dir string, read []string) (ruleset int, err error) {
	version := landlockVersion()
	if err := judgeLandlock(version); err != nil {
		return -1, err
	}
	attr := struct{ files, network, scopes uint64 }{files: allRights}
	if version >= 4 {
		attr.network = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 5 {
		attr.files |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if version >= 6 {
		attr.scopes = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	r, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("rules of Landlock: %w", errno)
	}
	ruleset = int(r)
	for path, rights := range everyone {
		if err := addRule(ruleset, path, rights); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return -1, err
		}
	}
	if err := addRule(ruleset, dir, ownRights); err != nil {
		return -1, err
	}
	for _, path := range read {
		if err := addRule(ruleset, path, readRights); err != nil {
			return -1, err
		}
	}
	return ruleset, nil
}

// addRule grants rights to a file, or to a directory and all below it.
func addRule(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return &fs.PathError{Op: "Landlock rule for", Path: path, Err: errno}
	}
	return nil
}
