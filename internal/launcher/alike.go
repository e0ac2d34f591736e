package launcher

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Alike are two variables of one prefix that look like a launcher's that no source describes: a number of this process, and how many
// there are. Elements of arrays, which the clouds number likewise, are runs of their own: this is a reason to warn, not to refuse.
type Alike struct {
	Index Variable `json:"index"`
	Count Variable `json:"count"`
	of    int
}

// Of is how many there are.
func (a Alike) Of() int { return a.of }

// String is the warning.
func (a Alike) String() string {
	return fmt.Sprintf("%s=%s and %s=%s: this looks like task %s of %d; this run is on its own", a.Index.Name, a.Index.Value, a.Count.Name, a.Count.Value, a.Index.Value, a.of)
}

// What a launcher numbers, and the words for how many there are of it. A rank may be of nothing that is named.
const things = `(WORKER|NODE|TASK|ROLE|HOST|REPLICA|MACHINE|PROCESS|SLICE|POD)`

var (
	numbered = regexp.MustCompile(`^(|.*_)` + things + `_(?:INDEX|RANK|ID)$`)
	ranked   = regexp.MustCompile(`^(|.*_|[A-Z]+)()(?:RANK|INDEX)$`)
	counted  = regexp.MustCompile(`^(?:(?:JOB_)?(?:` + things + `S?_)?(?:COUNT|NUM|NUMBER|TOTAL|SIZE|HOSTS|HOSTNAMES)|` +
		`(?:JOB_)?(?:NUM|TOTAL)_` + things + `E?S?|N` + things + `S|N?(?:RANKS|PROCS|TASKS)|(?:NUM|TOTAL)_(?:RANKS|PROCS)|` +
		`(?:WORLD|GROUP)_SIZE|HOSTS|HOSTNAMES)$`)
)

// FindAlike looks for such variables in environ (NAME=VALUE), one pair for each prefix and thing that is numbered. Without a prefix, both
// variables have to name the same thing. A pair that a source reads is left to the source. Names with ARRAY are left
// out, except those of NGC: its array is the nodes of one job.
func FindAlike(environ []string) (all []Alike) {
	known := Names()
	var vars []Variable
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if value != "" && (!strings.Contains(name, "ARRAY") || strings.HasPrefix(name, "NGC_ARRAY_")) { // a replica of NGC's is a node
			vars = append(vars, Variable{name, value})
		}
	}
	slices.SortFunc(vars, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	all = append(all, described(vars)...)
	for _, index := range vars {
		m := numbered.FindStringSubmatch(index.Name)
		if m == nil {
			m = ranked.FindStringSubmatch(index.Name)
		}
		n, err := number(index.Name, index.Value)
		if m == nil || err != nil {
			continue
		}
		var found *Alike
		for _, count := range vars {
			prefix, thing := m[1], m[2]
			rest, ok := strings.CutPrefix(count.Name, prefix)
			c := counted.FindStringSubmatch(rest)
			if !ok || c == nil || slices.Contains(known, index.Name) && slices.Contains(known, count.Name) {
				continue
			}
			counts := c[1] + c[2] + c[3]
			same, of := counts == thing, howMany(count.Value)
			if of < 2 || n > of || !same && found != nil || prefix == "" && !namesOne(thing, counts) { // numbers go from 0 or from 1
				continue
			}
			if found = (&Alike{index, count, of}); same {
				break
			}
		}
		if found != nil {
			all = append(all, *found)
		}
	}
	return all
}

// described finds pairs by their whole names, which follow no rule: the index, and how the name of the count begins and
// ends.
func described(vars []Variable) (all []Alike) {
	all = append(all, volcanoTasks(vars)...)
	for _, pair := range [][3]string{
		{"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "PAI_TASK_ROLE_TASK_COUNT_", ""},
		{"PSSH_NODENUM", "PSSH_NUMNODES", ""}, {"SNOWFLAKE_JOB_INDEX", "SNOWFLAKE_JOBS_COUNT", ""},
		{"GROVE_PCLQ_POD_INDEX", "GROVE_PCSG_TEMPLATE_NUM_PODS", ""}, {"CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES", ""},
	} {
		i := slices.IndexFunc(vars, func(v Variable) bool { return v.Name == pair[0] })
		if i < 0 {
			continue
		}
		for _, v := range vars {
			n := howMany(v.Value)
			if n > 1 && strings.HasPrefix(v.Name, pair[1]) && strings.HasSuffix(v.Name, pair[2]) {
				all = append(all, Alike{vars[i], v, n})
				break
			}
		}
	}
	return all
}

// volcanoTasks adds up the tasks of a job of Volcano, some of which are of a kind that no source reads.
func volcanoTasks(vars []Variable) []Alike {
	i := slices.IndexFunc(vars, func(v Variable) bool { return v.Name == volcanoRank || v.Name == olderVolcanoRank })
	if i < 0 {
		return nil
	}
	known, of := 0, 0
	var named Variable
	for _, v := range vars {
		kind, ok := strings.CutPrefix(v.Name, "VC_")
		kind, count := strings.CutSuffix(kind, "_NUM")
		n, err := number(v.Name, v.Value)
		if !ok || !count || err != nil {
			continue
		}
		if of += n; slices.Contains(volcanoKinds, kind) {
			known += n
		} else if n > 0 {
			named = v
		}
	}
	if of < 2 || known > 1 {
		return nil
	}
	return []Alike{{vars[i], named, of}}
}

// namesOne reports whether an index and a count without a prefix are of one thing: a bare rank may be a machine's, but is no worker's, which are
// more often a process's own.
func namesOne(thing, counts string) bool {
	return counts != "" && (counts == thing || thing == "" && counts != "WORKER" && counts != "TASK")
}

// howMany reads a count, or counts a list.
func howMany(text string) int {
	if n, err := number("", text); err == nil {
		return n
	}
	var list []any
	if json.Unmarshal([]byte(text), &list) == nil {
		return len(list)
	}
	return len(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", ;\t\n", r) }))
}
