// Package launcher reads what the program's launcher says: which of how many processes this one is. torchrun, Slurm, Open MPI
// and their kin start the same command many times and tell the copies apart by environment variables only. A copy that does
// not look trains alone, beside others that write the same files.
//
// [Check] is a function of the environment. It believes nothing that is not consistent, and refuses more ranks than one;
// [Meet] is for a command that can be a rank.
//
// Caveats. Variables are read in the order of Sources: a launcher that was started by another one is the inner one and
// counts. SLURM_PROCID and SLURM_NTASKS also stand in a batch shell, which is one process of one: Slurm's world is that
// of SLURM_STEP_NUM_TASKS, by which srun says that it started this process. A batch shell's SLURM_PROCID is 0; any
// other is that of a step's task, whatever else is set; PBS_NODENUM and PBS_VNODENUM are alike. LSB_DJOB_NUMPROC too
// stands in a batch shell of LSF, and counts in blaunch's tasks only. A lone LOCAL_RANK of 0 chooses a device; a higher
// one has others before it, and is refused. JOB_COMPLETION_INDEX of Kubernetes numbers pods, not ranks, and MASTER_ADDR
// alone says nothing. Clouds that start the command once on each node count nodes, not processes: a job of one node is
// a process of its own, also where PET_NPROC_PER_NODE tells torchrun, which did not start it, to make more of it. A
// WORLD_SIZE of 1 is one process without a RANK, and a lone RANK of 0 may be. A number of machines that no variable
// numbers is a note, and so is a batch shell of a job of several tasks or machines. Tasks of Volcano are added up,
// whose kinds are numbered from 0 each. What looks like a launcher that no source describes is found by [FindAlike],
// for a warning.
package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
)

// Variable is an environment variable that was found.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Place is where this process stands among those that were started together.
type Place struct {
	Rank, World int
	By          string     // the launcher that counted; empty: none spoke
	Found       []Variable // all variables of launchers that are set, in the order of reading
	Notes       []string   // what is odd and no reason to refuse
}

// String says who counted, and what was found.
func (p Place) String() string {
	if p.By == "" {
		return "no launcher: a process of its own"
	}
	return fmt.Sprintf("rank %d of %d by %s", p.Rank, p.World, p.By)
}

// source is a launcher: its names of the five things that it may say. An empty name: it has none.
type source struct {
	by                                 string
	rank, world, localRank, localWorld string
	only                               string // counts only where this variable is set
	not                                string // does not count where this variable is set
	nodes, perNode, nodeRank           string // in place of rank and world
	master, port                       string
	localAlone                         bool     // local rank 0 may be given without rank and world, to choose a device
	first                              int      // number of the first rank
	pair                               bool     // names that others use too: they count where rank and world, or the master, are set; a cluster, where it is an object of JSON
	machines                           bool     // rank and world number machines; processes of an inner launcher are numbered otherwise
	cluster                            string   // in place of all: a description in JSON
	hosts, host                        string   // in place of all: a JSON list of machines, and the name of this one
	jobs                               []string // in place of all: a file lists the machines where one of these is set; see readResources
	role, trains                       string   // in place of a rank: what this process is, and the role that trains; world counts these
	kinds                              []string // in place of world: kinds of tasks that are counted each; see readKinds
	job, pods, pod                     string   // in place of rank: a job, pods of each, this one; see readJobs
	entries                            string   // in place of world: a list of processes; see readEntries
	lists                              []string // where world is not set: files that list processes; see readLists
	times                              string   // rank and world number groups of that many processes
	set                                []string // in place of all: what a JobSet says of a pod; see readJobSet
}

// sources are the launchers, from the innermost outwards.
var sources = []source{
	{by: "torchft", rank: "REPLICA_GROUP_ID", world: "NUM_REPLICA_GROUPS",
		times: "WORLD_SIZE", pair: true, machines: true},
	{by: "a job across clusters", rank: "GLOBAL_RANK", world: "GLOBAL_WORLD_SIZE",
		times: "WORLD_SIZE", pair: true, machines: true},
	{by: "torchrun", rank: "RANK", world: "WORLD_SIZE", localRank: "LOCAL_RANK", localWorld: "LOCAL_WORLD_SIZE", port: "MASTER_PORT", master: "MASTER_ADDR", localAlone: true},
	{by: petVariables, nodes: "PET_NNODES", perNode: "PET_NPROC_PER_NODE", nodeRank: "PET_NODE_RANK",
		port: "PET_MASTER_PORT", master: "PET_MASTER_ADDR"},
	{by: jobSet, set: jobSetVariables, nodes: jobPods, perNode: jobRanks, nodeRank: podIndex, port: jobPort,
		master: jobMaster, only: jobSetName},
	{by: indexedJob, nodes: jobPods, perNode: jobRanks, nodeRank: podIndex, port: jobPort,
		master: jobMaster, only: jobPods, not: jobSetName},
	{by: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", world: "OMPI_COMM_WORLD_SIZE", localRank: "OMPI_COMM_WORLD_LOCAL_RANK", localWorld: "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{by: "MVAPICH", rank: "MV2_COMM_WORLD_RANK", world: "MV2_COMM_WORLD_SIZE", localRank: "MV2_COMM_WORLD_LOCAL_RANK", localWorld: "MV2_COMM_WORLD_LOCAL_SIZE"},
	{by: "MVAPICH 3", rank: "MVP_COMM_WORLD_RANK", world: "MVP_COMM_WORLD_SIZE", localRank: "MVP_COMM_WORLD_LOCAL_RANK", localWorld: "MVP_COMM_WORLD_LOCAL_SIZE"},
	{by: "Horovod", rank: "HOROVOD_RANK", world: "HOROVOD_SIZE", localRank: "HOROVOD_LOCAL_RANK", localWorld: "HOROVOD_LOCAL_SIZE"},
	{by: "JSM", rank: "JSM_NAMESPACE_RANK", world: "JSM_NAMESPACE_SIZE", localRank: "JSM_NAMESPACE_LOCAL_RANK", localWorld: "JSM_NAMESPACE_LOCAL_SIZE"},
	{by: "mpirun_rsh", rank: "MPIRUN_RANK", world: "MPIRUN_NPROCS"},
	{by: "Flux", rank: "FLUX_TASK_RANK", world: "FLUX_JOB_SIZE", localRank: "FLUX_TASK_LOCAL_ID"},
	{by: "Platform MPI", rank: "MPI_RANKID", world: "MPI_NRANKS", localRank: "MPI_LOCALRANKID", localWorld: "MPI_LOCALNRANKS", only: "MPI_RANKID"},
	{by: "MPI's process manager", rank: "PMI_RANK", world: "PMI_SIZE", localRank: "MPI_LOCALRANKID", localWorld: "MPI_LOCALNRANKS", not: "MPI_RANKID"},
	{by: "IBM's poe", rank: "MP_CHILD", world: "MP_PROCS", only: "MP_CHILD"}, // MP_PROCS alone is an instruction to poe
	{by: "mlx.launch", rank: "MLX_RANK", world: "MLX_WORLD_SIZE", lists: []string{"MLX_HOSTFILE", "MLX_IBV_DEVICES"}},
	{by: "JACCL", rank: "JACCL_RANK", world: "JACCL_SIZE", lists: []string{"JACCL_IBV_DEVICES"}},
	{by: "submitit", rank: "SUBMITIT_LOCAL_GLOBALID", world: "SUBMITIT_LOCAL_NTASKS", localRank: "SUBMITIT_LOCAL_LOCALID"},
	{by: "KungFu", host: "KUNGFU_SELF_SPEC", entries: "KUNGFU_INIT_PEERS"},
	{by: "PaddlePaddle", host: "PADDLE_CURRENT_ENDPOINT", entries: "PADDLE_TRAINER_ENDPOINTS"},
	{by: "PaddlePaddle", rank: "PADDLE_TRAINER_ID", world: "PADDLE_TRAINERS_NUM"},
	{by: "a job of PaddlePaddle", nodes: "PADDLE_NNODES"},
	{by: "JAX", rank: "JAX_PROCESS_ID", world: "JAX_NUM_PROCESSES", master: "JAX_COORDINATOR_ADDRESS"},
	{by: "JAX", rank: "JAX_PROCESS_INDEX", world: "JAX_PROCESS_COUNT", pair: true},
	{by: "xpk", job: "JOB_INDEX", pods: "PROCESSES_IN_JOB", pod: podIndex, world: "JAX_PROCESS_COUNT"},
	{by: "Neuron", rank: "NEURON_PJRT_PROCESS_INDEX", entries: "NEURON_PJRT_PROCESSES_NUM_DEVICES", machines: true},
	{by: "torch_xla", rank: "PJRT_LOCAL_PROCESS_RANK", world: "PJRT_LOCAL_PROCESS_COUNT", pair: true, machines: true},
	{by: "torch_xla", rank: "XRT_SHARD_ORDINAL", world: "XRT_SHARD_WORLD_SIZE", pair: true},
	{by: "torch_xla", rank: "XRT_HOST_ORDINAL", world: "XRT_SHARD_WORLD_SIZE",
		not: "XRT_SHARD_ORDINAL", pair: true, machines: true},
	{by: "a job of JAX", rank: "PROCESS_ID", world: "NUM_PROCESSES", master: "COORDINATOR_ADDRESS", pair: true},
	{by: "a job of Ascend", rank: "RANK_ID", world: "RANK_SIZE", pair: true},
	{by: "MindSpore's msrun", role: "MS_ROLE", trains: "MS_WORKER", world: "MS_WORKER_NUM"},
	{by: "BytePS", rank: "BYTEPS_LOCAL_RANK", world: "BYTEPS_LOCAL_SIZE",
		times: "DMLC_NUM_WORKER", pair: true, machines: true},
	{by: "a job of DMLC", role: "DMLC_ROLE", trains: "worker", world: "DMLC_NUM_WORKER"},
	{by: "TensorFlow", cluster: "TF_CONFIG"},
	{by: "a cluster", cluster: "CLUSTER_SPEC", pair: true}, // Vertex AI, TonY
	{by: "LSF's blaunch", rank: "LSF_PM_TASKID", world: "LSB_DJOB_NUMPROC", only: "LSF_PM_TASKID", first: 1},
	{by: "a Slurm step", rank: slurmRank, world: "SLURM_STEP_NUM_TASKS", localRank: "SLURM_LOCALID", only: "SLURM_STEP_NUM_TASKS"},
	{by: "HTCondor's parallel universe", rank: "_CONDOR_PROCNO", world: "_CONDOR_NPROCS", pair: true, machines: true},
	{by: "AWS Batch", rank: "AWS_BATCH_JOB_NODE_INDEX", world: "AWS_BATCH_JOB_NUM_NODES", machines: true},
	{by: "SageMaker", hosts: "SM_HOSTS", host: "SM_CURRENT_HOST"},
	{by: "SageMaker", jobs: []string{"TRAINING_JOB_ARN", "TRAINING_JOB_NAME"}, not: "SM_HOSTS"}, // an image without its toolkit
	{by: "SkyPilot", rank: "SKYPILOT_NODE_RANK", world: "SKYPILOT_NUM_NODES", machines: true},
	{by: "dstack", rank: "DSTACK_NODE_RANK", world: "DSTACK_NODES_NUM", machines: true},
	{by: "Volcano", rank: volcanoRank, kinds: volcanoKinds},
	{by: "Volcano", rank: olderVolcanoRank, kinds: volcanoKinds, not: volcanoRank},
	{by: "Metaflow", rank: "MF_PARALLEL_NODE_INDEX", world: "MF_PARALLEL_NUM_NODES", pair: true, machines: true},
	{by: "Baseten", rank: "BT_NODE_RANK", world: "BT_GROUP_SIZE", pair: true, machines: true},
	{by: "Azure ML", rank: azureRank, world: "AZUREML_NODE_COUNT", pair: true, machines: true},
	{by: "Azure ML", rank: nodeRank, world: "AZUREML_NODE_COUNT", pair: true, machines: true},
	{by: "FfDL", rank: "LEARNER_ID", world: "NUM_LEARNERS", first: 1, pair: true, machines: true},
	{by: "ModelArts", rank: volcanoRank, world: "MA_NUM_HOSTS", pair: true, machines: true},
	{by: "Volcengine", role: "MLP_ROLE", trains: "worker", world: "MLP_WORKER_NUM", only: "MLP_WORKER_NUM"},
	{by: "Volcengine", rank: "MLP_ROLE_INDEX", world: "MLP_WORKER_NUM", not: "MLP_ROLE", pair: true, machines: true},
	{by: "Lepton", rank: "LEPTON_JOB_WORKER_INDEX", world: "LEPTON_JOB_TOTAL_WORKERS", machines: true},
	{by: "Arnold", rank: "ARNOLD_ID", world: "ARNOLD_WORKER_NUM", pair: true, machines: true},
	{by: "TI-ONE", rank: "INDEX", world: "NODE_NUM", pair: true, machines: true},
	{by: "Taiji", rank: "INDEX", world: "HOST_NUM", pair: true, machines: true},
	{by: "slices of TPUs", rank: "MEGASCALE_SLICE_ID", world: "MEGASCALE_NUM_SLICES", pair: true, machines: true},
	{by: "Beaker", rank: "BEAKER_REPLICA_RANK", world: "BEAKER_REPLICA_COUNT", pair: true, machines: true},
	{by: "a group of Kubernetes' leaders and workers", rank: "LWS_WORKER_INDEX", world: "LWS_GROUP_SIZE", pair: true, machines: true},
	{by: "a job of nodes", rank: nodeRank, world: "NNODES", pair: true, machines: true},
	{by: "a job of nodes", rank: nodeRank, world: "NUM_NODES", pair: true, machines: true},
	{by: "a job of nodes", rank: nodeRank, world: "NODE_COUNT", pair: true, machines: true},
	{by: "a job of nodes", rank: nodeRank, world: "NODE_NUM", pair: true, machines: true},
	{by: "a job of nodes", rank: "RANK", world: "NNODES", not: "WORLD_SIZE", pair: true, machines: true},
	{by: "a job of machines", rank: "MACHINE_RANK", world: "NUM_MACHINES", pair: true, machines: true},
}

// names returns the variables that s reads, but for the index of a pod, which alone says nothing of ranks.
func (s source) names() []string {
	all := []string{s.rank, s.world, s.localRank, s.localWorld, s.nodes, s.perNode, s.nodeRank, s.master, s.port}
	all = append(all, s.cluster, s.hosts, s.host, s.role, s.job, s.pods, s.entries)
	for _, kind := range s.kinds {
		all = append(all, volcanoCount(kind))
	}
	all = append(all, s.lists...)
	all = append(all, s.jobs...)
	all = append(all, s.set...)
	return slices.DeleteFunc(all, func(n string) bool { return n == "" || n == podIndex })
}

// Names returns all variables that are read, each once.
func Names() (all []string) {
	add := func(names ...string) {
		for _, name := range names {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	for _, s := range sources {
		add(s.names()...)
	}
	for _, b := range bareRanks {
		add(b.name)
	}
	return all
}

// slurmRank is set in each task of a step, and in a batch shell, where it is 0; nodeRank by many, often without the number of nodes.
const (
	slurmRank = "SLURM_PROCID"
	nodeRank  = "NODE_RANK"
	// volcanoRank is the number within a kind of tasks: Volcano has a job of one worker and others beside it, too.
	volcanoRank      = "VC_TASK_INDEX"
	olderVolcanoRank = "VK_TASK_INDEX"
	azureRank        = "AZ_BATCHAI_TASK_INDEX"
	// podIndex numbers the pods of an Indexed Job of Kubernetes, which are no ranks.
	podIndex = "JOB_COMPLETION_INDEX"
)

// bareRanks are ranks that stand without the number of ranks. Those with a meaning are 0 in what is a process of its own; the others
// are set by servers of PMIx, by HPE's PALS and MPT and by Cray's ALPS, which leave that number to others.
var bareRanks = []struct{ name, meaning string }{
	{slurmRank, "a task of a Slurm step: a batch shell's is 0"},
	{"PBS_NODENUM", "a task of pbsdsh: a batch shell's is 0"},
	{"PBS_VNODENUM", "a task of pbsdsh: a batch shell's is 0"},
	{nodeRank, "a node that has others before it: the first one's is 0"},
	{"NOMAD_ALLOC_INDEX", "an allocation of a Nomad group that has others before it: the first one's is 0"},
	{azureRank, "a worker of Azure's batch services that has others before it: the first one's is 0"},
	{"TORCHX_REPLICA_IDX", "a replica of a TorchX role that has others before it: the first one's is 0"},
	{"PMIX_RANK", ""}, {"PALS_RANKID", ""}, {"ALPS_APP_PE", ""}, {"MPT_MPI_RANK", ""},
}

// Without returns the variables of environ (NAME=VALUE) that are not a launcher's: for a process that is not one of its.
func Without(environ []string) []string {
	names := Names()
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(names, name)
	})
}

// LocalRank returns the number of this process on its machine, as text, and the variable that says so; empty: none does. It is
// the default of --device.
func LocalRank(getenv func(string) string) (value, name string) {
	for _, s := range sources {
		if s.localRank != "" && getenv(s.localRank) != "" && (s.only == "" || getenv(s.only) != "") && (s.not == "" || getenv(s.not) == "") {
			return getenv(s.localRank), s.localRank
		}
	}
	return "", ""
}

// Check reads the environment for a command that runs as a single process. Variables that contradict each other are a
// fault of kind Usage with a table of what was found. A world of more than one rank is a fault of kind Unavailable that
// names the variable.
func Check(getenv func(string) string) (Place, error) {
	p, inner, err := stand(getenv)
	if err != nil {
		return p, err
	}
	if err := p.countless(getenv); err != nil {
		return p, err
	}
	if p.World > 1 {
		return p, p.unbuilt(inner.worldName, cmp.Or(inner.listed, getenv(inner.worldName)), p.String())
	}
	if err := p.checkBare(getenv, inner); err != nil {
		return p, err
	}
	p.Notes = append(p.Notes, lone(getenv, inner)...)
	return p, nil
}

// stand reads the environment, and returns what the innermost launcher says.
func stand(getenv func(string) string) (p Place, inner *said, err error) {
	p = Place{World: 1, Found: found(getenv)}
	for _, s := range sources {
		own, err := s.read(getenv)
		switch {
		case err != nil:
			return p, nil, p.refuse(err)
		case own == nil:
		case inner == nil:
			if own.asks > 1 {
				p.Notes = append(p.Notes, fmt.Sprintf("%s=%d: torchrun would start as many processes here, and did not start this one; this run is one process", own.worldName, own.asks))
				own = &said{by: own.by, rankName: own.rankName, worldName: own.rankName, world: 1, least: 1, unranked: true}
			}
			inner, p.By, p.Rank, p.World = own, s.by, own.rank, own.world
		default:
			if err := inner.agrees(own); err != nil {
				return p, nil, p.refuse(err)
			}
		}
	}
	return p, inner, nil
}

// checkBare judges ranks that are said without a world, beside a world of one rank or none at all (inner is nil).
func (p Place) checkBare(getenv func(string) string, inner *said) error {
	for _, b := range bareRanks {
		v := getenv(b.name)
		if v == "" {
			continue
		}
		rank, err := number(b.name, v)
		switch {
		case err != nil:
			return p.refuse(err)
		case inner != nil && rank > 0:
			return p.refuse(fault.In(fault.Usage, b.name, "is %d, but %s is %s", rank, inner.worldName, getenv(inner.worldName)))
		case inner == nil && b.meaning == "":
			return p.refuse(fault.In(fault.Usage, b.name, "is %d, and nothing says of how many ranks", rank))
		case inner == nil && rank > 0:
			return p.unbuilt(b.name, v, b.meaning)
		}
	}
	return nil
}

// unbuilt refuses to be one of several; the variable says so.
func (p Place) unbuilt(name, value, what string) error {
	return fault.In(fault.Unavailable, name, "is %s: this command runs as a single process, not as one of several ranks", value).
		WithHint("%s; distill --backend cpu or cuda trains with ranks of torchrun, srun and mpirun; else start one process, or "+
			"unset %s to train alone%s", what, strings.Join(p.unset(), " "), p.table()).WithID("E-LAUNCHER-002")
}

// said is what one launcher says, once it is consistent.
type said struct {
	by, rankName, worldName string
	rank, world             int
	least                   int    // of an elastic world
	unranked                bool   // rank is that of the machine
	listed                  string // what says so, where it is no variable
	asks                    int    // processes that an instruction to a launcher asks for on the only machine: not there if nobody started them
}

// agrees reports a contradiction with a launcher further out. An outer launcher may start inner ones that each start more
// processes: then the inner world is the larger one, and numbers ranks in its own way.
func (in *said) agrees(out *said) error {
	switch {
	case in.world < out.least:
		return fault.In(fault.Usage, in.worldName, "says %d ranks, but %s says %d", in.world, out.worldName, out.least)
	case in.world == 1 && out.rank > 0:
		return fault.In(fault.Usage, in.worldName, "says 1 rank, but %s says that this one has others before it", out.rankName)
	case in.world == out.world && in.rank != out.rank && !out.unranked:
		return fault.In(fault.Usage, in.rankName, "says rank %d, but %s says %d", in.rank, out.rankName, out.rank)
	}
	return nil
}

// repeats reports whether the launcher whose variable is s.not says what s would, or s says no number of processes.
func (s source) repeats(getenv func(string) string) bool {
	if s.not == "" || getenv(s.not) == "" {
		return false
	}
	i := slices.IndexFunc(sources, func(o source) bool { return o.only == s.not })
	return i < 0 || getenv(s.world) == "" || getenv(s.world) == getenv(sources[i].world)
}

// read returns what s says, nil if it does not speak of ranks.
func (s source) read(getenv func(string) string) (*said, error) {
	if s.only != "" && getenv(s.only) == "" || s.repeats(getenv) {
		return nil, nil
	}
	switch {
	case len(s.set) > 0:
		return s.readJobSet(getenv)
	case s.nodes != "":
		return s.readNodes(getenv)
	case s.cluster != "":
		return s.readCluster(getenv)
	case s.hosts != "":
		return s.readHosts(getenv)
	case len(s.jobs) > 0:
		return s.readResources(getenv)
	case s.role != "":
		return s.readRole(getenv)
	case len(s.kinds) > 0:
		return s.readKinds(getenv)
	case s.job != "":
		return s.readJobs(getenv)
	case s.entries != "":
		return s.readEntries(getenv)
	case len(s.lists) > 0 && getenv(s.rank) != "" && getenv(s.world) == "":
		return s.readLists(getenv)
	case s.pair && getenv(s.master) == "" && (getenv(s.rank) == "" || getenv(s.world) == ""):
		return nil, nil
	}
	numbers := map[string]int{}
	for _, name := range []string{s.rank, s.world, s.localRank, s.localWorld} {
		if v := getenv(name); name != "" && v != "" {
			n, err := number(name, v)
			if err != nil {
				return nil, err
			}
			numbers[name] = n
		}
	}
	rank, hasRank := numbers[s.rank]
	rank = max(0, rank-s.first)
	world, hasWorld := numbers[s.world]
	local, hasLocal := numbers[s.localRank]
	localWorld, hasLocalWorld := numbers[s.localWorld]
	if s.localAlone && hasRank && !hasWorld && rank == 0 && local == 0 && localWorld < 2 {
		hasRank = false // the first one of nobody knows how many: others, if there are any, refuse
	}
	switch {
	case hasRank && !hasWorld:
		e := fault.In(fault.Usage, s.rank, "is %d, but %s is not set", numbers[s.rank], s.world)
		if s.only == s.rank { // set by this launcher alone
			e.Msg += fmt.Sprintf(": %s started this process as one of its tasks, and nothing says how many there are", s.by)
		}
		return nil, e
	case hasWorld && !hasRank && world > 1:
		return nil, fault.In(fault.Usage, s.world, "is %d, but %s is not set", world, s.rank)
	case hasWorld && world < 1:
		return nil, fault.In(fault.Usage, s.world, "is %d: a world has at least one rank", world)
	case hasLocalWorld && localWorld < 1:
		return nil, fault.In(fault.Usage, s.localWorld, "is %d: a machine has at least one rank", localWorld)
	case hasRank && rank >= world:
		return nil, fault.In(fault.Usage, s.rank, "is %d, but %s is %d: ranks go from %d to %d", numbers[s.rank], s.world, world, s.first, s.first+world-1)
	case hasLocal && hasLocalWorld && local >= localWorld:
		return nil, fault.In(fault.Usage, s.localRank, "is %d, but %s is %d: local ranks go from 0 to %d", local, s.localWorld, localWorld, localWorld-1)
	case hasWorld && hasLocalWorld && localWorld > world:
		return nil, fault.In(fault.Usage, s.localWorld, "is %d, more than the %d ranks of %s", localWorld, world, s.world)
	case hasWorld && hasLocal && local > rank:
		return nil, fault.In(fault.Usage, s.localRank, "is %d, but %s is %d: a machine's ranks are not more than those before them", local, s.rank, rank)
	case !hasRank && !hasWorld && (hasLocalWorld && localWorld > 1 || hasLocal && (local > 0 || !s.localAlone)):
		name := s.localWorld
		if !hasLocalWorld || localWorld == 1 {
			name = s.localRank
		}
		return nil, fault.In(fault.Usage, name, "is %s, but %s and %s are not set", getenv(name), s.rank, s.world)
	case !hasRank && !hasWorld:
		return nil, nil
	}
	all, err := s.multiply(s.says(s.rank, s.world, rank, world), getenv)
	return all, cmp.Or(err, s.checkPort(getenv))
}

// number reads a count or an index: decimal digits only.
func number(name, v string) (int, error) {
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return 0, fault.In(fault.Usage, name, "%q is not a whole number from 0 up", v)
	}
	return int(n), nil
}

// found lists the variables that are set.
func found(getenv func(string) string) (all []Variable) {
	for _, name := range append(Names(), "SLURM_NTASKS", "SLURM_NPROCS", podIndex) {
		if v := getenv(name); v != "" {
			all = append(all, Variable{name, v})
		}
	}
	return all
}

// unset are the variables that make this process one of several.
func (p Place) unset() (names []string) {
	for _, v := range p.Found {
		if slices.Contains(Names(), v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}

// table lists what was found, a line each.
func (p Place) table() string {
	var b strings.Builder
	for _, v := range p.Found {
		fmt.Fprintf(&b, "\n%-26s %q", v.Name, v.Value)
	}
	return b.String()
}

// refuse adds what was found to a contradiction.
func (p Place) refuse(err error) error {
	f, ok := err.(*fault.Error)
	if !ok {
		return err
	}
	return f.WithHint("the launcher's variables contradict each other; set them all alike, or unset %s%s", strings.Join(p.unset(), " "), p.table()).WithID("E-LAUNCHER-001")
}
