package cli

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"apr/internal/fault"
)

var exitMeanings = map[fault.Kind]string{
	0: "success", fault.Other: "other failure, including an internal error", fault.Usage: "usage",
	fault.NotFound: "file or model not found, or not a file", fault.Format: "bad or unsupported format",
	fault.Invalid: "validation failed: threshold, content, overwrite refused",
	fault.Load:    "model could not be loaded (missing tensor, shape, tokenizer)", fault.IO: "I/O, disk full",
	fault.Inference: "inference failed", fault.Unavailable: "feature or device not available",
	fault.Network: "network", fault.HTTP404: "HTTP 404", fault.Stopped: "stopped by a signal",
	fault.Diverged: "diverged: three steps in a row not finite, or with a loss far above those before", fault.Hung: "hung: no progress",
	fault.Memory: "out of memory, predicted or met", fault.UnsafePath: "unsafe path",
	fault.Vacuous: "vacuous or invalid contract",
}

// everyExit are the exit codes of every command: a configuration may be missing, stdout may be full.
var everyExit = []fault.Kind{0, fault.Other, fault.Usage, fault.NotFound, fault.IO}

// ExitCodes returns the exit codes of a command, ascending: of every command, and its own or those of its subcommands.
func (c *Command) ExitCodes() (codes []int) {
	for _, k := range slices.Concat(everyExit, c.Exits) {
		codes = append(codes, int(k))
	}
	for _, s := range c.Sub {
		codes = append(codes, s.ExitCodes()...)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// resumes reports whether the command, or one below it, goes on with what a signal stopped.
func (c *Command) resumes() bool {
	return slices.ContainsFunc(c.Options, func(o Option) bool { return o.Name == "resume" }) || slices.ContainsFunc(c.Sub, (*Command).resumes)
}

// exitRows lists exit codes with their meanings. A second signal ends any command at once, with 128 and its number.
func exitRows(codes []int, resumes bool) (rows [][2]string) {
	for _, k := range codes {
		meaning := exitMeanings[fault.Kind(k)]
		if k == int(fault.Stopped) && resumes {
			meaning += ", resumable"
		}
		rows = append(rows, [2]string{fmt.Sprintf("%-3d", k), meaning})
	}
	if slices.Contains(codes, int(fault.Stopped)) {
		for _, s := range namedSignals {
			if s.signal != 0 { // this system has it
				rows = append(rows, [2]string{strconv.Itoa(128 + int(s.signal)), "ended at once by a second signal: " + s.name})
			}
		}
	}
	return rows
}

var namedSignals = []struct {
	signal syscall.Signal
	name   string
}{{syscall.SIGINT, "INT"}, {syscall.SIGTERM, "TERM"}, {userSignal, "USR1"}}
