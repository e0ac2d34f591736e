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

	// Of a launcher that starts this command once on each machine, which starts the machine's ranks itself: the number
	// of machines, this one's, and the ranks of each; PerNode 0: one for each GPU. Rank and World are then not set.
	// Addr is empty for one machine. Nodes 0: the launcher has started every rank.
	Nodes, Node, PerNode int
}

// Launchers that start the command once on each machine.
const (
	petVariables = "torchrun's PET variables"
	indexedJob   = "an Indexed Job"
)

// Variables that the manifest of an Indexed Job sets: Kubernetes gives a pod its number and not how many there are.
const (
	jobPods   = "APR_JOB_PODS"
	jobRanks  = "APR_JOB_RANKS"
	jobMaster = "APR_JOB_MASTER"
	jobPort   = "APR_JOB_PORT"
)

// JobVariables are the variables of an Indexed Job's pods as NAME=VALUE: how many pods there are, the ranks of each,
// and the host name and port of pod 0. Without a master they are a JobSet's, whose pods know it by JobSetLabels.
func JobVariables(pods, ranks int, master string, port int) []string {
	all := []string{fmt.Sprintf("%s=%d", jobPods, pods), fmt.Sprintf("%s=%d", jobRanks, ranks)}
	if master != "" {
		all = append(all, jobMaster+"="+master)
	}
	return append(all, fmt.Sprintf("%s=%d", jobPort, port))
}

// Meet is Check for a command that can be one of several ranks. Of those that torchrun, a Slurm step and Open MPI have
// started it returns where they meet; other launchers' are refused as Check does. A launcher that says how many ranks
// there are and not where they meet is a fault of kind Usage.
//
// Under torchrun rank 0 listens at MASTER_ADDR:MASTER_PORT, or at the next port where the agent of torchrun is at this
// one already (TORCHELASTIC_USE_AGENT_STORE). In a Slurm step it listens on the first host of SLURM_STEP_NODELIST, at
// the first of SLURM_STEP_RESV_PORTS, or a port that follows from job and step. Open MPI says no address: all ranks
// are on one machine, or MASTER_ADDR is set. PET variables and those of an Indexed Job's or a JobSet's manifest number
// machines; no agent is there, so that rank 0 listens at the port itself.
func Meet(getenv func(string) string) (m Meeting, err error) {
	m.Place, _, err = stand(getenv)
	if err != nil {
		return m, err
	}
	if done, err := m.machines(getenv); done || err != nil {
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

// countless refuses a manifest that says where pods meet, or which one this is, and not how many there are.
func (p *Place) countless(getenv func(string) string) error {
	switch {
	case p.By != "" || getenv(jobPods) != "":
		return nil
	case getenv(jobSetName) != "" && getenv(podIndex) != "":
		p.By = jobSet
		return p.refuse(fault.In(fault.Usage, jobPods, "is not set: a JobSet gives its pods numbers, and not how many "+
			"there are"))
	case getenv(jobMaster) == "":
		return nil
	}
	p.By = indexedJob
	return p.refuse(fault.In(fault.Usage, jobPods, "is not set: a Job gives its pods a number, and not how "+
		"many there are"))
}

// machines is the meeting of a launcher that starts the command once on each machine, if one has: not where an inner
// launcher has started the ranks already, nor where there is one machine with one rank.
func (m *Meeting) machines(getenv func(string) string) (bool, error) {
	if err := m.countless(getenv); err != nil {
		return false, err
	}
	if m.By == jobSet {
		return m.jobSet(getenv)
	}
	i := slices.IndexFunc(sources, func(s source) bool { return s.by == m.By && s.nodes != "" })
	if i < 0 || m.By != petVariables && m.By != indexedJob {
		return false, nil
	}
	s := sources[i]
	nodes, each := getenv(s.nodes), getenv(s.perNode)
	if nodes == "" || strings.Contains(nodes, ":") {
		return false, nil // an instruction to a torchrun that is not there, or an elastic one
	}
	m.Nodes, _ = number(s.nodes, nodes) // read before
	switch each {
	case "":
		m.PerNode = 1
	case "auto", "gpu":
	case "cpu", "xpu":
		return false, m.refuse(fault.In(fault.Unavailable, s.perNode, "not built: %s; give a number, or gpu", each))
	default:
		m.PerNode, _ = number(s.perNode, each)
	}
	if m.Nodes == 1 && m.PerNode == 1 {
		m.Nodes, m.PerNode = 0, 0
		return false, nil
	}
	if m.Nodes == 1 {
		m.Notes = nil // that these processes were not started
		return true, nil
	}
	for _, name := range []string{s.nodeRank, s.master} {
		if getenv(name) == "" {
			return false, m.refuse(fault.In(fault.Usage, name, "is not set: %s says that there are %d machines, and not %s",
				s.nodes, m.Nodes, map[string]string{s.nodeRank: "which one this is", s.master: "where they meet"}[name]))
		}
	}
	m.Node, _ = number(s.nodeRank, getenv(s.nodeRank))
	m.Job = m.By + " " + getenv(s.master)
	m.Addr = net.JoinHostPort(getenv(s.master), cmp.Or(getenv(s.port), defaultPort))
	return true, nil
}

// defaultPort is torchrun's.
const defaultPort = "29500"

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
