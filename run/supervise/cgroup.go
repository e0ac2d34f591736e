package supervise

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"apr/internal/cgroup"
)

// counter is the file in which the kernel counts the processes of one cgroup that it has killed for want of memory.
type counter struct {
	path string // memory.events of version 2, memory.oom_control of version 1
}

// findCounter finds the counter of the cgroup that process pid is in, from /proc/PID/cgroup and the mounts. root is "/",
// or a copy for tests. An error says why there is none that speaks of this cgroup alone.
func findCounter(root string, pid int) (counter, error) {
	g, err := cgroup.Find(root, pid)
	if err != nil {
		return counter{}, err
	}
	if g.Version == 1 && g.Root {
		return counter{}, errors.New("the process is in the root cgroup, whose counter speaks of the whole machine")
	}
	name := map[int]string{1: "memory.oom_control", 2: "memory.events"}[g.Version]
	c := counter{filepath.Join(g.Dir, name)}
	_, err = c.read()
	if g.Version == 2 && g.Root && errors.Is(err, os.ErrNotExist) {
		return counter{}, errors.New("the process is in the root cgroup, which has no counter")
	}
	return c, err
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
