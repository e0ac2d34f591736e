package launcher

import (
	"fmt"
	"slices"
)

// counts are numbers of machines or processes that launchers say beside a rank, and scripts without one.
var counts = []string{"NNODES", "NUM_NODES", "NODE_COUNT", "NODE_NUM", "NUM_MACHINES", "HOST_NUM", "NUM_PROCESSES",
	"RANK_SIZE", "JAX_PROCESS_COUNT", "AZUREML_NODE_COUNT"}

// masters are addresses that ranks meet at.
var masters = []string{"MASTER_ADDR", "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS"}

// orders number pods and tasks that are not always ranks.
var orders = []string{podIndex, volcanoRank, olderVolcanoRank}

// lone notes a number of machines or processes without a rank, and a pod or task that has an address to meet at or, of
// Volcano, others of its kind before it: there may be others like this process, or not.
func lone(getenv func(string) string) (notes []string) {
	set := func(name string) bool { return getenv(name) != "" }
	for _, name := range counts {
		if n, err := number(name, getenv(name)); err == nil && n > 1 {
			notes = append(notes, fmt.Sprintf("%s=%d, and no variable says which of them this process is: if a launcher started others like it, each trains alone; this run is on its own", name, n))
			break
		}
	}
	if n, err := number(workersBeside, getenv(workersBeside)); err == nil && n > 0 {
		notes = append(notes, fmt.Sprintf("%s=%d: as many workers may run beside this process; %s", workersBeside, n, own))
	}
	index, master := slices.IndexFunc(orders, set), slices.IndexFunc(masters, set)
	if index < 0 {
		return notes
	}
	order, n := orders[index], getenv(orders[index])
	switch {
	case master >= 0:
		address := masters[master] + "=" + getenv(masters[master])
		const looks = "%s=%s and %s: this looks like a pod of several that were to train together; %s"
		notes = append(notes, fmt.Sprintf(looks, order, n, address, own))
	case order != podIndex && n != "0":
		notes = append(notes, fmt.Sprintf("%s=%s: this task of Volcano has others before it; %s", order, n, own))
	}
	return notes
}

// own ends a note.
const own = "this run is on its own"

// workersBeside counts the machines of a job of OCI Data Science without the main one.
const workersBeside = "OCI__WORKER_COUNT"
