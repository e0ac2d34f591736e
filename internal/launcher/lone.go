package launcher

import (
	"fmt"
	"slices"
	"strings"

	"apr/internal/readfile"
)

// counts are numbers of machines or processes that launchers say beside a rank, and scripts without one.
var counts = []string{"NNODES", "NUM_NODES", "NODE_COUNT", "NODE_NUM", "NUM_MACHINES", "HOST_NUM", "NUM_PROCESSES",
	"RANK_SIZE", "JAX_PROCESS_COUNT", "AZUREML_NODE_COUNT", "LWS_GROUP_SIZE"}

// allocations are how many tasks or machines a batch job has, as its shell is told, which is one process of one.
var allocations = []struct{ name, starts string }{
	{"SLURM_NTASKS", "srun"}, {"SLURM_NPROCS", "srun"}, {"SLURM_JOB_NUM_NODES", "srun"}, {"SLURM_NNODES", "srun"},
	{"SLURM_NTASKS_PER_NODE", "srun"}, // SLURM_TASKS_PER_NODE may be processors that nobody asked tasks for
	{"PBS_NUM_NODES", "pbsdsh or mpirun"}, {pbsHosts, "pbsdsh or mpirun"}, {"NHOSTS", "mpirun"}, {lsfHosts, "blaunch or mpirun"},
	{"PJM_NODE", "mpiexec"}, {"AZ_BATCH_NODE_LIST", "mpirun"},
}

// Variables that say more than a number: a file with a line for each process of a host, and names and slots in turns.
const (
	pbsHosts = "PBS_NODEFILE"
	lsfHosts = "LSB_MCPU_HOSTS"
)

// masters are addresses that ranks meet at.
var masters = []string{"MASTER_ADDR", "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", torchxHost}

const torchxHost = "TORCHX_RANK0_HOST"

// orders number pods and tasks that are not always ranks.
var orders = []string{podIndex, volcanoRank, olderVolcanoRank, "TORCHX_REPLICA_IDX", "NODE_RANK", "RANK"}

// lone notes a number of machines or processes without a rank among them, a batch job of several, and a pod or task that has
// an address to meet at or, of Volcano, others of its kind before it: there may be others like this process, or not. inner
// is what says that it is one of one; nil: nothing does.
func lone(getenv func(string) string, inner *said) (notes []string) {
	set := func(name string) bool { // TorchX names this machine to a replica that is alone on it
		return getenv(name) != "" && (name != torchxHost || getenv(name) != "localhost")
	}
	which := "no variable says which of them this process is"
	if inner != nil {
		which = fmt.Sprintf("%s says that it is the only one", inner.worldName)
	}
	for _, name := range counts {
		if n, err := number(name, getenv(name)); err == nil && n > 1 {
			notes = append(notes, fmt.Sprintf("%s=%d, and %s: if a launcher started others like it, each trains alone; %s", name, n, which, own))
			break
		}
	}
	notes = append(notes, batch(getenv)...)
	if n, err := number(workersBeside, getenv(workersBeside)); err == nil && n > 0 {
		notes = append(notes, fmt.Sprintf("%s=%d: as many workers may run beside this process; %s", workersBeside, n, own))
	}
	index, master := slices.IndexFunc(orders, set), slices.IndexFunc(masters, set)
	if index < 0 {
		return notes
	}
	order, n := orders[index], getenv(orders[index])
	if inner != nil && n == "0" { // the only one is the first
		return notes
	}
	switch {
	case master >= 0:
		address := masters[master] + "=" + getenv(masters[master])
		const looks = "%s=%s and %s: this looks like a pod of several that were to train together; %s"
		notes = append(notes, fmt.Sprintf(looks, order, n, address, own))
	case (order == volcanoRank || order == olderVolcanoRank) && n != "0":
		notes = append(notes, fmt.Sprintf("%s=%s: this task of Volcano has others before it; %s", order, n, own))
	}
	return notes
}

// batch notes that a batch job has several tasks or machines, of which this process is none: it is the job's shell's.
func batch(getenv func(string) string) []string {
	if getenv("SLURM_STEP_NUM_TASKS") != "" {
		return nil
	}
	for _, a := range allocations {
		n := howMany(getenv(a.name))
		switch a.name {
		case pbsHosts:
			n = hostsOf(getenv(a.name))
		case lsfHosts:
			n /= 2
		}
		if n > 1 {
			const line = "%s=%s: the batch job has %d of them, and this is one process of its shell; %s starts all"
			return []string{fmt.Sprintf(line, a.name, getenv(a.name), n, a.starts)}
		}
	}
	return nil
}

// hostsOf counts the hosts of a file that has a line for each process; a file that cannot be read says nothing.
func hostsOf(path string) int {
	text, err := readfile.String(path, 1<<20)
	if path == "" || err != nil {
		return 0
	}
	hosts := map[string]bool{}
	for _, host := range strings.Fields(text) {
		hosts[host] = true
	}
	return len(hosts)
}

// own ends a note.
const own = "this run is on its own"

// workersBeside counts the machines of a job of OCI Data Science without the main one.
const workersBeside = "OCI__WORKER_COUNT"
