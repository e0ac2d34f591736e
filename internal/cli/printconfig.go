package cli

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// printedConfig is the result of --print-config: as text, a configuration file that gives the same configuration, from
// whatever folder it is read.
type printedConfig struct {
	Config      map[string]Setting `json:"config"`
	Environment map[string]string  `json:"environment,omitempty"` // what was set and no file can say
	lines       []string
}

// printed renders the settings of a call. Only what was given is a key of the file; defaults are comments: to write one down
// would be to give it, and some options ask whether another was given.
func printed(opts []Option, all Settings) printedConfig {
	c := printedConfig{Config: map[string]Setting{}, Environment: map[string]string{}}
	for i := range opts {
		o := &opts[i]
		s, known := all.find(o.Name)
		switch {
		case !known || o.Name == "print-config":
			continue
		case s.envOnly && s.Origin == "default":
			continue
		case s.envOnly:
			c.Environment[o.Env] = o.Value.text()
			c.line("# in the environment: "+o.Env+"="+Clean(o.Value.text()), "")
			continue
		}
		c.Config[o.key()] = s
		switch {
		case s.replaced != nil:
			c.line(commented(entryText(o.key(), strings.Join(s.replaced.texts, ", "))), s.replaced.origin+"; "+spelledKey(s.replaced.by)+" counts instead")
		case s.unset != "":
			c.line("# "+o.key(), "default: "+s.unset)
		case s.Origin == "default" && isBlank(s.Value):
		case s.Origin == "default":
			c.line(commented(entryText(o.key(), s.Value)), "default")
		default:
			c.line(entryText(o.key(), o.located(s.Value)), s.Origin)
		}
	}
	return c
}

// find returns the setting of a name.
func (s Settings) find(name string) (Setting, bool) {
	for _, v := range s {
		if v.Name == name {
			return v, true
		}
	}
	return Setting{}, false
}

// spelledKey is the configuration key of an option's name.
func spelledKey(name string) string { return strings.ReplaceAll(name, "-", "_") }

// located makes relative paths absolute: in a file they would be relative to the file.
func (o *Option) located(v any) any {
	here, err := os.Getwd()
	if err != nil || !o.Path && !o.Model {
		return v
	}
	locate := func(t string) string {
		if !localPath(t) {
			return t
		}
		return o.from(here, t)
	}
	switch v := v.(type) {
	case string:
		return locate(v)
	case []string:
		out := make([]string, len(v))
		for i, t := range v {
			out[i] = locate(t)
		}
		return out
	}
	return v
}

// entryText is a key and its value as YAML; lists stand on one line.
func entryText(key string, value any) string {
	var n yaml.Node
	err := n.Encode(value)
	if n.Kind == yaml.SequenceNode {
		n.Style = yaml.FlowStyle
	}
	data, err2 := yaml.Marshal(map[string]*yaml.Node{key: &n})
	if err != nil || err2 != nil {
		panic(fmt.Sprintf("cli: the value of option %s is not YAML: %v, %v", key, err, err2))
	}
	return strings.TrimSuffix(string(data), "\n")
}

func commented(text string) string { return "# " + strings.ReplaceAll(text, "\n", "\n# ") }

// line adds an entry with a comment. Text of several lines has it above.
func (c *printedConfig) line(text, comment string) {
	switch comment = Clean(comment); {
	case comment == "":
		c.lines = append(c.lines, text)
	case strings.Contains(text, "\n"):
		c.lines = append(c.lines, "# "+comment, text)
	default:
		c.lines = append(c.lines, fmt.Sprintf("%-34s # %s", text, comment))
	}
}

// Text prints the file, with the origin of each value as a comment.
func (c printedConfig) Text(p *Page) {
	for _, line := range c.lines {
		p.Printf("%s\n", line)
	}
}

func isBlank(v any) bool {
	switch v := v.(type) {
	case string:
		return v == ""
	case []string:
		return len(v) == 0
	}
	return false
}
