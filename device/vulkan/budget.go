package vulkan

import (
	"fmt"
	"os"
	"strings"

	"apr/device/vulkan/driver"
	"apr/internal/cgroup"
)

// budgetOf returns what a run may allocate on an adapter, 0 if nobody knows. A card's own memory is what its driver
// says is left for this process, or nine tenths of the heap. Memory that is the machine's own is at most what the
// machine has available, less a tenth, and on integrated hardware less 8 GiB if that is more, which everything else
// needs too.
func budgetOf(a *driver.Adapter) (n int64) {
	for _, h := range a.Heaps {
		if h.Local {
			if h.Budget > 0 {
				n = max(n, h.Budget)
			} else {
				n = max(n, h.Bytes/10*9)
			}
		}
	}
	if a.Type == driver.Discrete {
		return n
	}
	available := hostMemory()
	if available == 0 {
		return n
	}
	reserve := available / 10
	if a.Type == driver.Integrated {
		reserve = max(reserve, 8<<30)
	}
	return max(1, min(n, available-reserve))
}

// hostMemory returns what the machine has available and the limits of the process's cgroup leave, in bytes; 0: not
// known.
func hostMemory() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var available int64
	for line := range strings.Lines(string(b)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			available = kb << 10
		}
	}
	if g, err := cgroup.Find("/", os.Getpid()); err == nil {
		if free, ok := g.Free(); ok && (available == 0 || free < available) {
			return max(1, free)
		}
	}
	return available
}
