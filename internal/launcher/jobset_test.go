package launcher

import (
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// What a pod of a JobSet finds makes it the ranks that it is; what is missing, or contradicts something else, is a
// mistake, with a table of what was found.
func TestJobSet(t *testing.T) {
	set := []string{"JOBSET_NAME=s", "REPLICATED_JOB_NAME=w", "REPLICATED_JOB_REPLICAS=2", "JOB_INDEX=1",
		"JOB_COMPLETION_INDEX=2", "APR_JOB_PODS=3", "APR_JOB_RANKS=8", "APR_JOB_PORT=29400", "JOBSET_RESTART_ATTEMPT=5"}
	with := func(more ...string) []string { return append(slices.Clone(more), set...) } // the first counts
	for _, tt := range []struct {
		name             string
		environ          []string
		nodes, node, per int
		addr             string
		kind             fault.Kind // 0: no error
		says             string
	}{
		{"a pod of two Jobs", set, 6, 5, 8, "s-w-0-0.s:29400", 0, ""},
		{"a network of its own", with("JOBSET_SUBDOMAIN=net"), 6, 5, 8, "s-w-0-0.net:29400", 0, ""},
		{"a master of its own", with("APR_JOB_MASTER=h", "REPLICATED_JOB_NAME="), 6, 5, 8, "h:29400", 0, ""},
		{"no port", with("APR_JOB_PORT="), 6, 5, 8, "s-w-0-0.s:29500", 0, ""},
		{"one Job", with("REPLICATED_JOB_REPLICAS=", "JOB_INDEX="), 3, 2, 8, "s-w-0-0.s:29400", 0, ""},
		{"Jobs of one pod", with("APR_JOB_PODS=1", "JOB_COMPLETION_INDEX=0", "APR_JOB_RANKS="), 2, 1, 1,
			"s-w-0-0.s:29400", 0, ""},
		{"one pod of one rank", []string{"JOBSET_NAME=s", "JOB_COMPLETION_INDEX=0", "APR_JOB_PODS=1"}, 0, 0, 0, "", 0, ""},
		{"one pod of two ranks", []string{"JOBSET_NAME=s", "APR_JOB_PODS=1", "APR_JOB_RANKS=2"}, 1, 0, 2, "", 0, ""},
		{"a name alone", []string{"JOBSET_NAME=s"}, 0, 0, 0, "", 0, ""},
		{"no number of pods", with("APR_JOB_PODS="), 0, 0, 0, "", fault.Usage, "APR_JOB_PODS: is not set"},
		{"no index", with("JOB_COMPLETION_INDEX="), 0, 0, 0, "", fault.Usage, "JOB_COMPLETION_INDEX: is not set"},
		{"no name of the Job", with("REPLICATED_JOB_NAME="), 0, 0, 0, "", fault.Usage, "REPLICATED_JOB_NAME: is not set"},
		{"no number of Jobs", with("REPLICATED_JOB_REPLICAS="), 0, 0, 0, "", fault.Usage, "JOB_INDEX: is 1, but"},
		{"a Job too many", with("JOB_INDEX=2"), 0, 0, 0, "", fault.Usage,
			"JOB_INDEX: is 2, but REPLICATED_JOB_REPLICAS is 2"},
		{"a pod too many", with("JOB_COMPLETION_INDEX=3"), 0, 0, 0, "", fault.Usage, "is 3, but APR_JOB_PODS is 3"},
		{"no pods", with("APR_JOB_PODS=0"), 0, 0, 0, "", fault.Usage, "APR_JOB_PODS: is 0"},
		{"a number that is none", with("JOBSET_RESTART_ATTEMPT=x"), 0, 0, 0, "", fault.Usage, "JOBSET_RESTART_ATTEMPT"},
		{"a port that is none", with("APR_JOB_PORT=99999"), 0, 0, 0, "", fault.Usage, "APR_JOB_PORT"},
		{"torchrun says less", with("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1"), 0, 0, 0, "", fault.Usage,
			"WORLD_SIZE: says 2 ranks, but APR_JOB_PODS says 48"},
	} {
		contracttest.Cases(t, 1)
		m, err := Meet(wordsOf(tt.environ...))
		if tt.kind != 0 {
			f, _ := err.(*fault.Error)
			if fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) || f == nil ||
				!strings.Contains(f.Hint, "JOBSET_NAME") {
				t.Errorf("%s: %v, want kind %v and %q with a table", tt.name, err, tt.kind, tt.says)
			}
			continue
		}
		if err != nil || m.Nodes != tt.nodes || m.Node != tt.node || m.PerNode != tt.per || m.Addr != tt.addr {
			t.Errorf("%s: %+v, %v", tt.name, m, err)
		}
		if tt.nodes > 1 && (m.By != jobSet || m.Job != "jobset s" || m.Generation != 5) {
			t.Errorf("%s: %+v", tt.name, m)
		}
	}
	if _, err := Check(wordsOf(set...)); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a command that cannot be a rank: %v", err)
	}
}
