package report

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	runlog "apr/run/log"
)

// origins are what the run was made of and by whom.
func origins(r *runlog.Record) []Section {
	m := r.Manifest
	run := Section{Title: "Run", Rows: []Row{{Name: "id", Value: r.ID()}, {Name: "status", Value: r.Status + because(r.Reason)}}}
	if len(m.Command) > 0 {
		run.Rows = append(run.Rows, Row{Name: "command", Value: commandLine(m.Command)})
	}
	if rc := r.Receipt; rc != nil {
		if rc.By != "" {
			run.Rows = append(run.Rows, Row{Name: "by", Value: rc.By})
		}
		run.Rows = append(run.Rows, Row{Name: "finished", Value: rc.Finished.UTC().Format("2006-01-02 15:04:05 UTC")})
		if rc.Tokens > 0 {
			run.Rows = append(run.Rows, Row{Name: "trained on", Value: fmt.Sprintf("%s tokens, %s of them targets", count(rc.Tokens), count(rc.Targets))})
		}
	}
	all := []Section{run, inputs(m), values("Versions", m.Version, "modules"), values("Machine", m.Device)}
	before := m
	for i, now := range r.Resumed {
		if !reflect.DeepEqual(now.Device, before.Device) {
			all = append(all, values(fmt.Sprintf("Machine of attempt %d", i+2), now.Device))
		}
		before = now
	}
	all = append(all, environment(m))
	if rc := r.Receipt; rc != nil && len(rc.Outputs) > 0 {
		s := Section{Title: "Outputs"}
		for _, name := range slices.Sorted(maps.Keys(rc.Outputs)) {
			s.Rows = append(s.Rows, Row{Name: name, Value: "sha256 " + rc.Outputs[name]})
		}
		all = append(all, s)
	}
	all = append(all, configuration(m, cmp.Or(r.InForce, m)))
	return slices.DeleteFunc(all, func(s Section) bool { return len(s.Rows) == 0 })
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// commandLine quotes the arguments as a shell needs them.
func commandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool { return !strings.ContainsRune("%+,-./:=@_", r) && !isWord(r) }) {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func inputs(m *runlog.Manifest) Section {
	s := Section{Title: "Inputs", Notes: true}
	for _, name := range slices.Sorted(maps.Keys(m.Inputs)) {
		in := m.Inputs[name]
		parts := []string{in.Path}
		if in.Detail != "" {
			parts = append(parts, in.Detail)
		}
		note := in.Of
		if in.SHA256 != "" {
			parts = append(parts, "sha256 "+in.SHA256)
			if note != "" {
				note = "hash of " + note
			}
		}
		s.Rows = append(s.Rows, Row{name, strings.Join(parts, " · "), note})
	}
	return s
}

// values lists a map of a record; what is in last comes at the end.
func values(title string, m map[string]any, last ...string) Section {
	s := Section{Title: title}
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		at := func(k string) int { return slices.Index(last, k) }
		return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a, b))
	})
	for _, k := range keys {
		if v := text(m[k]); v != "" {
			s.Rows = append(s.Rows, Row{Name: k, Value: v})
		}
	}
	return s
}

func environment(m *runlog.Manifest) Section {
	s := Section{Title: "Environment"}
	for _, k := range slices.Sorted(maps.Keys(m.Environment)) {
		s.Rows = append(s.Rows, Row{Name: k, Value: m.Environment[k]})
	}
	return s
}

// configuration lists all settings as they were last in force, those that somebody chose first, with what they were at the
// beginning if that was something else.
func configuration(begun, m *runlog.Manifest) Section {
	s := Section{Title: "Configuration", Notes: true}
	chosen := func(k string) int {
		if m.Config[k].Origin == "default" {
			return 1
		}
		return 0
	}
	keys := slices.SortedFunc(maps.Keys(m.Config), func(a, b string) int {
		return cmp.Or(cmp.Compare(chosen(a), chosen(b)), cmp.Compare(a, b))
	})
	for _, k := range keys {
		note := m.Config[k].Origin
		was, is := settingText(begun.Config[k]), settingText(m.Config[k])
		if was != is {
			note += "; " + was + " before a resumption"
		}
		s.Rows = append(s.Rows, Row{k, is, note})
	}
	return s
}

// settingText is the value of a setting. A default of −1 is none that can be given: the run has chosen by a rule.
func settingText(v runlog.Value) string {
	if is := text(v.Value); v.Origin != "default" || is != "-1" {
		return is
	}
	return "by rule"
}
