package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// TestRanksDoNotTrainAlone calls every command whose copies would write the same files as one of several ranks, and as
// one that its launcher contradicts: it refuses, and writes nothing. A process of its own goes on, and what only plans.
func TestRanksDoNotTrainAlone(t *testing.T) {
	dir := t.TempDir()
	output := filepath.Join(dir, "out")
	model, err := filepath.Abs("../../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	job := `{"current_host":"algo-1","hosts":["algo-1","algo-2"]}`
	if err := os.WriteFile(filepath.Join(dir, "resourceconfig.json"), []byte(job), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "d.txt")
	if err := os.WriteFile(data, []byte(strings.Repeat("package main\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	run1 := func(command []string, environ ...string) (int, string) {
		var errw strings.Builder
		return run(command, strings.NewReader(""), io.Discard, &errw, append(environ, "CUDA_VISIBLE_DEVICES=-1", "APR_RUNS_DIR="+output)), errw.String()
	}
	training := []string{model, "--student", model, "--allow-same-model", "-d", data, "-o", output, "--seq-len", "16", "--steps", "1"}
	plan := append([]string{"plan", "--no-probe"}, training...)
	// Those that start processes come last: none of them may be reached by a program that does not look.
	for _, command := range [][]string{
		plan, append([]string{"distill", "--plan"}, training...), append([]string{"dispatch", "--dry-run", "--min-disk", "1MB"}, training...),
		{"tokenize", "encode-corpus", "--corpus", data, "--tokenizer", model, "--output", output},
		{"tokenize", "import-hf", "--input", model, "--output", output},
		{"distill", model, "--stage", "generate", "-d", data, "-o", output},
		{"distill", model, "--stage", "precompute", "-d", data, "-o", output},
		{"prune", model, "--layers", "0-0", "-o", output}, {"convert", model, "-o", output},
		{"export", model, "--format", "hf", "-o", output}, {"quantize", model, "-s", "q8_0", "-o", output + ".apr"},
		{"import", model, "-o", output + ".apr"},
		append([]string{"distill"}, training...), append([]string{"distill", "--supervise"}, training...),
		append([]string{"dispatch", "--min-disk", "1MB"}, training...),
	} {
		name := strings.Join(command[:min(4, len(command))], " ")
		for _, tt := range []struct {
			environ []string
			code    int
			names   string
		}{
			{[]string{"RANK=0", "WORLD_SIZE=4"}, 9, "WORLD_SIZE: is 4"},
			{[]string{"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=4"}, 9, "WORLD_SIZE: is 4"},
			{[]string{"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1", "SLURM_LOCALID=1"}, 9, "SLURM_STEP_NUM_TASKS: is 2"},
			{[]string{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}, 9, "OMPI_COMM_WORLD_SIZE: is 2"},
			{[]string{"SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_STEP_ID=0", "SLURM_LOCALID=1"}, 9, "SLURM_PROCID: is 1"},
			{[]string{"HOROVOD_RANK=1", "HOROVOD_SIZE=2"}, 9, "HOROVOD_SIZE: is 2"},
			{[]string{`TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"evaluator","index":0}}`}, 9, "TF_CONFIG: is "},
			{[]string{"SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=2"}, 9, "SKYPILOT_NUM_NODES: is 2"},
			{[]string{`SM_HOSTS=["algo-1","algo-2"]`, "SM_CURRENT_HOST=algo-1"}, 9, "SM_HOSTS: is "},
			{[]string{"TRAINING_JOB_ARN=arn:x", "SM_INPUT_CONFIG_DIR=" + dir}, 9, "resourceconfig.json: is a list of 2 machines"},
			{[]string{"JOB_COMPLETION_INDEX=1", "APR_JOB_MASTER=pod0", "APR_JOB_RANKS=2", "APR_JOB_PORT=29500"}, 2,
				"APR_JOB_PODS: is not set"},
			{[]string{"PBS_NODENUM=1"}, 9, "PBS_NODENUM: is 1"},
			{[]string{"NOMAD_ALLOC_INDEX=1"}, 9, "NOMAD_ALLOC_INDEX: is 1"},
			{[]string{"DMLC_ROLE=server", "DMLC_NUM_WORKER=1"}, 9, "DMLC_ROLE: is server"},
			{[]string{"VC_TASK_INDEX=1", "VC_WORKER_NUM=2", "VC_WORKER_HOSTS=a,b"}, 9, "VC_WORKER_NUM: is 2"},
			{[]string{"LEPTON_JOB_WORKER_INDEX=1", "LEPTON_JOB_TOTAL_WORKERS=2"}, 9, "LEPTON_JOB_TOTAL_WORKERS: is 2"},
			{[]string{"JOB_INDEX=1", "PROCESSES_IN_JOB=1", "JOB_COMPLETION_INDEX=0"}, 9, "JOB_INDEX: is 1"}, // xpk
			{[]string{"MLX_RANK=1", "MLX_WORLD_SIZE=2"}, 9, "MLX_WORLD_SIZE: is 2"},
			{[]string{"VC_TASK_INDEX=0", "VC_MASTER_NUM=1", "VC_WORKER_NUM=1"}, 9, "VC_MASTER_NUM: is 1 and VC_WORKER_NUM=1"},
			{[]string{"MF_PARALLEL_NODE_INDEX=1", "MF_PARALLEL_NUM_NODES=2"}, 9, "MF_PARALLEL_NUM_NODES: is 2"},
			{[]string{"RANK=9", "WORLD_SIZE=4"}, 2, "RANK: is 9"},
			{[]string{"WORLD_SIZE=banana"}, 2, `WORLD_SIZE: "banana"`},
			{[]string{"RANK=0", "WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1"}, 2, "SLURM_STEP_NUM_TASKS says 2"},
		} {
			contracttest.Cases(t, 1)
			code, stderr := run1(command, tt.environ...)
			if code != tt.code || !strings.Contains(stderr, tt.names) {
				t.Fatalf("%s with %v: exit %d, want %d and %q:\n%s", name, tt.environ, code, tt.code, tt.names, stderr)
			}
			if wrote, _ := filepath.Glob(output + "*"); wrote != nil {
				t.Fatalf("%s with %v wrote %v", name, tt.environ, wrote)
			}
		}
	}
	for i, environ := range [][]string{
		{"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0"}, {"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0"}, {"JOB_COMPLETION_INDEX=3"}, {},
		{"PET_NNODES=1", "PET_NPROC_PER_NODE=8", "PET_NODE_RANK=0"}, {"NODE_RANK=0", "WORLD_SIZE=1"}, {"RANK=0"},
		{"PBS_NODENUM=0"}, {"SKYPILOT_NODE_RANK=0", "SKYPILOT_NUM_NODES=1"}, {`TF_CONFIG={"cluster":{"worker":["h:1"]},"task":{"type":"worker","index":"0"}}`},
	} {
		contracttest.Cases(t, 1)
		encode := []string{"tokenize", "encode-corpus", "--corpus", data, "--tokenizer", model,
			"-o", filepath.Join(dir, strconv.Itoa(i))}
		if code, stderr := run1(encode, environ...); code != 0 {
			t.Errorf("a process of its own with %v: exit %d\n%s", environ, code, stderr)
		}
	}
	for _, command := range []string{"convert", "export"} { // what only plans writes nothing
		contracttest.Cases(t, 1)
		planned := []string{command, model, "--plan", "-o", output + ".gguf"}
		if code, stderr := run1(planned, "RANK=1", "WORLD_SIZE=2"); code != 0 {
			t.Errorf("%s --plan: exit %d\n%s", command, code, stderr)
		}
	}
	if code, stderr := run1(plan, "NNODES=2"); code != 0 || !strings.Contains(stderr, "NNODES=2, and no variable says which of them this process is") {
		t.Errorf("nodes without a number: exit %d\n%s", code, stderr)
	}
	// Flags that say how many ranks there are do not silence a launcher that says otherwise.
	for _, flags := range [][]string{
		{"--world-size", "2", "--backend", "cpu"}, {"--world-size", "1"}, {"--rank", "0", "--world-size", "1"},
	} {
		for _, environ := range [][]string{
			{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29512"},
			{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"},
		} {
			contracttest.Cases(t, 1)
			code, said := run1(append(append([]string{"distill"}, training...), flags...), environ...)
			if code != 9 || !strings.Contains(said, ": is 2") {
				t.Errorf("distill %v, %v: exit %d: %s", flags, environ, code, said)
			}
		}
	}
	if _, err := os.Stat(output); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}
