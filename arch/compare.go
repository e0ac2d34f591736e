package arch

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Difference is a field in which two descriptions differ, by its path in JSON ("ropes.0.theta"); nil: one has none.
type Difference struct {
	Path string
	A, B any
}

// use are the fields that belong to use and training: positions bound rows, two families may have one arithmetic, and
// whether the head is the embedding shows in its values.
var use = []string{"family", "max_positions", "bos", "eos", "pad", "init_range", "tied"}

// Computes reports whether models that differ so compute differently.
func (d Difference) Computes() bool {
	top, _, _ := strings.Cut(d.Path, ".")
	return !slices.Contains(use, top)
}

// Compare returns all differences, in the order of their paths. Numbers are float64.
func Compare(a, b Config) []Difference {
	return compare("", decoded(a), decoded(b))
}

func decoded(c Config) (v any) {
	if err := json.Unmarshal(c.JSON(), &v); err != nil {
		panic(fmt.Sprintf("arch: own JSON does not parse: %v", err))
	}
	return v
}

func compare(path string, a, b any) (all []Difference) {
	if reflect.DeepEqual(a, b) {
		return nil
	}
	x, isX := members(a)
	y, isY := members(b)
	if !isX || !isY {
		return []Difference{{path, a, b}}
	}
	keys := maps.Clone(x)
	maps.Copy(keys, y)
	for _, key := range slices.SortedFunc(maps.Keys(keys), byNumber) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		all = append(all, compare(at, x[key], y[key])...)
	}
	return all
}

// members returns the members of an object, or of an array by their numbers.
func members(v any) (map[string]any, bool) {
	switch v := v.(type) {
	case map[string]any:
		return v, true
	case []any:
		m := map[string]any{}
		for i, x := range v {
			m[strconv.Itoa(i)] = x
		}
		return m, true
	}
	return nil, false
}

// byNumber compares texts of digits by their value.
func byNumber(a, b string) int {
	if d := len(a) - len(b); d != 0 && a[0] <= '9' && b[0] <= '9' {
		return d
	}
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
