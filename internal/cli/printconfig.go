package cli

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// printedConfig is the result of --print-config: a configuration file that reads back to the same values.
type printedConfig struct {
	Config   map[string]Setting `json:"config"`
	settings Settings
}

// Text prints YAML with the origin of each value as a comment. Empty values are left out: a file cannot say them.
func (c printedConfig) Text(p *Page) {
	for _, s := range c.settings {
		if s.unset != "" {
			p.Printf("%-34s # default: %s\n", "# "+strings.ReplaceAll(s.Name, "-", "_"), s.unset)
			continue
		}
		if isBlank(s.Value) {
			continue
		}
		data, err := yaml.Marshal(map[string]any{strings.ReplaceAll(s.Name, "-", "_"): s.Value})
		if err != nil {
			panic("cli: option value is not YAML: " + err.Error())
		}
		line := strings.TrimRight(string(data), "\n")
		if s.envOnly { // a file cannot say it
			line = "# " + line
		}
		if strings.Contains(line, "\n") {
			p.Printf("# %s\n%s\n", s.Origin, line)
			continue
		}
		p.Printf("%-34s # %s\n", line, s.Origin)
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
