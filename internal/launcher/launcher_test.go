package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// TestCheck: what launchers set, what they would never set, and what others set that is none of a rank's business.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name, env string
		by        string // of a world of one
		kind      fault.Kind
		names     string // what the error says
	}{
		// nobody
		{name: "nothing"},
		{name: "empty values", env: "RANK= WORLD_SIZE= LOCAL_RANK="},
		{name: "meeting place alone", env: "MASTER_ADDR=h MASTER_PORT=banana"},
		{name: "device alone", env: "LOCAL_RANK=0"},
		{name: "a batch shell of LSF", env: "LSB_DJOB_NUMPROC=4"},
		{name: "processes of something else", env: "NUM_PROCESSES=8"},
		{name: "a number of something else", env: "PROCESS_ID=71"},
		{name: "a cluster of nobody", env: `TF_CONFIG={"cluster":{},"task":{}}`},
		{name: "device of one", env: "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"},
		{name: "a pod of an indexed job", env: "JOB_COMPLETION_INDEX=3"},
		{name: "a Slurm batch shell", env: "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=7"},
		// one of one
		{name: "torchrun, one", env: "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500", by: "torchrun"},
		{name: "mpirun, one", env: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0", by: "Open MPI"},
		{name: "srun, one of a larger job", env: "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", by: "a Slurm step"},
		{name: "hydra, one", env: "PMI_RANK=0 PMI_SIZE=1", by: "MPI's process manager"},
		{name: "Kubeflow, one", env: "PET_NNODES=1 PET_NPROC_PER_NODE=auto PET_NODE_RANK=0", by: "torchrun's PET variables"},
		{name: "torchrun in a step of one", env: "RANK=0 WORLD_SIZE=1 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", by: "torchrun"},
		{name: "one node of an elastic job", env: "RANK=0 WORLD_SIZE=1 PET_NNODES=1:4 PET_NPROC_PER_NODE=1", by: "torchrun"},
		{name: "torchrun, one, in a batch shell", env: "RANK=0 WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NPROCS=4", by: "torchrun"},
		{name: "Horovod, one", env: "HOROVOD_RANK=0 HOROVOD_SIZE=1 HOROVOD_LOCAL_RANK=0", by: "Horovod"},
		{name: "Flux, one", env: "FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1 FLUX_TASK_LOCAL_ID=0", by: "Flux"},
		{name: "PALS, one", env: "PALS_RANKID=0 PMI_RANK=0 PMI_SIZE=1", by: "MPI's process manager"},
		{name: "PMIx beside another", env: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0", by: "Open MPI"},
		{name: "MVAPICH 3, one", env: "MVP_COMM_WORLD_RANK=0 MVP_COMM_WORLD_SIZE=1", by: "MVAPICH 3"},
		{name: "PaddlePaddle, one", env: "PADDLE_TRAINER_ID=0 PADDLE_TRAINERS_NUM=1", by: "PaddlePaddle"},
		{name: "JAX, one", env: "JAX_PROCESS_ID=0 JAX_NUM_PROCESSES=1", by: "JAX"},
		{name: "a job of JAX, one", env: "PROCESS_ID=0 NUM_PROCESSES=1 COORDINATOR_ADDRESS=h:1", by: "a job of JAX"},
		{name: "TensorFlow, one", env: `TF_CONFIG={"cluster":{"worker":["h:1"],"evaluator":["h:2"]},"task":{"type":"worker","index":0}}`, by: "TensorFlow"},
		{name: "blaunch, one", env: "LSF_PM_TASKID=1 LSB_DJOB_NUMPROC=1", by: "LSF's blaunch"},
		{name: "TensorFlow, one, its number a text", env: `TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"worker","index":"0"}}`, by: "TensorFlow"},
		{name: "TensorFlow without a cluster", env: `TF_CONFIG={"task":{"type":"worker","index":0}}`},
		{name: "Vertex AI, one", env: `CLUSTER_SPEC={"cluster":{"workerpool0":["h:1"]},"environment":"cloud","task":{"type":"workerpool0","index":0,"trial":"1"}}`, by: "a cluster"},
		{name: "TonY, one", env: `CLUSTER_SPEC={"worker":["h:1"],"tensorboard":["h:2"]}`, by: "a cluster"},
		{name: "a cluster of something else", env: "CLUSTER_SPEC=/etc/cluster.yaml"},
		{name: "a job of PaddlePaddle, one node", env: "PADDLE_NNODES=1", by: "a job of PaddlePaddle"},
		{name: "a count of one node", env: "NODE_COUNT=1 NODE_RANK=0", by: "a job of nodes"},
		{name: "an index of something else", env: "INDEX=3"},
		{name: "torchrun, one, and a number of nodes", env: "RANK=0 WORLD_SIZE=1 NNODES=1", by: "torchrun"},
		{name: "SkyPilot, one node", env: "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1", by: "SkyPilot"},
		{name: "dstack, one node", env: "DSTACK_NODE_RANK=0 DSTACK_NODES_NUM=1", by: "dstack"},
		{name: "AWS Batch, one node", env: "AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_NUM_NODES=1", by: "AWS Batch"},
		{name: "a job of an array of AWS Batch", env: "AWS_BATCH_JOB_ARRAY_INDEX=3"},
		{name: "HTCondor, one", env: "_CONDOR_PROCNO=0 _CONDOR_NPROCS=1", by: "HTCondor's parallel universe"},
		{name: "processors of HTCondor", env: "_CONDOR_NPROCS=8"},
		{name: "SageMaker, one machine", env: `SM_HOSTS=["algo-1"] SM_CURRENT_HOST=algo-1`, by: "SageMaker"},
		{name: "a batch shell of PBS", env: "PBS_NODENUM=0 PBS_TASKNUM=1"},
		{name: "an instruction to poe", env: "MP_PROCS=4"},
		{name: "poe, one", env: "MP_CHILD=0 MP_PROCS=1", by: "IBM's poe"},
		{name: "Platform MPI, one", env: "MPI_RANKID=0 MPI_NRANKS=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", by: "Platform MPI"},
		{name: "DMLC, one worker", env: "DMLC_ROLE=worker DMLC_NUM_WORKER=1", by: "a job of DMLC"},
		{name: "workers of something else", env: "DMLC_NUM_WORKER=4"},
		{name: "msrun, one", env: "MS_ROLE=MS_WORKER MS_WORKER_NUM=1", by: "MindSpore's msrun"},
		{name: "Ascend, one", env: "RANK_ID=0 RANK_SIZE=1", by: "a job of Ascend"},
		{name: "a node of one", env: "NODE_RANK=0 NNODES=1", by: "a job of nodes"},
		{name: "the first node, of nobody knows how many", env: "NODE_RANK=0"},
		{name: "the first allocation of a Nomad group", env: "NOMAD_ALLOC_INDEX=0"},
		{name: "nodes of something else", env: "NNODES=2 NUM_NODES=2"},
		{name: "Volcano, one worker", env: "VC_TASK_INDEX=0 VC_WORKER_NUM=1 VC_WORKER_HOSTS=a", by: "Volcano"},
		{name: "ModelArts, one machine", env: "VC_TASK_INDEX=0 VC_WORKER_NUM=1 MA_NUM_HOSTS=1", by: "Volcano"},
		{name: "a task of Volcano and nothing else", env: "VC_TASK_INDEX=1"},
		{name: "Volcengine, one worker", env: "MLP_ROLE=worker MLP_ROLE_INDEX=0 MLP_WORKER_NUM=1", by: "Volcengine"},
		{name: "Lepton, one worker", env: "LEPTON_JOB_WORKER_INDEX=0 LEPTON_JOB_TOTAL_WORKERS=1", by: "Lepton"},
		{name: "a role of something else", env: "MLP_ROLE=admin"},
		{name: "processes that Kubeflow asks torchrun for", env: "PET_NPROC_PER_NODE=4", by: "torchrun's PET variables"},
		{name: "the same, on the only node", env: "PET_NNODES=1 PET_NPROC_PER_NODE=8 PET_NODE_RANK=0", by: "torchrun's PET variables"},
		{name: "world of one without rank", env: "WORLD_SIZE=1", by: "torchrun"},
		{name: "a node of a world of one", env: "NODE_RANK=0 WORLD_SIZE=1", by: "torchrun"},
		{name: "first rank without world", env: "RANK=0"},
		{name: "first rank and first device without world", env: "RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"},
		// one of several
		{name: "an evaluator of TensorFlow", env: `TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"evaluator","index":0}}`, kind: fault.Unavailable, names: "TF_CONFIG: is "},
		{name: "an evaluator in the cluster", env: `TF_CONFIG={"cluster":{"worker":["h:1"],"evaluator":["h:2"]},"task":{"type":"evaluator","index":"0"}}`, kind: fault.Unavailable, names: "TF_CONFIG: is "},
		{name: "an evaluator alone", env: `TF_CONFIG={"cluster":{},"task":{"type":"evaluator","index":0}}`, kind: fault.Unavailable, names: "TF_CONFIG: is "},
		{name: "a worker whose number is a text", env: `TF_CONFIG={"cluster":{"worker":["h:1","h:2"]},"task":{"type":"worker","index":"1"}}`, kind: fault.Unavailable, names: "TF_CONFIG: is "},
		{name: "a job of PaddlePaddle", env: "PADDLE_NNODES=2 PADDLE_MASTER=h:1 PADDLE_JOB_ID=j", kind: fault.Unavailable, names: "PADDLE_NNODES: is 2"},
		{name: "Arnold", env: "ARNOLD_WORKER_NUM=4 ARNOLD_ID=2 ARNOLD_ROLE=worker", kind: fault.Unavailable, names: "ARNOLD_WORKER_NUM: is 4"},
		{name: "TI-ONE", env: "INDEX=0 NODE_NUM=2", kind: fault.Unavailable, names: "NODE_NUM: is 2"},
		{name: "Taiji", env: "INDEX=1 HOST_NUM=2", kind: fault.Unavailable, names: "HOST_NUM: is 2"},
		{name: "slices of TPUs", env: "MEGASCALE_NUM_SLICES=2 MEGASCALE_SLICE_ID=0", kind: fault.Unavailable, names: "MEGASCALE_NUM_SLICES: is 2"},
		{name: "a count of nodes", env: "NODE_COUNT=2 NODE_RANK=0", kind: fault.Unavailable, names: "NODE_COUNT: is 2"},
		{name: "a number of nodes", env: "NODE_NUM=2 NODE_RANK=0 MASTER_ADDR=h", kind: fault.Unavailable, names: "NODE_NUM: is 2"},
		{name: "a node's rank as RANK", env: "RANK=0 NNODES=2 MASTER_ADDR=h NPROC_PER_NODE=8", kind: fault.Unavailable, names: "NNODES: is 2"},
		{name: "a rank of a machine", env: "MACHINE_RANK=0 NUM_MACHINES=2", kind: fault.Unavailable, names: "NUM_MACHINES: is 2"},
		{name: "pbsdsh on one node", env: "PBS_NODENUM=0 PBS_VNODENUM=3 PBS_TASKNUM=4", kind: fault.Unavailable, names: "PBS_VNODENUM: is 3"},
		{name: "Vertex AI", env: `CLUSTER_SPEC={"cluster":{"workerpool0":["h:1"],"workerpool1":["h:2"]},"environment":"cloud","task":{"type":"workerpool1","index":0}}`, kind: fault.Unavailable, names: "CLUSTER_SPEC: is "},
		{name: "TonY", env: `CLUSTER_SPEC={"worker":["h:1","h:2"]}`, kind: fault.Unavailable, names: "CLUSTER_SPEC: is "},
		{name: "the first node of SkyPilot", env: "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2", kind: fault.Unavailable, names: "SKYPILOT_NUM_NODES: is 2"},
		{name: "dstack", env: "DSTACK_NODE_RANK=1 DSTACK_NODES_NUM=2", kind: fault.Unavailable, names: "DSTACK_NODES_NUM: is 2"},
		{name: "AWS Batch", env: "AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_NUM_NODES=4", kind: fault.Unavailable, names: "AWS_BATCH_JOB_NUM_NODES: is 4"},
		{name: "HTCondor", env: "_CONDOR_PROCNO=1 _CONDOR_NPROCS=2", kind: fault.Unavailable, names: "_CONDOR_NPROCS: is 2"},
		{name: "SageMaker", env: `SM_HOSTS=["algo-1","algo-2"] SM_CURRENT_HOST=algo-2`, kind: fault.Unavailable, names: "SM_HOSTS: is "},
		{name: "a task of pbsdsh", env: "PBS_NODENUM=1", kind: fault.Unavailable, names: "PBS_NODENUM: is 1"},
		{name: "poe", env: "MP_CHILD=0 MP_PROCS=2", kind: fault.Unavailable, names: "MP_PROCS: is 2"},
		{name: "Platform MPI", env: "MPI_RANKID=1 MPI_NRANKS=2 MPI_LOCALRANKID=1", kind: fault.Unavailable, names: "MPI_NRANKS: is 2"},
		{name: "DMLC", env: "DMLC_ROLE=worker DMLC_NUM_WORKER=2", kind: fault.Unavailable, names: "DMLC_NUM_WORKER: is 2"},
		{name: "a server of DMLC", env: "DMLC_ROLE=server DMLC_NUM_WORKER=1", kind: fault.Unavailable, names: "DMLC_ROLE: is server"},
		{name: "a scheduler of msrun", env: "MS_ROLE=MS_SCHED MS_WORKER_NUM=1", kind: fault.Unavailable, names: "MS_ROLE: is MS_SCHED"},
		{name: "Ascend", env: "RANK_ID=0 RANK_SIZE=8", kind: fault.Unavailable, names: "RANK_SIZE: is 8"},
		{name: "Beaker", env: "BEAKER_REPLICA_RANK=0 BEAKER_REPLICA_COUNT=2", kind: fault.Unavailable, names: "BEAKER_REPLICA_COUNT: is 2"},
		{name: "leader and workers", env: "LWS_WORKER_INDEX=0 LWS_GROUP_SIZE=2", kind: fault.Unavailable, names: "LWS_GROUP_SIZE: is 2"},
		{name: "a job of nodes", env: "NODE_RANK=0 NNODES=2", kind: fault.Unavailable, names: "NNODES: is 2"},
		{name: "a job of nodes by another name", env: "NODE_RANK=0 NUM_NODES=2", kind: fault.Unavailable, names: "NUM_NODES: is 2"},
		{name: "a later allocation of a Nomad group", env: "NOMAD_ALLOC_INDEX=1", kind: fault.Unavailable, names: "NOMAD_ALLOC_INDEX: is 1"},
		{name: "a node and nothing else", env: "NODE_RANK=1", kind: fault.Unavailable, names: "NODE_RANK: is 1"},
		{name: "torchrun on nodes of SkyPilot, ranks in another order", env: "RANK=0 WORLD_SIZE=2 SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2", kind: fault.Unavailable, names: "WORLD_SIZE: is 2"},
		{name: "MVAPICH 3", env: "MVP_COMM_WORLD_RANK=1 MVP_COMM_WORLD_SIZE=2", kind: fault.Unavailable, names: "MVP_COMM_WORLD_SIZE: is 2"},
		{name: "PaddlePaddle", env: "PADDLE_TRAINER_ID=1 PADDLE_TRAINERS_NUM=2", kind: fault.Unavailable, names: "PADDLE_TRAINERS_NUM: is 2"},
		{name: "JAX", env: "JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=h:1", kind: fault.Unavailable, names: "JAX_NUM_PROCESSES: is 2"},
		{name: "a job of JAX", env: "PROCESS_ID=1 NUM_PROCESSES=2 COORDINATOR_ADDRESS=h:1", kind: fault.Unavailable, names: "NUM_PROCESSES: is 2"},
		{name: "a job of JAX without an address", env: "PROCESS_ID=0 NUM_PROCESSES=2", kind: fault.Unavailable, names: "NUM_PROCESSES: is 2"},
		{name: "workers of TensorFlow", env: `TF_CONFIG={"cluster":{"worker":["h:1","h:2"]},"task":{"type":"worker","index":1}}`, kind: fault.Unavailable, names: "TF_CONFIG: is "},
		{name: "chief and worker", env: `TF_CONFIG={"cluster":{"chief":["h:1"],"worker":["h:2"]},"task":{"type":"chief","index":0}}`, kind: fault.Unavailable, names: "TF_CONFIG: is "},
		{name: "the first task of blaunch", env: "LSF_PM_TASKID=1 LSB_DJOB_NUMPROC=4", kind: fault.Unavailable, names: "LSB_DJOB_NUMPROC: is 4"},
		{name: "the last task of blaunch", env: "LSF_PM_TASKID=4 LSB_DJOB_NUMPROC=4", kind: fault.Unavailable, names: "LSB_DJOB_NUMPROC: is 4"},
		{name: "torchrun", env: "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4", kind: fault.Unavailable, names: "WORLD_SIZE: is 4"},
		{name: "torchrun on two machines", env: "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", kind: fault.Unavailable, names: "WORLD_SIZE: is 8"},
		{name: "torchrun as PET asked", env: "RANK=2 WORLD_SIZE=4 PET_NNODES=1 PET_NPROC_PER_NODE=4", kind: fault.Unavailable, names: "WORLD_SIZE: is 4"},
		{name: "srun", env: "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4", kind: fault.Unavailable, names: "SLURM_STEP_NUM_TASKS: is 4"},
		{name: "mpirun", env: "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", kind: fault.Unavailable, names: "OMPI_COMM_WORLD_SIZE: is 2"},
		{name: "mpirun in a Slurm step of one", env: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", kind: fault.Unavailable, names: "OMPI_COMM_WORLD_SIZE: is 2"},
		{name: "MVAPICH", env: "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2", kind: fault.Unavailable, names: "MV2_COMM_WORLD_SIZE: is 2"},
		{name: "hydra beside one of Platform MPI", env: "PMI_RANK=1 PMI_SIZE=2 MPI_RANKID=0 MPI_NRANKS=1",
			kind: fault.Usage, names: "MPI_NRANKS: says 1"},
		{name: "hydra", env: "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", kind: fault.Unavailable, names: "PMI_SIZE: is 2"},
		{name: "machines of Kubeflow", env: "PET_NNODES=2 PET_NODE_RANK=1", kind: fault.Unavailable, names: "PET_NNODES: is 2"},
		{name: "nodes and processes of Kubeflow", env: "PET_NNODES=2 PET_NPROC_PER_NODE=8 PET_NODE_RANK=0", kind: fault.Unavailable, names: "PET_NNODES: is 2"},
		{name: "Volcano", env: "VC_TASK_INDEX=1 VC_WORKER_NUM=2 VC_WORKER_HOSTS=a,b", kind: fault.Unavailable, names: "VC_WORKER_NUM: is 2"},
		{name: "ModelArts", env: "VC_TASK_INDEX=0 MA_NUM_HOSTS=2", kind: fault.Unavailable, names: "MA_NUM_HOSTS: is 2"},
		{name: "Volcengine", env: "MLP_ROLE=worker MLP_ROLE_INDEX=1 MLP_WORKER_NUM=2", kind: fault.Unavailable, names: "MLP_WORKER_NUM: is 2"},
		{name: "Volcengine without a role", env: "MLP_ROLE_INDEX=0 MLP_WORKER_NUM=2", kind: fault.Unavailable, names: "MLP_WORKER_NUM: is 2"},
		{name: "a scheduler of Volcengine", env: "MLP_ROLE=scheduler MLP_ROLE_INDEX=0 MLP_WORKER_NUM=1", kind: fault.Unavailable, names: "MLP_ROLE: is scheduler"},
		{name: "Lepton", env: "LEPTON_JOB_WORKER_INDEX=1 LEPTON_JOB_TOTAL_WORKERS=2", kind: fault.Unavailable, names: "LEPTON_JOB_TOTAL_WORKERS: is 2"},
		{name: "an elastic job", env: "PET_NNODES=1:4", kind: fault.Unavailable, names: "PET_NNODES: is 1:4"},
		{name: "torchrun on each machine of a step", env: "RANK=3 WORLD_SIZE=8 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", kind: fault.Unavailable, names: "WORLD_SIZE: is 8"},
		{name: "a task without its step's size", env: "SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_LOCALID=1", kind: fault.Unavailable, names: "SLURM_PROCID: is 1"},
		{name: "a task by the older name", env: "SLURM_PROCID=3 SLURM_NPROCS=4", kind: fault.Unavailable, names: "SLURM_PROCID: is 3"},
		{name: "a task and nothing else", env: "SLURM_PROCID=1", kind: fault.Unavailable, names: "SLURM_PROCID: is 1"},
		{name: "Horovod", env: "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2", kind: fault.Unavailable, names: "HOROVOD_SIZE: is 2"},
		{name: "Flux", env: "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2", kind: fault.Unavailable, names: "FLUX_JOB_SIZE: is 2"},
		{name: "JSM", env: "JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2", kind: fault.Unavailable, names: "JSM_NAMESPACE_SIZE: is 2"},
		{name: "mpirun_rsh", env: "MPIRUN_RANK=1 MPIRUN_NPROCS=2", kind: fault.Unavailable, names: "MPIRUN_NPROCS: is 2"},
		{name: "PALS with a size", env: "PALS_RANKID=1 PMI_RANK=1 PMI_SIZE=2", kind: fault.Unavailable, names: "PMI_SIZE: is 2"},
		// contradictions
		{name: "a worker of TensorFlow that is no number", env: `TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"worker","index":"first"}}`, kind: fault.Usage, names: "TF_CONFIG: its task has the index"},
		{name: "a task that the cluster lacks", env: `TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"ps","index":0}}`, kind: fault.Usage, names: `TF_CONFIG: its task is of kind "ps"`},
		{name: "a second worker without a cluster", env: `TF_CONFIG={"task":{"type":"worker","index":1}}`, kind: fault.Usage, names: "TF_CONFIG: its task is number 1"},
		{name: "SkyPilot without a number", env: "SKYPILOT_NODE_RANK=1", kind: fault.Usage, names: "SKYPILOT_NUM_NODES is not set"},
		{name: "a machine that SageMaker does not list", env: `SM_HOSTS=["algo-1"] SM_CURRENT_HOST=algo-2`, kind: fault.Usage, names: "SM_CURRENT_HOST: is algo-2"},
		{name: "no list of SageMaker", env: "SM_HOSTS=algo-1", kind: fault.Usage, names: "SM_HOSTS: "},
		{name: "a world of one on two machines", env: "RANK=0 WORLD_SIZE=1 SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2", kind: fault.Usage, names: "WORLD_SIZE: says 1 ranks, but SKYPILOT_NUM_NODES says 2"},
		{name: "a worker of nobody knows how many", env: "DMLC_ROLE=worker", kind: fault.Usage, names: "DMLC_NUM_WORKER is not set"},
		{name: "a task of pbsdsh in a world of one", env: "RANK=0 WORLD_SIZE=1 PBS_NODENUM=1", kind: fault.Usage, names: "PBS_NODENUM: is 1"},
		{name: "a device with others before it", env: "LOCAL_RANK=3", kind: fault.Usage, names: "LOCAL_RANK: is 3, but RANK and WORLD_SIZE are not set"},
		{name: "the same, on a machine of several", env: "LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", kind: fault.Usage, names: "LOCAL_WORLD_SIZE: is 2"},
		{name: "a world of one, and four processes of a machine", env: "RANK=0 WORLD_SIZE=1 PET_NPROC_PER_NODE=4", kind: fault.Usage, names: "WORLD_SIZE: says 1 ranks, but PET_NPROC_PER_NODE says 4"},
		{name: "a task of blaunch beyond the job", env: "LSF_PM_TASKID=5 LSB_DJOB_NUMPROC=4", kind: fault.Usage, names: "LSF_PM_TASKID: is 5, but LSB_DJOB_NUMPROC is 4: ranks go from 1 to 4"},
		{name: "a task of blaunch alone", env: "LSF_PM_TASKID=2", kind: fault.Usage, names: "LSF_PM_TASKID: is 2, but LSB_DJOB_NUMPROC is not set: LSF's blaunch started this process as one of its tasks, and nothing says how many there are"},
		{name: "ALPS alone", env: "ALPS_APP_PE=1", kind: fault.Usage, names: "ALPS_APP_PE: is 1"},
		{name: "ALPS beside a world of one", env: "RANK=0 WORLD_SIZE=1 ALPS_APP_PE=1", kind: fault.Usage, names: "ALPS_APP_PE: is 1"},
		{name: "a cluster of no JSON", env: "TF_CONFIG=worker", kind: fault.Usage, names: "TF_CONFIG: is no description"},
		{name: "a worker beyond the cluster", env: `TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"worker","index":1}}`, kind: fault.Usage, names: "TF_CONFIG: its task is number 1 of 1"},
		{name: "an address and a rank", env: "COORDINATOR_ADDRESS=h:1 PROCESS_ID=1", kind: fault.Usage, names: "NUM_PROCESSES is not set"},
		{name: "PMIx beside a step of one", env: "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 PMIX_RANK=1", kind: fault.Usage, names: "PMIX_RANK: is 1, but SLURM_STEP_NUM_TASKS is 1"},
		{name: "PMIx beside a world of one", env: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=1", kind: fault.Usage, names: "PMIX_RANK: is 1"},
		{name: "PMIx is no number", env: "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=banana", kind: fault.Usage, names: `PMIX_RANK: "banana"`},
		{name: "PALS alone", env: "PALS_RANKID=1", kind: fault.Usage, names: "PALS_RANKID: is 1"},
		{name: "PALS beside a world of one", env: "RANK=0 WORLD_SIZE=1 PALS_RANKID=2", kind: fault.Usage, names: "PALS_RANKID: is 2"},
		{name: "a task of a world of one", env: "RANK=0 WORLD_SIZE=1 SLURM_PROCID=2", kind: fault.Usage, names: "SLURM_PROCID: is 2, but WORLD_SIZE is 1"},
		{name: "a batch shell of no number", env: "SLURM_PROCID=banana", kind: fault.Usage, names: `SLURM_PROCID: "banana"`},
		{name: "a machine of an elastic job, and a world of one", env: "RANK=0 WORLD_SIZE=1 PET_NNODES=1:4 PET_NODE_RANK=2", kind: fault.Usage, names: "WORLD_SIZE: says 1 rank"},
		{name: "Horovod without a size", env: "HOROVOD_RANK=1", kind: fault.Usage, names: "HOROVOD_SIZE is not set"},
		{name: "rank beyond the world", env: "RANK=9 WORLD_SIZE=4", kind: fault.Usage, names: "RANK: is 9, but WORLD_SIZE is 4"},
		{name: "rank at the world", env: "RANK=1 WORLD_SIZE=1", kind: fault.Usage, names: "RANK: is 1"},
		{name: "no number", env: "RANK=0 WORLD_SIZE=banana", kind: fault.Usage, names: `WORLD_SIZE: "banana"`},
		{name: "no number, alone", env: "WORLD_SIZE=banana", kind: fault.Usage, names: `WORLD_SIZE: "banana"`},
		{name: "blank", env: "RANK=0 WORLD_SIZE=1\u00a0", kind: fault.Usage, names: "WORLD_SIZE"},
		{name: "fraction", env: "RANK=0.0 WORLD_SIZE=1", kind: fault.Usage, names: `RANK: "0.0"`},
		{name: "sign", env: "RANK=+0 WORLD_SIZE=1", kind: fault.Usage, names: `RANK: "+0"`},
		{name: "hexadecimal", env: "RANK=0x0 WORLD_SIZE=1", kind: fault.Usage, names: `RANK: "0x0"`},
		{name: "negative rank", env: "RANK=-1 WORLD_SIZE=1", kind: fault.Usage, names: `RANK: "-1"`},
		{name: "negative world", env: "RANK=0 WORLD_SIZE=-4", kind: fault.Usage, names: `WORLD_SIZE: "-4"`},
		{name: "empty world", env: "RANK=0 WORLD_SIZE=0", kind: fault.Usage, names: "WORLD_SIZE: is 0"},
		{name: "huge world", env: "RANK=0 WORLD_SIZE=99999999999999999999", kind: fault.Usage, names: "WORLD_SIZE"},
		{name: "world without rank", env: "WORLD_SIZE=4", kind: fault.Usage, names: "WORLD_SIZE: is 4, but RANK is not set"},
		{name: "a world of one with others before it", env: "WORLD_SIZE=1 LOCAL_RANK=1", kind: fault.Usage, names: "LOCAL_RANK: is 1"},
		{name: "a second node of a world of one", env: "NODE_RANK=1 WORLD_SIZE=1", kind: fault.Usage, names: "NODE_RANK: is 1, but WORLD_SIZE is 1"},
		{name: "world of none without rank", env: "WORLD_SIZE=0", kind: fault.Usage, names: "WORLD_SIZE: is 0"},
		{name: "second rank without world", env: "RANK=1", kind: fault.Usage, names: "RANK: is 1, but WORLD_SIZE is not set"},
		{name: "first rank of a machine of two", env: "RANK=0 LOCAL_WORLD_SIZE=2", kind: fault.Usage, names: "RANK: is 0, but WORLD_SIZE is not set"},
		{name: "first rank of mpirun without world", env: "OMPI_COMM_WORLD_RANK=0", kind: fault.Usage, names: "OMPI_COMM_WORLD_SIZE is not set"},
		{name: "processes of Kubeflow in a step of two", env: "PET_NPROC_PER_NODE=4 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0", kind: fault.Usage, names: "but SLURM_STEP_NUM_TASKS says 2"},
		{name: "local rank beyond its machine", env: "RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", kind: fault.Usage, names: "LOCAL_RANK: is 2, but LOCAL_WORLD_SIZE is 2"},
		{name: "the same, alone", env: "LOCAL_RANK=1 LOCAL_WORLD_SIZE=1", kind: fault.Usage, names: "LOCAL_RANK: is 1"},
		{name: "local rank beyond the rank", env: "RANK=0 WORLD_SIZE=1 LOCAL_RANK=3", kind: fault.Usage, names: "LOCAL_RANK: is 3"},
		{name: "local rank is no number", env: "LOCAL_RANK=first", kind: fault.Usage, names: `LOCAL_RANK: "first"`},
		{name: "local world without a world", env: "LOCAL_WORLD_SIZE=4", kind: fault.Usage, names: "LOCAL_WORLD_SIZE: is 4"},
		{name: "local world beyond the world", env: "RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=2", kind: fault.Usage, names: "LOCAL_WORLD_SIZE: is 2"},
		{name: "empty machine", env: "RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=0", kind: fault.Usage, names: "LOCAL_WORLD_SIZE: is 0"},
		{name: "no port", env: "RANK=0 WORLD_SIZE=1 MASTER_PORT=http", kind: fault.Usage, names: `MASTER_PORT: "http"`},
		{name: "a port too high", env: "RANK=0 WORLD_SIZE=1 MASTER_PORT=65536", kind: fault.Usage, names: `MASTER_PORT: "65536"`},
		{name: "four tasks of a world of one each", env: "RANK=0 WORLD_SIZE=1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2", kind: fault.Usage, names: "WORLD_SIZE: says 1 ranks, but SLURM_STEP_NUM_TASKS says 4"},
		{name: "two launchers, two sizes", env: "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4", kind: fault.Usage, names: "WORLD_SIZE: says 2"},
		{name: "two launchers, two ranks", env: "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", kind: fault.Usage, names: "RANK: says rank 0, but OMPI_COMM_WORLD_RANK says 1"},
		{name: "a step without a rank", env: "SLURM_STEP_NUM_TASKS=2", kind: fault.Usage, names: "SLURM_PROCID is not set"},
		{name: "a step with an odd rank", env: "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=2", kind: fault.Usage, names: "SLURM_PROCID: is 2"},
		{name: "PMIx alone", env: "PMIX_RANK=0", kind: fault.Usage, names: "PMIX_RANK"},
		{name: "no number of machines", env: "PET_NNODES=many", kind: fault.Usage, names: "PET_NNODES"},
		{name: "machines from many to few", env: "PET_NNODES=4:1", kind: fault.Usage, names: "PET_NNODES"},
		{name: "no number of processes", env: "PET_NPROC_PER_NODE=most", kind: fault.Usage, names: "PET_NPROC_PER_NODE"},
		{name: "a machine too many", env: "PET_NNODES=2 PET_NODE_RANK=2", kind: fault.Usage, names: "PET_NODE_RANK: is 2"},
		{name: "local rank of mpirun alone", env: "OMPI_COMM_WORLD_LOCAL_RANK=1", kind: fault.Usage, names: "OMPI_COMM_WORLD_LOCAL_RANK"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			getenv := environment(tt.env)
			p, err := Check(getenv)
			if fault.KindOf(err) != tt.kind || err == nil && (p.By != tt.by || p.Rank != 0 || p.World != 1) {
				t.Fatalf("%+v, %v (%v); want kind %v by %q", p, err, fault.KindOf(err), tt.kind, tt.by)
			}
			if err == nil {
				return
			}
			var f *fault.Error
			if !strings.Contains(err.Error(), tt.names) || !errors.As(err, &f) {
				t.Errorf("%q does not say %q", err, tt.names)
			}
			for _, v := range strings.Fields(tt.env) { // the table of what was found
				if name, _, _ := strings.Cut(v, "="); slices.Contains(Names(), name) && !strings.Contains(f.Hint, name) {
					t.Errorf("the hint does not show %s:\n%s", name, f.Hint)
				}
			}
		})
	}
}

func environment(text string) func(string) string {
	m := map[string]string{}
	for _, v := range strings.Split(text, " ") {
		name, value, _ := strings.Cut(v, "=")
		m[name] = value
	}
	return func(name string) string { return m[name] }
}

func TestLocalRank(t *testing.T) {
	for env, want := range map[string]string{
		"":                                       "=",
		"LOCAL_RANK=2":                           "LOCAL_RANK=2",
		"LOCAL_RANK=x":                           "LOCAL_RANK=x", // the option refuses it
		"SLURM_LOCALID=1":                        "=",
		"SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=1": "SLURM_LOCALID=1",
		"OMPI_COMM_WORLD_LOCAL_RANK=3":           "OMPI_COMM_WORLD_LOCAL_RANK=3",
		"LOCAL_RANK=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=1":        "LOCAL_RANK=0",
		"MPI_LOCALRANKID=1 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0":   "MPI_LOCALRANKID=1",
		"MV2_COMM_WORLD_LOCAL_RANK=1 SLURM_PROCID=0 SLURM_LOCALID=0": "MV2_COMM_WORLD_LOCAL_RANK=1",
	} {
		if value, name := LocalRank(environment(env)); name+"="+value != want {
			t.Errorf("%q: %s=%s, want %s", env, name, value, want)
		}
	}
}

// TestWithout: a process that is none of the launcher's ranks finds none of its variables.
func TestWithout(t *testing.T) {
	in := []string{"PATH=/bin", "RANKING=1"}
	for _, name := range Names() {
		in = append(in, name+"=1")
	}
	if got := Without(in); !slices.Equal(got, []string{"PATH=/bin", "RANKING=1"}) {
		t.Errorf("left: %q", got)
	}
}

// TestNotes: what torchrun would have started, and did not, is said.
func TestNotes(t *testing.T) {
	p, err := Check(environment("PET_NNODES=1 PET_NPROC_PER_NODE=8 PET_NODE_RANK=0"))
	if err != nil || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "PET_NPROC_PER_NODE=8") {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := Check(environment("PET_NNODES=1 PET_NPROC_PER_NODE=1 RANK=0 WORLD_SIZE=1")); err != nil || len(p.Notes) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestLone: a number of machines that says of none which it is, and pods that have an address to meet at.
func TestLone(t *testing.T) {
	for env, says := range map[string]string{
		"NNODES=2":                                                 "NNODES=2, and no variable says which of them this process is",
		"NUM_MACHINES=4 NNODES=1":                                  "NUM_MACHINES=4",
		"JOB_COMPLETION_INDEX=1 MASTER_ADDR=h":                     "JOB_COMPLETION_INDEX=1 and MASTER_ADDR=h",
		"VC_TASK_INDEX=0 MASTER_ADDR=h":                            "VC_TASK_INDEX=0 and MASTER_ADDR=h",
		"VC_TASK_INDEX=1":                                          "VC_TASK_INDEX=1: this task of Volcano has others before it",
		"VC_TASK_INDEX=0":                                          "",
		"AZUREML_NODE_COUNT=2":                                     "AZUREML_NODE_COUNT=2",
		"JAX_PROCESS_COUNT=4":                                      "JAX_PROCESS_COUNT=4",
		"OCI__WORKER_COUNT=1":                                      "OCI__WORKER_COUNT=1: as many workers",
		"OCI__WORKER_COUNT=0":                                      "",
		"JOB_COMPLETION_INDEX=0 JAX_COORDINATOR_ADDRESS=h":         "JOB_COMPLETION_INDEX=0 and JAX_COORDINATOR_ADDRESS=h",
		"NNODES=1":                                                 "",
		"RANK=0 WORLD_SIZE=1 NNODES=2":                             "NNODES=2, and WORLD_SIZE says that it is the only one",
		"LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=h":                    "LWS_GROUP_SIZE=2",
		"RANK=0 WORLD_SIZE=1 OCI__WORKER_COUNT=2":                  "OCI__WORKER_COUNT=2",
		"RANK=0 WORLD_SIZE=1 JOB_COMPLETION_INDEX=1 MASTER_ADDR=h": "JOB_COMPLETION_INDEX=1 and MASTER_ADDR=h",
		"SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_NNODES=2":            "SLURM_NTASKS=16: the batch job has 16 of them, and this is one process of its shell; srun starts all",
		"SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=2":                     "SLURM_JOB_NUM_NODES=2",
		"SLURM_NTASKS=1 SLURM_NNODES=1":                            "",
		"SLURM_NTASKS_PER_NODE=8 SLURM_NNODES=1 SLURM_PROCID=0":    "SLURM_NTASKS_PER_NODE=8",
		"TORCHX_REPLICA_IDX=0 TORCHX_RANK0_HOST=x":                 "TORCHX_RANK0_HOST=x: this looks like",
		"NODE_RANK=0 MASTER_ADDR=x":                                "NODE_RANK=0 and MASTER_ADDR=x: this looks like",
		"RANK=0 MASTER_ADDR=x":                                     "RANK=0 and MASTER_ADDR=x: this looks like",
		"PBS_NP=16 PBS_NUM_NODES=2":                                "PBS_NUM_NODES=2",
		"PBS_NP=16 PBS_NUM_NODES=1":                                "",
		"RANK=0 WORLD_SIZE=1 SLURM_NTASKS=2 SLURM_NNODES=2":        "SLURM_NTASKS=2: the batch job has 2 of them",
		"PBS_NODEFILE=testdata/pbs2":                               "PBS_NODEFILE=testdata/pbs2: the batch job has 2 of them",
		"PBS_NODEFILE=testdata/pbs1":                               "",
		"PBS_NODEFILE=testdata/none":                               "",
		"LSB_MCPU_HOSTS=a,4,b,4":                                   "LSB_MCPU_HOSTS",
		"AZ_BATCH_NODE_LIST=a;b":                                   "AZ_BATCH_NODE_LIST",
		"NHOSTS=2 NSLOTS=8":                                        "NHOSTS=2",
		"NNODES=two":                                               "",
		"JOB_COMPLETION_INDEX=1":                                   "",
		"RANK=0 WORLD_SIZE=1 NUM_NODES=1":                          "",
	} {
		contracttest.Cases(t, 1)
		p, err := Check(environment(env))
		if got := strings.Join(p.Notes, "; "); err != nil || (says == "") != (got == "") || !strings.Contains(got, says) {
			t.Errorf("%s: %q, %v; want %q", env, got, err, says)
		}
	}
}

// TestSageMaker: a container without the toolkit has a file that lists the machines of its job.
func TestSageMaker(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		file, env string
		kind      fault.Kind
		names     string
	}{
		{`{"current_host":"algo-1","hosts":["algo-1","algo-2"],"network_interface_name":"eth0"}`,
			"TRAINING_JOB_ARN=arn:x", fault.Unavailable,
			"resourceconfig.json: is a list of 2 machines, algo-1, algo-2: this command runs as a single process, not as one of several ranks"},
		{`{"current_host":"algo-2","hosts":["algo-1","algo-2"]}`, "TRAINING_JOB_NAME=j", fault.Unavailable, "is a list of 2 machines"},
		{`{"current_host":"algo-1","hosts":["algo-1"]}`, "TRAINING_JOB_NAME=j", 0, ""},
		{`{"current_host":"algo-1","hosts":["algo-1","algo-2"]}`, "TRAINING_JOB_NAME=", 0, ""},
		{`{"current_host":"algo-3","hosts":["algo-1","algo-2"]}`, "TRAINING_JOB_NAME=j", fault.Usage, "current_host"},
		{`{"hosts":[]}`, "TRAINING_JOB_NAME=j", fault.Usage, "is no list"},
		{`{`, "TRAINING_JOB_NAME=j", fault.Usage, "is no list"},
		{"", "TRAINING_JOB_NAME=j", 0, ""},
	} {
		contracttest.Cases(t, 1)
		path := filepath.Join(dir, "resourceconfig.json")
		os.Remove(path)
		if tt.file != "" {
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Check(environment(tt.env + " SM_INPUT_CONFIG_DIR=" + dir))
		if (err != nil) != (tt.names != "") || err != nil && (fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.names)) || err == nil && p.World != 1 {
			t.Errorf("%s with %s: %+v, %v", tt.env, tt.file, p, err)
		}
	}
}

// TestFindAlikeByOtherWords: counts that are called otherwise, and tasks of Volcano of kinds that no source reads.
func TestFindAlikeByOtherWords(t *testing.T) {
	for env, want := range map[string]string{
		"VC_TASK_INDEX=0 VC_ACTOR_NUM=1 VC_HEAD_NUM=1":   "VC_TASK_INDEX=0 and VC_HEAD_NUM=1: this looks like task 0 of 2",
		"VK_TASK_INDEX=0 VC_ACTOR_NUM=1 VC_WORKER_NUM=1": "VK_TASK_INDEX=0 and VC_ACTOR_NUM=1: this looks like task 0 of 2",
		"X_RANK=0 X_NRANKS=2":                            "X_RANK=0 and X_NRANKS=2: this looks like task 0 of 2",
		"RP_RANK=1 RP_RANKS=4":                           "RP_RANK=1 and RP_RANKS=4: this looks like task 1 of 4",
		"X_RANK=0 X_NTASKS=3":                            "X_RANK=0 and X_NTASKS=3: this looks like task 0 of 3",
		"VC_TASK_INDEX=0 VC_ACTOR_NUM=1":                 "",
		"VC_TASK_INDEX=0 VC_MASTER_NUM=1":                "",
		"X_RANK=0 X_NPROCS=1":                            "",
	} {
		contracttest.Cases(t, 1)
		got := ""
		for _, a := range FindAlike(strings.Fields(env)) {
			got += a.String()
		}
		if want != "" {
			want += "; " + own
		}
		if got != want {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
	}
}

// TestFindAlike: launchers that no source describes, and what only has such names.
func TestFindAlike(t *testing.T) {
	for env, want := range map[string]string{
		"BATCH_TASK_INDEX=1 BATCH_TASK_COUNT=2":                                        "BATCH_TASK_INDEX=1 and BATCH_TASK_COUNT=2: this looks like task 1 of 2; this run is on its own",
		"CLOUD_RUN_TASK_INDEX=0 CLOUD_RUN_TASK_COUNT=3":                                "CLOUD_RUN_TASK_INDEX=0 and CLOUD_RUN_TASK_COUNT=3: this looks like task 0 of 3; this run is on its own",
		"TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=a,b":                                     "TPU_WORKER_ID=1 and TPU_WORKER_HOSTNAMES=a,b: this looks like task 1 of 2; this run is on its own",
		"X_NODE_RANK=1 X_NUM_NODES=2":                                                  "X_NODE_RANK=1 and X_NUM_NODES=2: this looks like task 1 of 2; this run is on its own",
		"ACME_REPLICA_INDEX=0 ACME_TOTAL_REPLICAS=4 ACME_HOSTS=a":                      "ACME_REPLICA_INDEX=0 and ACME_TOTAL_REPLICAS=4: this looks like task 0 of 4; this run is on its own",
		`ACME_HOST_ID=2 ACME_HOSTS=["a","b"]`:                                          `ACME_HOST_ID=2 and ACME_HOSTS=["a","b"]: this looks like task 2 of 2; this run is on its own`,
		"X_ROLE_INDEX=1 X_WORLD_SIZE=2":                                                "X_ROLE_INDEX=1 and X_WORLD_SIZE=2: this looks like task 1 of 2; this run is on its own",
		"NODE_INDEX=1 NODE_COUNT=2":                                                    "NODE_INDEX=1 and NODE_COUNT=2: this looks like task 1 of 2; this run is on its own",
		"X_WORKER_ID=1 X_NODE_COUNT=9 X_WORKER_COUNT=2":                                "X_WORKER_ID=1 and X_WORKER_COUNT=2: this looks like task 1 of 2; this run is on its own",
		"VC_TASK_INDEX=1 VC_WORKER_NUM=2":                                              "", // refused
		"MPIRANK=1 MPISIZE=2":                                                          "MPIRANK=1 and MPISIZE=2: this looks like task 1 of 2; this run is on its own",
		"X_RANK=0 X_SIZE=2":                                                            "X_RANK=0 and X_SIZE=2: this looks like task 0 of 2; this run is on its own",
		"PROCESS_INDEX=1 PROCESS_COUNT=2":                                              "PROCESS_INDEX=1 and PROCESS_COUNT=2: this looks like task 1 of 2; this run is on its own",
		"NODE_RANK=0 NODE_TOTAL=2":                                                     "NODE_RANK=0 and NODE_TOTAL=2: this looks like task 0 of 2; this run is on its own",
		"RANK=0 MACHINE_COUNT=2":                                                       "RANK=0 and MACHINE_COUNT=2: this looks like task 0 of 2; this run is on its own",
		"NGC_ARRAY_INDEX=1 NGC_ARRAY_SIZE=2":                                           "NGC_ARRAY_INDEX=1 and NGC_ARRAY_SIZE=2: this looks like task 1 of 2; this run is on its own",
		"VC_TASK_INDEX=2 VC_TRAINER_NUM=4":                                             "VC_TASK_INDEX=2 and VC_TRAINER_NUM=4: this looks like task 2 of 4; this run is on its own",
		"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=1 PAI_TASK_ROLE_TASK_COUNT_worker=2": "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=1 and PAI_TASK_ROLE_TASK_COUNT_worker=2: this looks like task 1 of 2; this run is on its own",
		"VC_TASK_INDEX=0 VC_ACTOR_NUM=1":                                               "",
		"X_RANK=0 X_NPROCS=1":                                                          "",
		"PSSH_NODENUM=1 PSSH_NUMNODES=4":                                               "PSSH_NODENUM=1 and PSSH_NUMNODES=4: this looks like task 1 of 4; this run is on its own",
		"RANK=0 NUM_WORKERS=8 INDEX=1 COUNT=3":                                         "",
		"RANK=0 NODE_RANK=0 NNODES=2":                                                  "", // refused
		"GROVE_PCLQ_POD_INDEX=1 GROVE_PCSG_TEMPLATE_NUM_PODS=2":                        "GROVE_PCLQ_POD_INDEX=1 and GROVE_PCSG_TEMPLATE_NUM_PODS=2: this looks like task 1 of 2; this run is on its own",
		"CLOUD_TPU_TASK_ID=0 TPU_PROCESS_ADDRESSES=a:1,b:1":                            "CLOUD_TPU_TASK_ID=0 and TPU_PROCESS_ADDRESSES=a:1,b:1: this looks like task 0 of 2; this run is on its own",
		"X_ARRAY_TASK_ID=1 X_ARRAY_TASK_COUNT=4":                                       "",
		"SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=4 SLURM_JOB_ID=9":                "",
		"X_WORKER_ID=1 X_WORKER_COUNT=1":                                               "",
		"X_WORKER_ID=a1b2 X_WORKER_COUNT=4":                                            "",
		"X_TASK_ID=71823 X_TASK_COUNT=4":                                               "",
		"X_WORKER_ID=1 Y_WORKER_COUNT=4":                                               "",
		"X_WORKER_ID=1 X_CACHE_SIZE=4096":                                              "",
		"TASK_ID=1 NUM_WORKERS=4":                                                      "",
		"RANK=0 WORLD_SIZE=1 ROLE_RANK=0 ROLE_WORLD_SIZE=1 GROUP_RANK=0":               "",
		"OMP_NUM_THREADS=4 NUM_WORKERS=8 HOSTNAME=a JOB_COMPLETION_INDEX=3":            "",
	} {
		contracttest.Cases(t, 1)
		got := ""
		for _, a := range FindAlike(strings.Fields(env)) {
			got += a.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
	}
}

// A description of a cluster may stand behind white space.
func TestClusterBehindSpace(t *testing.T) {
	getenv := func(name string) string {
		return map[string]string{"CLUSTER_SPEC": "\n {\"worker\":[\"h:1\",\"h:2\"]}"}[name]
	}
	if _, err := Check(getenv); err == nil || !strings.Contains(err.Error(), "CLUSTER_SPEC: is ") {
		t.Errorf("%v", err)
	}
}
