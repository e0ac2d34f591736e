package launcher

import (
	"cmp"
	"fmt"
	"net"

	"apr/internal/fault"
)

// A JobSet of Kubernetes makes several copies of an Indexed Job (sigs.k8s.io/jobset, v1alpha2). Its pods find their
// number within their Job in JOB_COMPLETION_INDEX; all else are labels, which the manifest passes on through the
// downward API, and the number of pods of a Job, which no label says:
//
//	JOBSET_NAME              jobset.sigs.k8s.io/jobset-name
//	REPLICATED_JOB_NAME      jobset.sigs.k8s.io/replicatedjob-name
//	REPLICATED_JOB_REPLICAS  jobset.sigs.k8s.io/replicatedjob-replicas; 1 if it is not set
//	JOB_INDEX                jobset.sigs.k8s.io/job-index; 0
//	JOBSET_RESTART_ATTEMPT   jobset.sigs.k8s.io/restart-attempt; 0
//	JOBSET_SUBDOMAIN         spec.network.subdomain; the set's name
//	APR_JOB_PODS             spec.completions
//	APR_JOB_RANKS            ranks of each pod; 1
//
// A headless service of the set names the pods SET-JOB-JOBINDEX-PODINDEX.SUBDOMAIN.
const (
	jobSet         = "a JobSet"
	jobSetName     = "JOBSET_NAME"
	jobSetJob      = "REPLICATED_JOB_NAME"
	jobSetReplicas = "REPLICATED_JOB_REPLICAS"
	jobSetIndex    = "JOB_INDEX"
	jobSetRestarts = "JOBSET_RESTART_ATTEMPT"
	jobSetNetwork  = "JOBSET_SUBDOMAIN"
)

var jobSetVariables = []string{jobSetName, jobSetJob, jobSetReplicas, jobSetIndex, jobSetRestarts, jobSetNetwork}

// JobSetLabel is a variable of a JobSet's pods and the label that it is of.
type JobSetLabel struct{ Variable, Label string }

// JobSetLabels are what a manifest passes on of a pod's labels.
func JobSetLabels() []JobSetLabel {
	const of = "jobset.sigs.k8s.io/"
	return []JobSetLabel{{jobSetName, of + "jobset-name"}, {jobSetJob, of + "replicatedjob-name"},
		{jobSetReplicas, of + "replicatedjob-replicas"}, {jobSetIndex, of + "job-index"},
		{jobSetRestarts, of + "restart-attempt"}}
}

// setNumbers are the numbers of a pod in a JobSet.
type setNumbers struct{ pods, jobs, ranks, job, pod int }

// node is the number of a pod among all of its set: job · pods of each + pod.
func (n setNumbers) node() int { return n.job*n.pods + n.pod }

// numbersOfSet reads the numbers of a pod and refuses those that contradict each other.
func numbersOfSet(getenv func(string) string) (n setNumbers, err error) {
	for _, v := range []struct {
		name  string
		to    *int
		least int // also what it is where it is not set
	}{
		{jobPods, &n.pods, 1}, {jobSetReplicas, &n.jobs, 1}, {jobRanks, &n.ranks, 1}, {jobSetIndex, &n.job, 0},
		{podIndex, &n.pod, 0}, {jobSetRestarts, new(int), 0},
	} {
		if *v.to = v.least; getenv(v.name) == "" {
			continue
		}
		if *v.to, err = number(v.name, getenv(v.name)); err != nil {
			return n, err
		}
		if *v.to < v.least {
			return n, fault.In(fault.Usage, v.name, "is %d: there is one at least", *v.to)
		}
	}
	switch {
	case n.job > 0 && getenv(jobSetReplicas) == "":
		return n, fault.In(fault.Usage, jobSetIndex, "is %d, but %s is not set", n.job, jobSetReplicas)
	case n.job >= n.jobs:
		return n, fault.In(fault.Usage, jobSetIndex, "is %d, but %s is %d: Jobs go from 0 to %d", n.job, jobSetReplicas,
			n.jobs, n.jobs-1)
	case n.pod >= n.pods:
		return n, fault.In(fault.Usage, podIndex, "is %d, but %s is %d: pods go from 0 to %d", n.pod, jobPods, n.pods,
			n.pods-1)
	}
	return n, nil
}

// readJobSet reads the place of a pod. Without the number of pods it says nothing: a launcher of another kind may.
//
//	world = Jobs · pods of each · ranks of each pod
func (s source) readJobSet(getenv func(string) string) (*said, error) {
	if getenv(jobPods) == "" {
		return nil, nil
	}
	n, err := numbersOfSet(getenv)
	if err != nil {
		return nil, err
	}
	nodes, name := n.jobs*n.pods, jobPods
	if n.pods == 1 && n.jobs > 1 {
		name = jobSetReplicas
	}
	all := s.says(podIndex, name, n.node()*n.ranks, nodes*n.ranks)
	all.unranked = true
	if nodes == 1 {
		all.asks = n.ranks
		all.worldName = jobRanks
	}
	return all, s.checkPort(getenv)
}

// jobSet is the meeting of a JobSet's pods: at the first pod of the first Job, as the set's headless service names it,
// or at APR_JOB_MASTER. A restart of the set is a generation.
func (m *Meeting) jobSet(getenv func(string) string) (bool, error) {
	n, err := numbersOfSet(getenv)
	if err != nil {
		return false, m.refuse(err)
	}
	m.Nodes, m.PerNode = n.jobs*n.pods, n.ranks
	if m.Nodes == 1 {
		m.Notes = nil
		if n.ranks == 1 {
			m.Nodes, m.PerNode = 0, 0
			return false, nil
		}
		return true, nil
	}
	if getenv(podIndex) == "" {
		return false, m.refuse(fault.In(fault.Usage, podIndex, "is not set: the set has %d pods, and nothing says which "+
			"one this is", m.Nodes))
	}
	host, set := getenv(jobMaster), getenv(jobSetName)
	if host == "" {
		if getenv(jobSetJob) == "" {
			return false, m.refuse(fault.In(fault.Usage, jobSetJob, "is not set: the first pod is named after it"))
		}
		host = fmt.Sprintf("%s-%s-0-0.%s", set, getenv(jobSetJob), cmp.Or(getenv(jobSetNetwork), set))
	}
	m.Node, m.Job = n.node(), "jobset "+set
	m.Addr = net.JoinHostPort(host, cmp.Or(getenv(jobPort), defaultPort))
	return true, m.restarts(getenv, jobSetRestarts)
}
