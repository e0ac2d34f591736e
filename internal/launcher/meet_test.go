package launcher

import (
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// wordsOf is a getenv of NAME=VALUE words.
func wordsOf(words ...string) func(string) string {
	return func(name string) string {
		for _, w := range words {
			if n, v, _ := strings.Cut(w, "="); n == name {
				return v
			}
		}
		return ""
	}
}

// Where ranks meet, by what their launcher says.
func TestMeet(t *testing.T) {
	torchrun := []string{"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h",
		"MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=j"}
	slurm := []string{"SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=8", "SLURM_STEP_NODELIST=g[10,20-23],x",
		"SLURM_JOB_ID=7", "SLURM_STEP_ID=0"}
	mpi := []string{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
		"OMPI_COMM_WORLD_LOCAL_RANK=1", "PMIX_NAMESPACE=n"}
	// The first counts.
	with := func(words []string, more ...string) []string { return append(slices.Clone(more), words...) }
	for _, tt := range []struct {
		name    string
		environ []string
		rank    int
		addr    string
		kind    fault.Kind // 0: no error
		says    string
	}{
		{"torchrun", torchrun, 1, "h:29500", 0, ""},
		{"torchrun, its agent has the port", with(torchrun, "TORCHELASTIC_USE_AGENT_STORE=True"), 1, "h:29501", 0, ""},
		{"torchrun, its agent has none", with(torchrun, "TORCHELASTIC_USE_AGENT_STORE=False"), 1, "h:29500", 0, ""},
		{"torchrun by IPv6", with(torchrun, "MASTER_ADDR=::1"), 1, "[::1]:29500", 0, ""},
		{"torchrun without an address", with(torchrun, "MASTER_ADDR="), 0, "", fault.Usage, "MASTER_ADDR: is not set"},
		{"torchrun without a port", with(torchrun, "MASTER_PORT="), 0, "", fault.Usage, "MASTER_PORT: is not set"},
		{"torchrun without a rank", with(torchrun, "RANK="), 0, "", fault.Usage, "RANK is not set"},
		{"a step of Slurm", with(slurm, "SLURM_STEP_RESV_PORTS=12001-12004"), 3, "g10:12001", 0, ""},
		{"a step of Slurm without reserved ports", slurm, 3, "g10:" + portOf("slurm 7.0"), 0, ""},
		{"a batch shell of Slurm", []string{"SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_NODELIST=g[1-2]"}, 0, "", 0, ""},
		{"a step without hosts", with(slurm, "SLURM_STEP_NODELIST="), 0, "", fault.Usage, "SLURM_STEP_NODELIST: is not set"},
		{"a step with hosts that are none", with(slurm, "SLURM_STEP_NODELIST=g[1-"), 0, "", fault.Usage, "no list of hosts"},
		{"Open MPI on one machine", mpi, 1, "127.0.0.1:" + portOf("openmpi n"), 0, ""},
		{"Open MPI on two", with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0"), 0, "", fault.Usage,
			"MASTER_ADDR: is not set"},
		{"Open MPI on two, with an address", with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
			"MASTER_ADDR=h", "MASTER_PORT=9"), 1, "h:9", 0, ""},
		{"contradicting", with(torchrun, "SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID=0"), 0, "", fault.Usage, "WORLD_SIZE"},
		{"another launcher", []string{"HOROVOD_RANK=1", "HOROVOD_SIZE=2"}, 0, "", fault.Unavailable, "HOROVOD_SIZE"},
		{"nobody", nil, 0, "", 0, ""},
	} {
		contracttest.Cases(t, 1)
		m, err := Meet(wordsOf(tt.environ...))
		if tt.kind == 0 && err != nil || tt.kind != 0 && (fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(),
			tt.says)) {
			t.Errorf("%s: %v, want kind %v and %q", tt.name, err, tt.kind, tt.says)
		}
		if err == nil && (m.Addr != tt.addr || m.Rank != tt.rank) {
			t.Errorf("%s: rank %d at %q, want %d at %q", tt.name, m.Rank, m.Addr, tt.rank, tt.addr)
		}
	}
	m, err := Meet(wordsOf(with(torchrun, "TORCHELASTIC_RESTART_COUNT=3")...))
	if err != nil || m.Generation != 3 || m.Job != "torchrun j" || m.World != 4 {
		t.Errorf("%+v, %v: want generation 3 of job j", m, err)
	}
}

func TestHosts(t *testing.T) {
	for list, want := range map[string]string{
		"g[10,20-23]": "g10 g20 g21 g22 g23", "a,b": "a b", "n[008-011]-ib": "n008-ib n009-ib n010-ib n011-ib", "x1": "x1",
		"a[1,3],b[2-3],c": "a1 a3 b2 b3 c", "": "", "a[": "", "a]": "", "a[1-": "", "a[2-1]": "", "a[1][2]": "", "a[x]": "",
		"a[0-4294967295]": "", "a,,b": "",
	} {
		contracttest.Cases(t, 1)
		got, err := Hosts(list)
		if (err != nil) != (want == "") || err == nil && strings.Join(got, " ") != want {
			t.Errorf("%q: %v, %v; want %q", list, got, err, want)
		}
	}
}
