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

// String is the warning.
func (a Alike) String() string {
	return fmt.Sprintf("%s=%s and %s=%s: this looks like task %s of %d; this run is on its own", a.Index.Name, a.Index.Value, a.Count.Name, a.Count.Value, a.Index.Value, a.of)
}

// What a launcher numbers, and the words for how many there are of it.
var (
	numbered = regexp.MustCompile(`^(|.*_)(WORKER|NODE|TASK|ROLE|HOST|REPLICA)_(INDEX|RANK|ID)$`)
	counted  = regexp.MustCompile(`^(?:(?:JOB_)?(?:(WORKER|NODE|TASK|ROLE|HOST|REPLICA)S?_)?(?:COUNT|NUM|NUMBER|TOTAL|SIZE|HOSTS|HOSTNAMES)|` +
		`(?:JOB_)?(?:NUM|TOTAL)_(WORKER|NODE|TASK|ROLE|HOST|REPLICA)S?|(?:WORLD|GROUP)_SIZE|HOSTS|HOSTNAMES)$`)
)

// FindAlike looks for such variables in environ (NAME=VALUE), one pair for each prefix and thing that is numbered. Without a prefix, both
// have to name the same thing. What a source reads, or names an array, is none.
func FindAlike(environ []string) (all []Alike) {
	known := Names()
	var vars []Variable
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if value != "" && !slices.Contains(known, name) && !strings.Contains(name, "ARRAY") {
			vars = append(vars, Variable{name, value})
		}
	}
	slices.SortFunc(vars, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	for _, index := range vars {
		m := numbered.FindStringSubmatch(index.Name)
		n, err := number(index.Name, index.Value)
		if m == nil || err != nil {
			continue
		}
		var found *Alike
		for _, count := range vars {
			rest, ok := strings.CutPrefix(count.Name, m[1])
			c := counted.FindStringSubmatch(rest)
			if !ok || c == nil {
				continue
			}
			same := c[1]+c[2] == m[2]
			of := howMany(count.Value)
			if of < 2 || n > of || !same && (m[1] == "" || found != nil) { // numbers go from 0 or from 1
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
