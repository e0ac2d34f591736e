package launcher

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
)

// Meeting is where the ranks that a launcher has started meet.
type Meeting struct {
	Place
	Addr       string // HOST:PORT of rank 0
	Job        string // what tells this job from others; every rank knows it, and it is no secret
	Generation int    // how often the launcher has started the job again
}

// Meet is Check for a command that can be one of several ranks. Of those that torchrun, a Slurm step and Open MPI have
// started it returns where they meet; other launchers' are refused as Check does. A launcher that says how many ranks
// there are and not where they meet is a fault of kind Usage.
//
// Under torchrun rank 0 listens at MASTER_ADDR:MASTER_PORT, or at the next port where the agent of torchrun is at this
// one already (TORCHELASTIC_USE_AGENT_STORE). In a Slurm step it listens on the first host of SLURM_STEP_NODELIST, at
// the first of SLURM_STEP_RESV_PORTS, or a port that follows from job and step. Open MPI says no address: all ranks
// are on one machine, or MASTER_ADDR is set.
func Meet(getenv func(string) string) (m Meeting, err error) {
	m.Place, _, err = stand(getenv)
	if err != nil {
		return m, err
	}
	if m.World < 2 {
		m.Place, err = Check(getenv)
		return m, err
	}
	switch m.By {
	case "torchrun":
		err = m.torchrun(getenv)
	case "a Slurm step":
		err = m.slurm(getenv)
	case "Open MPI":
		err = m.openMPI(getenv)
	default:
		m.Place, err = Check(getenv)
	}
	return m, err
}

// missing is the fault of a launcher that does not say enough.
func (m *Meeting) missing(name string) error {
	return m.refuse(fault.In(fault.Usage, name, "is not set: %s says that there are %d ranks, and not where they meet",
		m.By, m.World))
}

// torchrun is the meeting that MASTER_ADDR and MASTER_PORT say.
func (m *Meeting) torchrun(getenv func(string) string) error {
	host, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT")
	switch {
	case host == "":
		return m.missing("MASTER_ADDR")
	case port == "":
		return m.missing("MASTER_PORT")
	}
	n, err := number("MASTER_PORT", port)
	if err != nil {
		return m.refuse(err)
	}
	if strings.EqualFold(getenv("TORCHELASTIC_USE_AGENT_STORE"), "true") {
		n++ // the agent listens at the port itself
	}
	m.Addr, m.Job = net.JoinHostPort(host, strconv.Itoa(n)), "torchrun "+getenv("TORCHELASTIC_RUN_ID")
	return m.restarts(getenv, "TORCHELASTIC_RESTART_COUNT")
}

// restarts reads a generation.
func (m *Meeting) restarts(getenv func(string) string, name string) error {
	v := getenv(name)
	if v == "" {
		return nil
	}
	n, err := number(name, v)
	if err != nil {
		return m.refuse(err)
	}
	m.Generation = n
	return nil
}

// slurm is the meeting of a step's tasks.
func (m *Meeting) slurm(getenv func(string) string) error {
	list := cmp.Or(getenv("SLURM_STEP_NODELIST"), getenv("SLURM_NODELIST"))
	if list == "" {
		return m.missing("SLURM_STEP_NODELIST")
	}
	hosts, err := Hosts(list)
	if err != nil {
		return m.refuse(fault.In(fault.Usage, "SLURM_STEP_NODELIST", "%v", err))
	}
	m.Job = "slurm " + getenv("SLURM_JOB_ID") + "." + getenv("SLURM_STEP_ID")
	port, _, _ := strings.Cut(getenv("SLURM_STEP_RESV_PORTS"), "-")
	if port == "" {
		port = portOf(m.Job)
	}
	m.Addr = net.JoinHostPort(hosts[0], port)
	return m.restarts(getenv, "SLURM_RESTART_COUNT")
}

// openMPI is the meeting of ranks on one machine, or at MASTER_ADDR.
func (m *Meeting) openMPI(getenv func(string) string) error {
	m.Job = "openmpi " + cmp.Or(getenv("PMIX_NAMESPACE"), getenv("OMPI_MCA_ess_base_jobid"),
		getenv("OMPI_MCA_orte_ess_jobid"))
	host := getenv("MASTER_ADDR")
	if host == "" && getenv("OMPI_COMM_WORLD_LOCAL_SIZE") == getenv("OMPI_COMM_WORLD_SIZE") {
		host = "127.0.0.1"
	}
	if host == "" {
		return m.missing("MASTER_ADDR")
	}
	m.Addr = net.JoinHostPort(host, cmp.Or(getenv("MASTER_PORT"), portOf(m.Job)))
	return nil
}

// portOf returns a port that follows from a job, so that all its ranks know it: 20000 to 29999.
func portOf(job string) string {
	h := fnv.New32a()
	h.Write([]byte(job))
	return strconv.Itoa(20000 + int(h.Sum32()%10000))
}

// maxHosts bounds what a list of hosts may stand for.
const maxHosts = 1 << 16

// Hosts expands Slurm's way to write a list of hosts: g[10,20-23],h1 is g10 g20 g21 g22 g23 h1. Numbers keep their
// leading zeros. A name has one pair of brackets at most.
func Hosts(list string) (all []string, err error) {
	bad := func() ([]string, error) { return nil, fmt.Errorf("%q is no list of hosts such as g[10,20-23]", list) }
	for _, name := range outside(list) {
		prefix, rest, ok := strings.Cut(name, "[")
		if !ok {
			if name == "" || strings.Contains(name, "]") {
				return bad()
			}
			all = append(all, name)
			continue
		}
		ranges, suffix, ok := strings.Cut(rest, "]")
		if !ok || strings.ContainsAny(suffix, "[]") {
			return bad()
		}
		for _, r := range strings.Split(ranges, ",") {
			first, last, ok := strings.Cut(r, "-")
			if !ok {
				last = first
			}
			lo, err1 := strconv.ParseUint(first, 10, 31)
			hi, err2 := strconv.ParseUint(last, 10, 31)
			if err1 != nil || err2 != nil || hi < lo || hi-lo >= maxHosts || len(all) > maxHosts {
				return bad()
			}
			for n := lo; n <= hi; n++ {
				all = append(all, fmt.Sprintf("%s%0*d%s", prefix, len(first), n, suffix))
			}
		}
	}
	return all, nil
}

// outside splits a list at the commas outside brackets.
func outside(list string) []string {
	depth := 0
	marked := strings.Map(func(r rune) rune {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				return '\n'
			}
		}
		return r
	}, list)
	return slices.Collect(strings.SplitSeq(marked, "\n"))
}
