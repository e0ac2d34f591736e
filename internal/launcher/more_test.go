package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// place is an environment and its verdict.
type place struct {
	name, env string
	by        string // of a world of one
	kind      fault.Kind
	names     string // what the error says
}

// TestLaunchers: what more launchers set: for a job of one process, for one of several, and in contradiction.
func TestLaunchers(t *testing.T) {
	for _, tt := range []place{
		// one of one
		{name: "xpk, one", env: "JOB_INDEX=0 PROCESSES_IN_JOB=1 " +
			"JOB_COMPLETION_INDEX=0 JAX_PROCESS_COUNT=1 JAX_COORDINATOR_ADDRESS=h",
			by: "xpk"},
		{name: "an index of jobs of something else", env: "JOB_INDEX=3"},
		{name: "mlx.launch over NCCL, one", env: "MLX_RANK=0 MLX_WORLD_SIZE=1", by: "mlx.launch"},
		{name: "JACCL, one", env: "JACCL_RANK=0 JACCL_SIZE=1", by: "JACCL"},
		{name: "submitit, one", env: "SUBMITIT_LOCAL_GLOBALID=0 SUBMITIT_LOCAL_NTASKS=1 SUBMITIT_LOCAL_LOCALID=0",
			by: "submitit"},
		{name: "KungFu, one", env: "KUNGFU_SELF_SPEC=h:1 KUNGFU_INIT_PEERS=h:1", by: "KungFu"},
		{name: "PaddlePaddle by addresses, one", env: "PADDLE_CURRENT_ENDPOINT=h:1 PADDLE_TRAINER_ENDPOINTS=h:1",
			by: "PaddlePaddle"},
		{name: "JAX by other names, one", env: "JAX_PROCESS_INDEX=0 JAX_PROCESS_COUNT=1", by: "JAX"},
		{name: "Neuron, one", env: "NEURON_PJRT_PROCESS_INDEX=0 NEURON_PJRT_PROCESSES_NUM_DEVICES=32", by: "Neuron"},
		{name: "torch_xla, one", env: "PJRT_LOCAL_PROCESS_RANK=0 PJRT_LOCAL_PROCESS_COUNT=1", by: "torch_xla"},
		{name: "torch_xla over XRT, one", env: "XRT_SHARD_ORDINAL=0 XRT_HOST_ORDINAL=0 XRT_SHARD_WORLD_SIZE=1",
			by: "torch_xla"},
		{name: "torchft, one group of one", env: "RANK=0 WORLD_SIZE=1 REPLICA_GROUP_ID=0 NUM_REPLICA_GROUPS=1",
			by: "torchrun"},
		{name: "replica groups of something else", env: "NUM_REPLICA_GROUPS=3"},
		{name: "one job across clusters", env: "GLOBAL_RANK=0 GLOBAL_WORLD_SIZE=1 RANK=0 WORLD_SIZE=1", by: "torchrun"},
		{name: "BytePS, one", env: "DMLC_ROLE=worker DMLC_NUM_WORKER=1 BYTEPS_LOCAL_RANK=0 BYTEPS_LOCAL_SIZE=1",
			by: "a job of DMLC"},
		{name: "Volcano, one master", env: "VC_TASK_INDEX=0 VK_TASK_INDEX=0 VC_MASTER_NUM=1 VC_MASTER_HOSTS=a",
			by: "Volcano"},
		{name: "Volcano's older name, one worker", env: "VK_TASK_INDEX=0 VC_WORKER_NUM=1", by: "Volcano"},
		{name: "Metaflow, one node", env: "MF_PARALLEL_NODE_INDEX=0 MF_PARALLEL_NUM_NODES=1", by: "Metaflow"},
		{name: "Baseten, one node", env: "BT_NODE_RANK=0 BT_GROUP_SIZE=1 BT_NUM_GPUS=8 BT_LEADER_ADDR=h", by: "Baseten"},
		{name: "Azure ML, one node", env: "AZ_BATCHAI_TASK_INDEX=0 AZUREML_NODE_COUNT=1 " +
			"NODE_RANK=0 AZ_BATCH_MASTER_NODE=h:1",
			by: "Azure ML"},
		{name: "FfDL, one learner", env: "LEARNER_ID=1 NUM_LEARNERS=1", by: "FfDL"},
		{name: "the first replica of TorchX", env: "TORCHX_REPLICA_IDX=0 TORCHX_RANK0_HOST=localhost"},
		{name: "OCI Data Science, one", env: "OCI__WORKER_COUNT=0"},
		{name: "Ray Train, one worker", env: "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 " +
			"LOCAL_WORLD_SIZE=1 NODE_RANK=0 MASTER_ADDR=h MASTER_PORT=1",
			by: "torchrun"},
		{name: "Accelerate, one", env: "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 ACCELERATE_MIXED_PRECISION=no",
			by: "torchrun"},
		{name: "DeepSpeed, one", env: "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_SIZE=1 " +
			"CROSS_RANK=0 CROSS_SIZE=1 MASTER_ADDR=h MASTER_PORT=29500",
			by: "torchrun"},
		{name: "a PyTorchJob, one", env: "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost " +
			"MASTER_PORT=23456 PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1",
			by: "torchrun"},
		{name: "an MPIJob, one", env: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0 K_MPI_JOB_ROLE=worker",
			by: "Open MPI"},
		{name: "a LeaderWorkerSet, one", env: "LWS_WORKER_INDEX=0 LWS_GROUP_SIZE=1 LWS_LEADER_ADDRESS=h",
			by: "a group of Kubernetes' leaders and workers"},
		{name: "an array of SGE", env: "SGE_TASK_ID=3 SGE_TASK_LAST=8 JOB_ID=7 NSLOTS=4"},
		// one of several
		{name: "xpk, the second of two jobs", env: "JOB_INDEX=1 PROCESSES_IN_JOB=1 " +
			"JOB_COMPLETION_INDEX=0 JAX_PROCESS_COUNT=2 JAX_COORDINATOR_ADDRESS=h",
			kind: fault.Unavailable, names: "JAX_PROCESS_COUNT: is 2"},
		{name: "xpk, one job of four", env: "JOB_INDEX=0 PROCESSES_IN_JOB=4 JOB_COMPLETION_INDEX=0",
			kind: fault.Unavailable, names: "PROCESSES_IN_JOB: is 4"},
		{name: "xpk without a count of all", env: "JOB_INDEX=1 PROCESSES_IN_JOB=1 JOB_COMPLETION_INDEX=0",
			kind: fault.Unavailable, names: "JOB_INDEX: is 1"},
		{name: "mlx.launch over NCCL", env: "MLX_RANK=0 MLX_WORLD_SIZE=2",
			kind: fault.Unavailable, names: "MLX_WORLD_SIZE: is 2"},
		{name: "JACCL", env: "JACCL_RANK=1 JACCL_SIZE=2", kind: fault.Unavailable, names: "JACCL_SIZE: is 2"},
		{name: "submitit", env: "SUBMITIT_LOCAL_GLOBALID=0 SUBMITIT_LOCAL_NTASKS=2 SUBMITIT_LOCAL_LOCALID=0",
			kind: fault.Unavailable, names: "SUBMITIT_LOCAL_NTASKS: is 2"},
		{name: "KungFu", env: "KUNGFU_SELF_SPEC=h:1 KUNGFU_INIT_PEERS=h:0,h:1",
			kind: fault.Unavailable, names: "KUNGFU_INIT_PEERS: is h:0,h:1"},
		{name: "PaddlePaddle by addresses", env: "PADDLE_CURRENT_ENDPOINT=h:2 PADDLE_TRAINER_ENDPOINTS=h:1,h:2",
			kind: fault.Unavailable, names: "PADDLE_TRAINER_ENDPOINTS: is h:1,h:2"},
		{name: "JAX by other names", env: "JAX_PROCESS_INDEX=0 JAX_PROCESS_COUNT=2",
			kind: fault.Unavailable, names: "JAX_PROCESS_COUNT: is 2"},
		{name: "Neuron", env: "NEURON_PJRT_PROCESS_INDEX=0 NEURON_PJRT_PROCESSES_NUM_DEVICES=32,32,",
			kind: fault.Unavailable, names: "NEURON_PJRT_PROCESSES_NUM_DEVICES: is 32,32"},
		{name: "torch_xla", env: "PJRT_LOCAL_PROCESS_RANK=1 PJRT_LOCAL_PROCESS_COUNT=4",
			kind: fault.Unavailable, names: "PJRT_LOCAL_PROCESS_COUNT: is 4"},
		{name: "torch_xla over XRT", env: "XRT_HOST_ORDINAL=0 XRT_SHARD_WORLD_SIZE=2",
			kind: fault.Unavailable, names: "XRT_SHARD_WORLD_SIZE: is 2"},
		{name: "torchft, groups of one process", env: "RANK=0 WORLD_SIZE=1 " +
			"LOCAL_RANK=0 REPLICA_GROUP_ID=0 NUM_REPLICA_GROUPS=2",
			kind: fault.Unavailable, names: "NUM_REPLICA_GROUPS: is 2"},
		{name: "torchft, one group", env: "RANK=3 WORLD_SIZE=8 REPLICA_GROUP_ID=0 NUM_REPLICA_GROUPS=1",
			kind: fault.Unavailable, names: "WORLD_SIZE: is 8"},
		{name: "torchft, groups of eight", env: "RANK=3 WORLD_SIZE=8 REPLICA_GROUP_ID=1 NUM_REPLICA_GROUPS=2",
			kind: fault.Unavailable, names: "NUM_REPLICA_GROUPS: is 2"},
		{name: "a job across clusters", env: "GLOBAL_RANK=1 GLOBAL_WORLD_SIZE=2 RANK=0 WORLD_SIZE=1",
			kind: fault.Unavailable, names: "GLOBAL_WORLD_SIZE: is 2"},
		{name: "BytePS on one machine", env: "DMLC_ROLE=worker DMLC_NUM_WORKER=1 " +
			"DMLC_WORKER_ID=0 BYTEPS_LOCAL_RANK=1 BYTEPS_LOCAL_SIZE=2",
			kind: fault.Unavailable, names: "BYTEPS_LOCAL_SIZE: is 2"},
		{name: "BytePS on four", env: "DMLC_ROLE=worker DMLC_NUM_WORKER=4 BYTEPS_LOCAL_RANK=1 BYTEPS_LOCAL_SIZE=2",
			kind: fault.Unavailable, names: "BYTEPS_LOCAL_SIZE: is 2"},
		{name: "Volcano, a master and a worker", env: "VC_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=1",
			kind: fault.Unavailable, names: "VC_MASTER_NUM: is 1 and VC_WORKER_NUM=1: this command runs as a single process"},
		{name: "Volcano, a server of parameters", env: "VC_TASK_INDEX=0 VC_PS_NUM=1 VC_WORKER_NUM=1",
			kind: fault.Unavailable, names: "VC_WORKER_NUM: is 1 and VC_PS_NUM=1"},
		{name: "Volcano's older name", env: "VK_TASK_INDEX=1 VC_WORKER_NUM=2",
			kind: fault.Unavailable, names: "VC_WORKER_NUM: is 2"},
		{name: "Metaflow", env: "MF_PARALLEL_NODE_INDEX=0 MF_PARALLEL_NUM_NODES=2 MF_PARALLEL_MAIN_IP=h",
			kind: fault.Unavailable, names: "MF_PARALLEL_NUM_NODES: is 2"},
		{name: "Baseten", env: "BT_NODE_RANK=0 BT_GROUP_SIZE=2", kind: fault.Unavailable, names: "BT_GROUP_SIZE: is 2"},
		{name: "Azure ML", env: "AZ_BATCHAI_TASK_INDEX=0 AZUREML_NODE_COUNT=2",
			kind: fault.Unavailable, names: "AZUREML_NODE_COUNT: is 2"},
		{name: "Azure ML by a node's rank", env: "NODE_RANK=0 AZUREML_NODE_COUNT=2",
			kind: fault.Unavailable, names: "AZUREML_NODE_COUNT: is 2"},
		{name: "a later worker of Azure's", env: "AZ_BATCHAI_TASK_INDEX=1",
			kind: fault.Unavailable, names: "AZ_BATCHAI_TASK_INDEX: is 1"},
		{name: "FfDL", env: "LEARNER_ID=1 NUM_LEARNERS=2", kind: fault.Unavailable, names: "NUM_LEARNERS: is 2"},
		{name: "a later replica of TorchX", env: "TORCHX_REPLICA_IDX=1",
			kind: fault.Unavailable, names: "TORCHX_REPLICA_IDX: is 1"},
		{name: "Ray Train", env: "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0",
			kind: fault.Unavailable, names: "WORLD_SIZE: is 2"},
		{name: "DeepSpeed on two machines", env: "RANK=1 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_SIZE=1 CROSS_RANK=1 CROSS_SIZE=2",
			kind: fault.Unavailable, names: "WORLD_SIZE: is 2"},
		// contradictions
		{name: "xpk, a pod too many", env: "JOB_INDEX=0 PROCESSES_IN_JOB=1 JOB_COMPLETION_INDEX=1",
			kind: fault.Usage, names: "JOB_COMPLETION_INDEX: is 1, but PROCESSES_IN_JOB is 1"},
		{name: "xpk, a job too many", env: "JOB_INDEX=2 PROCESSES_IN_JOB=1 JOB_COMPLETION_INDEX=0 JAX_PROCESS_COUNT=2",
			kind: fault.Usage, names: "JOB_INDEX: is 2, with PROCESSES_IN_JOB=1, but JAX_PROCESS_COUNT is 2"},
		{name: "xpk, no processes", env: "JOB_INDEX=0 PROCESSES_IN_JOB=0",
			kind: fault.Usage, names: "PROCESSES_IN_JOB: is 0"},
		{name: "mlx.launch without a count", env: "MLX_RANK=0",
			kind: fault.Usage, names: "MLX_RANK: is 0, but none of MLX_WORLD_SIZE, MLX_HOSTFILE, MLX_IBV_DEVICES is set"},
		{name: "KungFu, another's address", env: "KUNGFU_SELF_SPEC=h:9 KUNGFU_INIT_PEERS=h:0,h:1",
			kind: fault.Usage, names: "KUNGFU_SELF_SPEC: is h:9"},
		{name: "Neuron beyond its list", env: "NEURON_PJRT_PROCESS_INDEX=1 NEURON_PJRT_PROCESSES_NUM_DEVICES=32",
			kind: fault.Usage, names: "NEURON_PJRT_PROCESS_INDEX: is 1"},
		{name: "Volcano, a task too many", env: "VC_TASK_INDEX=1 VC_MASTER_NUM=1 VC_WORKER_NUM=1",
			kind: fault.Usage, names: "VC_TASK_INDEX: is 1"},
		{name: "MPT alone", env: "MPT_MPI_RANK=0", kind: fault.Usage, names: "MPT_MPI_RANK: is 0"},
	} {
		t.Run(tt.name, tt.check)
	}
}

// check compares Check's verdict with what is written.
func (tt place) check(t *testing.T) {
	contracttest.Cases(t, 1)
	p, err := Check(environment(tt.env))
	if fault.KindOf(err) != tt.kind || err == nil && (p.By != tt.by || p.Rank != 0 || p.World != 1 || len(p.Notes) > 0) {
		t.Fatalf("%+v, %v (%v); want kind %v by %q", p, err, fault.KindOf(err), tt.kind, tt.by)
	}
	if err != nil && !strings.Contains(err.Error(), tt.names) {
		t.Errorf("%q does not say %q", err, tt.names)
	}
}

// TestListsOfProcesses: mlx.launch says how many there are in files.
func TestListsOfProcesses(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		file, env string
		kind      fault.Kind
		names     string
	}{
		{`[["10.0.0.1:5000"]]`, "MLX_RANK=0 MLX_HOSTFILE=", 0, ""},
		{`[[null]]`, "MLX_RANK=0 MLX_JACCL_COORDINATOR=h:1 MLX_IBV_DEVICES=", 0, ""},
		{`[["a:1"],["b:1"]]`, "MLX_RANK=0 MLX_HOSTFILE=", fault.Unavailable, "a list of 2 processes"},
		{`[[null,"rdma"],["rdma",null]]`, "MLX_RANK=1 MLX_IBV_DEVICES=", fault.Unavailable, "MLX_IBV_DEVICES: is "},
		{`[[null,"rdma"],["rdma",null]]`, "JACCL_RANK=0 JACCL_IBV_DEVICES=", fault.Unavailable, "JACCL_IBV_DEVICES: is "},
		{`[["a:1"]]`, "MLX_RANK=1 MLX_HOSTFILE=", fault.Usage, "MLX_RANK: is 1"},
		{`{`, "MLX_RANK=0 MLX_HOSTFILE=", fault.Usage, "MLX_HOSTFILE: "},
		{"", "MLX_RANK=0 MLX_HOSTFILE=", fault.Usage, "MLX_HOSTFILE: "},
		{`[["a:1"],["b:1"]]`, "MLX_HOSTFILE=", 0, ""}, // not started by it
	} {
		contracttest.Cases(t, 1)
		path := filepath.Join(dir, "hosts.json")
		os.Remove(path)
		if tt.file != "" {
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Check(environment(tt.env + path))
		if fault.KindOf(err) != tt.kind || err == nil && p.World != 1 ||
			err != nil && !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%s%s: %+v, %v; want %q", tt.env, tt.file, p, err, tt.names)
		}
	}
}
