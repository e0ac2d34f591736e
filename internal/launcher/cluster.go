package launcher

import (
	"encoding/json"

	"apr/internal/fault"
)

// readCluster reads a description of all processes in JSON, as TensorFlow's TF_CONFIG: lists of addresses by the kind of task, and
// which of them this process is. An evaluator is beside the cluster.
func (s source) readCluster(getenv func(string) string) (*said, error) {
	text := getenv(s.cluster)
	if text == "" {
		return nil, nil
	}
	var config struct {
		Cluster map[string]any `json:"cluster"` // lists, or maps of a part of them by number
		Task    struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
		} `json:"task"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil, fault.In(fault.Usage, s.cluster, "is no description of a cluster in JSON").Because(err)
	}
	world := 0
	for kind, all := range config.Cluster {
		n := 0
		switch all := all.(type) {
		case []any:
			n = len(all)
		case map[string]any:
			n = len(all)
		default:
			return nil, fault.In(fault.Usage, s.cluster, "the %q of its cluster are no list", kind)
		}
		if kind != "evaluator" {
			world += n
		}
		if kind == config.Task.Type && config.Task.Index >= n {
			return nil, fault.In(fault.Usage, s.cluster, "its task is number %d of %d of kind %q", config.Task.Index, n, kind)
		}
	}
	if world == 0 {
		return nil, nil
	}
	return &said{s.by, s.cluster, s.cluster, 0, world, world, true}, nil
}
