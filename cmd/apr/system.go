//go:build !windows

package main

import "golang.org/x/sys/unix"

// kernelRelease is the version of the operating system's kernel.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}
