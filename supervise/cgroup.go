package supervise

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// counter is the file in which the kernel counts the processes of one cgroup that it has killed for want of memory.
type counter struct {
	path string // memory.events of version 2, memory.oom_control of version 1
}

// findCounter finds the counter of the cgroup that process pid is in, from /proc/PID/cgroup and the mounts. root is "/",
// or a copy for tests. An error says why there is none that speaks of this cgroup alone.
func findCounter(root string, pid int) (counter, error) {
	memberships, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return counter{}, fmt.Errorf("the cgroup is not known: %w", err)
	}
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return counter{}, fmt.Errorf("the mounts are not known: %w", err)
	}
	version, path := memoryCgroup(memberships)
	if version == 0 {
		return counter{}, errors.New("the process is in no cgroup that counts memory")
	}
	dir, whole, ok := mountedAt(mounts, version, path)
	if !ok {
		return counter{}, fmt.Errorf("cgroup %s is not mounted here", path)
	}
	if version == 1 && whole {
		return counter{}, errors.New("the process is in the root cgroup, whose counter speaks of the whole machine")
	}
	name := map[int]string{1: "memory.oom_control", 2: "memory.events"}[version]
	c := counter{filepath.Join(root, dir, name)}
	_, err = c.read()
	if version == 2 && whole && errors.Is(err, os.ErrNotExist) {
		return counter{}, errors.New("the process is in the root cgroup, which has no counter")
	}
	return c, err
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

// mountedAt returns the directory of a cgroup by /proc/self/mountinfo, whose fields are: ID, parent, device, root of the
// mount, mount point, …, "-", type, source, options. whole reports that it is the root of the hierarchy as seen here.
func mountedAt(mounts []byte, version int, path string) (dir string, whole, ok bool) {
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
		return filepath.Join(f[4], rel), rel == "" && f[3] == "/", true
	}
	return "", false, false
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

// read returns how many processes were killed.
func (c counter) read() (int64, error) {
	b, err := os.ReadFile(c.path)
	if err != nil {
		return 0, err
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if f := strings.Fields(s.Text()); len(f) == 2 && f[0] == "oom_kill" {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no line oom_kill", c.path)
}
