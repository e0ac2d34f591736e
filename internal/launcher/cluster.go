package launcher

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// beside are kinds of tasks of a cluster that are not ranks.
var beside = []string{"evaluator", "tensorboard", "notebook"}

// task is which of a cluster's processes this one is. Its index may be a number or a text of one.
type task struct {
	Type  string          `json:"type"`
	Index json.RawMessage `json:"index"`
}

// readCluster reads a description of all processes in JSON: lists of addresses by the kind of task, and which of them this process
// is, as TF_CONFIG and Vertex AI's CLUSTER_SPEC have it; or the lists alone, as TonY's CLUSTER_SPEC. An evaluator is beside the
// cluster, whether that lists it or not, and is started with the same command: it is one of several.
func (s source) readCluster(getenv func(string) string) (*said, error) {
	text := strings.TrimSpace(getenv(s.cluster))
	if text == "" || s.pair && !strings.HasPrefix(text, "{") {
		return nil, nil
	}
	var config struct {
		Cluster map[string]any `json:"cluster"` // lists, or maps of a part of them by number
		Task    task           `json:"task"`
	}
	err := json.Unmarshal([]byte(text), &config)
	if err == nil && config.Cluster == nil {
		var lists map[string]any
		if err = json.Unmarshal([]byte(text), &lists); err == nil && lists["task"] == nil && lists["cluster"] == nil && lists["environment"] == nil {
			config.Cluster = lists
		}
	}
	if err != nil {
		return nil, fault.In(fault.Usage, s.cluster, "is no description of a cluster in JSON").Because(err)
	}
	world, counts := 0, map[string]int{}
	for kind, all := range config.Cluster {
		switch all := all.(type) {
		case []any:
			counts[kind] = len(all)
		case map[string]any:
			counts[kind] = len(all)
		default:
			return nil, fault.In(fault.Usage, s.cluster, "the %q of its cluster are no list", kind)
		}
		if !slices.Contains(beside, kind) {
			world += counts[kind]
		}
	}
	if err := s.checkTask(config.Task, counts); err != nil {
		return nil, err
	}
	if slices.Contains(beside, config.Task.Type) {
		world = max(world+1, 2)
	}
	if world == 0 {
		return nil, nil
	}
	return &said{by: s.by, rankName: s.cluster, worldName: s.cluster, world: world, least: world, unranked: true}, nil
}

// checkTask refuses a task that its cluster does not have. A task without a cluster is the first of its own.
func (s source) checkTask(t task, counts map[string]int) error {
	index := 0
	if text := strings.Trim(string(t.Index), `"`); text != "" && text != "null" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return fault.In(fault.Usage, s.cluster, "its task has the index %s, which is not a whole number from 0 up", t.Index)
		}
		index = int(n)
	}
	n, listed := counts[t.Type]
	switch {
	case t.Type == "" || !listed && slices.Contains(beside, t.Type):
		return nil
	case !listed && len(counts) > 0:
		return fault.In(fault.Usage, s.cluster, "its task is of kind %q, of which its cluster has none", t.Type)
	case index >= max(n, 1):
		return fault.In(fault.Usage, s.cluster, "its task is number %d of %d of kind %q", index, max(n, 1), t.Type)
	}
	return nil
}

// readHosts reads a list of machines in JSON, each of which starts the command, and the name of this one.
func (s source) readHosts(getenv func(string) string) (*said, error) {
	text := getenv(s.hosts)
	if text == "" {
		return nil, nil
	}
	var hosts []string
	if err := json.Unmarshal([]byte(text), &hosts); err != nil || len(hosts) == 0 {
		return nil, fault.In(fault.Usage, s.hosts, "%q is no list of machines in JSON", text)
	}
	rank := 0
	if me := getenv(s.host); me != "" {
		if rank = slices.Index(hosts, me); rank < 0 {
			return nil, fault.In(fault.Usage, s.host, "is %s, which is none of %s %s", me, s.hosts, text)
		}
	}
	return &said{by: s.by, rankName: s.host, worldName: s.hosts, rank: rank, world: len(hosts), least: len(hosts), unranked: true}, nil
}

// resources is where SageMaker describes a job's machines, and configDir the variable by which its toolkit names the
// folder.
const (
	configDir = "SM_INPUT_CONFIG_DIR"
	inputDir  = "/opt/ml/input/config"
	resources = "resourceconfig.json"
)

// readResources reads the list of machines that SageMaker puts into every container of a training job, also into one
// without its toolkit. Elsewhere there is no such file, whatever variables are set.
func (s source) readResources(getenv func(string) string) (*said, error) {
	set := slices.IndexFunc(s.jobs, func(name string) bool { return getenv(name) != "" })
	if set < 0 {
		return nil, nil
	}
	path := filepath.Join(cmp.Or(getenv(configDir), inputDir), resources)
	text, err := readfile.String(path, 1<<20)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil
	}
	var r struct {
		Current string   `json:"current_host"`
		Hosts   []string `json:"hosts"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &r)
	}
	if err != nil || len(r.Hosts) == 0 {
		return nil, fault.In(fault.Usage, path, "is no list of the job's machines, though %s is set", s.jobs[set]).Because(err)
	}
	rank := slices.Index(r.Hosts, r.Current)
	if rank < 0 {
		return nil, fault.In(fault.Usage, path, "its current_host %q is none of its hosts %q", r.Current, r.Hosts)
	}
	listed := fmt.Sprintf("a list of %d machines, %s", len(r.Hosts), strings.Join(r.Hosts, ", "))
	return &said{by: s.by, rankName: path, worldName: path, listed: listed, rank: rank, world: len(r.Hosts), least: len(r.Hosts), unranked: true}, nil
}

// readRole reads what a process is, where not all of a job's train. One that does not is started with the same command.
func (s source) readRole(getenv func(string) string) (*said, error) {
	role := getenv(s.role)
	if role == "" {
		return nil, nil
	}
	if role != s.trains {
		return &said{by: s.by, rankName: s.role, worldName: s.role, world: 2, least: 2, unranked: true}, nil
	}
	text := getenv(s.world)
	if text == "" {
		return nil, fault.In(fault.Usage, s.role, "is %s, but %s is not set", role, s.world)
	}
	world, err := number(s.world, text)
	if err == nil && world < 1 {
		err = fault.In(fault.Usage, s.world, "is %d: a world has at least one rank", world)
	}
	return &said{by: s.by, rankName: s.role, worldName: s.world, world: world, least: world, unranked: true}, err
}

// readNodes reads a number of machines and of processes on each. They are instructions to torchrun, which is not there if this
// process finds nothing else; each machine then starts this command once, whatever a word such as auto, or a number, would have made of it.
func (s source) readNodes(getenv func(string) string) (*said, error) {
	nodes, perNode := getenv(s.nodes), getenv(s.perNode)
	if nodes == "" && perNode == "" && getenv(s.nodeRank) == "" {
		return nil, nil
	}
	least, most := 1, 1
	if nodes != "" {
		for i, part := range strings.SplitN(nodes, ":", 2) { // MIN:MAX of an elastic job
			n, err := number(s.nodes, part)
			if err != nil || n < 1 {
				return nil, fault.In(fault.Usage, s.nodes, "%q is neither a number of machines nor MIN:MAX", nodes)
			}
			if most = n; i == 0 {
				least = n
			}
		}
		if least > most {
			return nil, fault.In(fault.Usage, s.nodes, "%q: more machines at least than at most", nodes)
		}
	}
	each, name := 1, s.nodes
	if !slices.Contains([]string{"", "auto", "cpu", "gpu", "xpu"}, perNode) {
		n, err := number(s.perNode, perNode)
		if err != nil || n < 1 {
			return nil, fault.In(fault.Usage, s.perNode, "%q is neither a number of processes nor auto, cpu, gpu or xpu", perNode)
		}
		if each = n; most == 1 {
			name = s.perNode
		}
	}
	rank := 0
	if v := getenv(s.nodeRank); v != "" {
		n, err := number(s.nodeRank, v)
		if err != nil {
			return nil, err
		}
		if n >= most {
			return nil, fault.In(fault.Usage, s.nodeRank, "is %d of %d machines", n, most)
		}
		rank = n * each
	}
	if getenv(name) == "" {
		name = s.nodeRank
	}
	asks := 0
	if most == 1 {
		asks = each
	}
	return &said{by: s.by, rankName: s.nodeRank, worldName: name, rank: rank, world: most * each, least: least * each, unranked: true, asks: asks}, s.checkPort(getenv)
}

// checkPort judges the meeting place of ranks.
func (s source) checkPort(getenv func(string) string) error {
	v := getenv(s.port)
	if s.port == "" || v == "" {
		return nil
	}
	if n, err := number(s.port, v); err != nil || n > 65535 {
		return fault.In(fault.Usage, s.port, "%q is no port: 0 to 65535", v)
	}
	return nil
}
