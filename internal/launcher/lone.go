package launcher

import (
	"fmt"
	"slices"
)

// counts are numbers of machines or processes that launchers say beside a rank, and scripts without one.
var counts = []string{"NNODES", "NUM_NODES", "NODE_COUNT", "NODE_NUM", "NUM_MACHINES", "HOST_NUM", "NUM_PROCESSES", "RANK_SIZE"}

// masters are addresses that ranks meet at.
var masters = []string{"MASTER_ADDR", "COORDINATOR_ADDRESS"}

// lone notes a number of machines or processes without a rank, and a pod of an Indexed Job of Kubernetes that has an
// address to meet at: there may be others like this process, or not.
func lone(getenv func(string) string) (notes []string) {
	for _, name := range counts {
		if n, err := number(name, getenv(name)); err == nil && n > 1 {
			notes = append(notes, fmt.Sprintf("%s=%d, and no variable says which of them this process is: if a launcher started others like it, each trains alone; this run is on its own", name, n))
			break
		}
	}
	index := getenv("JOB_COMPLETION_INDEX")
	i := slices.IndexFunc(masters, func(name string) bool { return getenv(name) != "" })
	if index != "" && i >= 0 {
		notes = append(notes, fmt.Sprintf("JOB_COMPLETION_INDEX=%s and %s=%s: this looks like a pod of several that were to train together; this run is on its own", index, masters[i], getenv(masters[i])))
	}
	return notes
}
