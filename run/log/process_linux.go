package runlog

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ProcessStart returns a text for when a process started: the boot of the machine, and clock ticks since then. Empty:
// there is no such process.
func ProcessStart(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	boot, err2 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || err2 != nil {
		return ""
	}
	// Field 22; the second one, the name of the program in parentheses, may hold blanks and parentheses.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return strings.TrimSpace(string(boot)) + ":" + fields[19]
}

// HoldsLock reports whether a process holds the lock of a run directory, as the kernel says of its open files.
func HoldsLock(pid int, path string) bool {
	lock, err := os.Stat(filepath.Join(path, lockFile))
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, f := range files {
		if _, err := strconv.Atoi(f.Name()); err != nil {
			continue
		}
		open, err := os.Stat(filepath.Join(dir, f.Name()))
		if err != nil || !os.SameFile(open, lock) {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, f.Name()))
		if err == nil && hasWriteLock(string(info)) {
			return true
		}
	}
	return false
}

// hasWriteLock looks for the line of an exclusive flock in fdinfo: "lock:	1: FLOCK  ADVISORY  WRITE 42 fe:00:9 0 EOF".
func hasWriteLock(info string) bool {
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		if len(f) > 4 && f[0] == "lock:" && f[2] == "FLOCK" && f[4] == "WRITE" {
			return true
		}
	}
	return false
}
