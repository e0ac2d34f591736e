package launcher

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// volcanoKinds are usual names of tasks in a job of Volcano: a master and a worker are two processes, each with index
// 0. Names of tasks are free; FindAlike adds up the others.
var volcanoKinds = []string{"MASTER", "CHIEF", "LEADER", "WORKER", "PS", "EVALUATOR"}

// readKinds adds up how many tasks of each kind Volcano started.
//
//	world = Σ_kind VC_kind_NUM
func (s source) readKinds(getenv func(string) string) (*said, error) {
	text := getenv(s.rank)
	if text == "" {
		return nil, nil
	}
	index, err := number(s.rank, text)
	if err != nil {
		return nil, err
	}
	var set []string
	world, most := 0, 0
	for _, kind := range s.kinds {
		name := volcanoCount(kind)
		if getenv(name) == "" {
			continue
		}
		n, err := number(name, getenv(name))
		if err != nil {
			return nil, err
		}
		if n > 0 {
			set, world, most = append(set, name), world+n, max(most, n)
		}
	}
	switch {
	case world == 0:
		return nil, nil
	case index >= most:
		return nil, fault.In(fault.Usage, s.rank, "is %d, but %s is %d: ranks go from 0 to %d", index, set[0], most, most-1)
	}
	listed := ""
	for _, name := range set[1:] {
		listed += fmt.Sprintf(" and %s=%s", name, getenv(name))
	}
	if listed != "" {
		listed = getenv(set[0]) + listed
	}
	all := s.says(s.rank, set[0], index, world)
	all.listed, all.unranked = listed, true
	return all, nil
}

// volcanoCount is the variable that counts tasks of a kind.
func volcanoCount(kind string) string { return "VC_" + kind + "_NUM" }

// readJobs reads the place of a pod in a set of indexed jobs, as xpk numbers it.
//
//	rank = job · pods of a job + pod
func (s source) readJobs(getenv func(string) string) (*said, error) {
	if getenv(s.job) == "" || getenv(s.pods) == "" {
		return nil, nil
	}
	n := map[string]int{}
	for _, name := range []string{s.job, s.pods, s.pod, s.world} {
		if v := getenv(name); v != "" {
			var err error
			if n[name], err = number(name, v); err != nil {
				return nil, err
			}
		}
	}
	pods, rank := n[s.pods], n[s.job]*n[s.pods]+n[s.pod]
	worldName, world := s.pods, (n[s.job]+1)*pods // at least
	if n[s.job] > 0 {
		worldName = s.job
	}
	if getenv(s.world) != "" {
		worldName, world = s.world, n[s.world]
	}
	switch {
	case pods < 1:
		return nil, fault.In(fault.Usage, s.pods, "is %d: a job has at least one process", pods)
	case n[s.pod] >= pods:
		return nil, fault.In(fault.Usage, s.pod, "is %d, but %s is %d", n[s.pod], s.pods, pods)
	case rank >= world:
		return nil, fault.In(fault.Usage, s.job, "is %d, with %s=%d, but %s is %d", n[s.job], s.pods, pods, worldName, world)
	}
	return s.says(s.job, worldName, rank, world), nil
}

// readEntries counts the entries of a list, one for each process; this one is given by its number or by its own entry.
func (s source) readEntries(getenv func(string) string) (*said, error) {
	me := getenv(s.host)
	if s.host == "" {
		me = getenv(s.rank)
	}
	if me == "" || getenv(s.entries) == "" {
		return nil, nil
	}
	all := strings.Split(strings.TrimSuffix(getenv(s.entries), ","), ",")
	if s.host != "" {
		rank := slices.Index(all, me)
		if rank < 0 {
			return nil, fault.In(fault.Usage, s.host, "is %s, which is none of %s %s", me, s.entries, getenv(s.entries))
		}
		return s.says(s.host, s.entries, rank, len(all)), nil
	}
	rank, err := number(s.rank, me)
	if err == nil && rank >= len(all) {
		err = fault.In(fault.Usage, s.rank, "is %d, but %s has %d entries", rank, s.entries, len(all))
	}
	return s.says(s.rank, s.entries, rank, len(all)), err
}

// readLists reads a rank whose world is the length of a JSON list in a file that a variable names, as of mlx.launch.
// A file that cannot be read is an error: nothing else says how many there are.
func (s source) readLists(getenv func(string) string) (*said, error) {
	rank, err := number(s.rank, getenv(s.rank))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.lists, func(name string) bool { return getenv(name) != "" })
	if i < 0 {
		names := strings.Join(append([]string{s.world}, s.lists...), ", ")
		return nil, fault.In(fault.Usage, s.rank, "is %d, but none of %s is set", rank, names)
	}
	name := s.lists[i]
	text, err := readfile.String(getenv(name), 1<<20)
	var entries []any
	if err == nil {
		err = json.Unmarshal([]byte(text), &entries)
	}
	switch world := len(entries); {
	case err != nil:
		err = fault.In(fault.Usage, name, "%s is no JSON list of processes, and %s is set", getenv(name), s.rank).Because(err)
		return nil, err
	case rank >= world:
		return nil, fault.In(fault.Usage, s.rank, "is %d, but %s lists %d processes", rank, name, world)
	default:
		all := s.says(s.rank, name, rank, world)
		all.listed = fmt.Sprintf("%s, a list of %d processes", getenv(name), world)
		return all, nil
	}
}

// says is a rank of a world, by the variables that said so.
func (s source) says(rankName, worldName string, rank, world int) *said {
	in := &said{by: s.by, rankName: rankName, worldName: worldName, unranked: s.machines}
	in.rank, in.world, in.least = rank, world, world
	return in
}

// multiply makes a world of groups one of processes: each group is a world of its own, of a size that another variable
// says. One group says nothing.
func (s source) multiply(out *said, getenv func(string) string) (*said, error) {
	switch {
	case s.times == "":
		return out, nil
	case out.world == 1:
		return nil, nil
	case getenv(s.times) == "":
		return out, nil
	}
	n, err := number(s.times, getenv(s.times))
	if err != nil {
		return nil, err
	}
	n = max(n, 1)
	out.rank, out.world, out.least = out.rank*n, out.world*n, out.least*n
	return out, nil
}
