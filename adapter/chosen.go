package adapter

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// chosen is what an adapter_config.json says of the modules that have adapters: PEFT makes none elsewhere, and passes
// over tensors of a file for which there is none.
type chosen struct {
	target, exclude names
	layers          []uint64
	patterns        []*regexp.Regexp // what stands before the number of a layer
}

// names are modules: by their names or ends, or by a pattern.
type names struct {
	list    []string
	pattern *regexp.Regexp
	all     bool // "all-linear"
}

// given reports whether anything was said.
func (n names) given() bool { return n.all || n.pattern != nil || len(n.list) > 0 }

// has reports whether a module is meant, as PEFT's check_target_module_exists does.
func (n names) has(module string) bool {
	if n.all {
		return !strings.HasSuffix(module, "lm_head")
	}
	return n.pattern != nil && n.pattern.MatchString(module) ||
		slices.ContainsFunc(n.list, func(name string) bool { return module == name || strings.HasSuffix(module, "."+name) })
}

// key reads one of the keys; null and lists of nothing say nothing.
func (c *chosen) key(path, key string, v strictjson.Value) (err error) {
	if empty(v) {
		return nil
	}
	switch key {
	case "target_modules":
		c.target, err = readNames(v)
	case "exclude_modules":
		c.exclude, err = readNames(v)
	case "layers_to_transform":
		list := []strictjson.Value{v}
		if v.Kind() == strictjson.Array {
			list = slices.Collect(v.Items())
		}
		for _, item := range list {
			n, e := item.Uint64()
			if e != nil {
				err = e
				break
			}
			c.layers = append(c.layers, n)
		}
	case "layers_pattern":
		var words []string
		if words, err = readStrings(v); err == nil {
			for _, w := range words {
				re, e := regexp.Compile(`^.*\.` + w + `\.(\d+)\.`)
				if e != nil {
					err = e
					break
				}
				c.patterns = append(c.patterns, re)
			}
		}
	}
	if err != nil {
		return fault.In(fault.Unavailable, path, "names modules in a way that is not read").At("key %q", key).Because(err).
			WithHint("merge this adapter with PEFT first").WithID("E-ADAPTER-024")
	}
	return nil
}

// readNames reads a list of names, or a pattern that a whole name matches.
func readNames(v strictjson.Value) (n names, err error) {
	if v.Kind() != strictjson.String {
		n.list, err = readStrings(v)
		return n, err
	}
	text, err := v.Str()
	if err != nil || text == "all-linear" {
		n.all = err == nil
		return n, err
	}
	n.pattern, err = regexp.Compile(`^(?:` + text + `)$`)
	return n, err
}

// readStrings reads a string or a list of strings.
func readStrings(v strictjson.Value) (list []string, err error) {
	items := []strictjson.Value{v}
	if v.Kind() == strictjson.Array {
		items = slices.Collect(v.Items())
	} else if err := v.Expect(strictjson.String); err != nil {
		return nil, err
	}
	for _, item := range items {
		s, err := item.Str()
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// anyLayer finds the number of a layer where no pattern is given.
var anyLayer = regexp.MustCompile(`^.*\.[^.]*\.(\d+)\.`)

// leaves returns the key by which PEFT has no adapter at a module; empty: it has one.
func (c chosen) leaves(module string) string {
	switch {
	case c.exclude.given() && c.exclude.has(module):
		return "exclude_modules"
	case c.target.given() && !c.target.has(module):
		return "target_modules"
	case len(c.layers) == 0 || c.target.pattern != nil:
		return ""
	}
	patterns := c.patterns
	if len(patterns) == 0 {
		patterns = []*regexp.Regexp{anyLayer}
	}
	for _, re := range patterns {
		if found := re.FindStringSubmatch(module); found != nil {
			if n, err := strconv.ParseUint(found[1], 10, 64); err == nil && slices.Contains(c.layers, n) {
				return ""
			}
			break
		}
	}
	return "layers_to_transform"
}
