package main

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// kernelRelease is the version of the operating system's kernel.
func kernelRelease() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("Windows %d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}
