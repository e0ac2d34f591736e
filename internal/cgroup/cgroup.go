// Package cgroup finds the cgroup by which the kernel accounts the memory of a process, and what its limits leave.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Group is a cgroup that accounts memory.
type Group struct {
	Version int      // of the interface, 1 or 2
	Dir     string   // where its files are
	Root    bool     // of the hierarchy as seen here
	above   []string // those above it that are seen here
}

// Find returns the cgroup of a process, from /proc/PID/cgroup and the mounts. root is "/", or a copy for tests. An error says
// why there is none.
func Find(root string, pid int) (Group, error) {
	memberships, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return Group{}, fmt.Errorf("the cgroup is not known: %w", err)
	}
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return Group{}, fmt.Errorf("the mounts are not known: %w", err)
	}
	version, path := memoryCgroup(memberships)
	if version == 0 {
		return Group{}, errors.New("the process is in no cgroup that counts memory")
	}
	mount, rel, whole, ok := mountedAt(mounts, version, path)
	if !ok {
		return Group{}, fmt.Errorf("cgroup %s is not mounted here", path)
	}
	g := Group{Version: version, Dir: filepath.Join(root, mount, rel), Root: whole}
	for rel != "" {
		rel = strings.Trim(filepath.Dir("/"+rel), "/")
		g.above = append(g.above, filepath.Join(root, mount, rel))
	}
	return g, nil
}

// Free returns how many bytes more the processes of the cgroup may use before a limit of it, or of one above it that is seen here,
// ends one: the least, over those with a limit, of limit − (usage − cached files that nobody has used lately). It reports false
// without any limit.
func (g Group) Free() (free int64, ok bool) {
	limit, usage, cached := "memory.max", "memory.current", "inactive_file"
	if g.Version == 1 {
		limit, usage, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	const endless = math.MaxInt64 / 2 // version 1 says no limit by a number near the largest
	free = math.MaxInt64
	for _, dir := range append([]string{g.Dir}, g.above...) {
		most, isLimit := number(filepath.Join(dir, limit))
		used, isUsage := number(filepath.Join(dir, usage))
		if !isLimit || !isUsage || most >= endless {
			continue
		}
		used -= stat(filepath.Join(dir, "memory.stat"), cached)
		free, ok = min(free, max(0, most-max(0, used))), true
	}
	return free, ok
}

// number reads a file of one number.
func number(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil && n >= 0
}

// stat reads the number of a line "name number"; 0 if there is none.
func stat(path, name string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) == 2 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return max(0, n)
		}
	}
	return 0
}

// memoryCgroup finds the cgroup that accounts memory in /proc/PID/cgroup: lines ID:CONTROLLERS:PATH. Version 1 names the
// controller; version 2 is the line of ID 0.
func memoryCgroup(memberships []byte) (version int, path string) {
	for line := range bytes.Lines(memberships) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if slices.Contains(strings.Split(f[1], ","), "memory") {
			return 1, f[2]
		}
		if f[0] == "0" && f[1] == "" {
			version, path = 2, f[2]
		}
	}
	return version, path
}

// mountedAt returns where a cgroup is, by /proc/self/mountinfo: the mount point and the path below it. The fields of a line are: ID, parent, device, root of the
// mount, mount point, …, "-", type, source, options. whole reports that it is the root of the hierarchy as seen here.
func mountedAt(mounts []byte, version int, path string) (mount, rel string, whole, ok bool) {
	for line := range bytes.Lines(mounts) {
		before, after, found := strings.Cut(strings.TrimSpace(string(line)), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !found || len(f) < 5 || len(g) < 3 {
			continue
		}
		if version == 2 && g[0] != "cgroup2" || version == 1 && (g[0] != "cgroup" || !slices.Contains(strings.Split(g[2], ","), "memory")) {
			continue
		}
		rel, inside := below(path, f[3])
		if !inside {
			continue
		}
		return f[4], rel, rel == "" && f[3] == "/", true
	}
	return "", "", false, false
}

// below returns path relative to root.
func below(path, root string) (rel string, ok bool) {
	if root == "/" {
		return strings.Trim(path, "/"), true
	}
	if path == root {
		return "", true
	}
	rel, ok = strings.CutPrefix(path, root+"/")
	return rel, ok
}
