package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"apr/internal/fault"
)

// Setting is the merged value of one option and where it came from.
type Setting struct {
	Name   string `json:"-"`
	Value  any    `json:"value"`
	Origin string `json:"origin"` // "flag", "env NAME", "config FILE:LINE", "--NAME" of an option that implies it, or "default"

	envOnly  bool
	unset    string // what the default means, where the value does not say it
	changed  bool   // Value is not the default
	replaced *replacement
}

// replacement is what was said of an option that counts as not given, and the option that replaces it.
type replacement struct {
	texts      []string
	origin, by string
}

// Settings are the merged options of a call, in the order of the table.
type Settings []Setting

// Origin returns where the value of the named option came from, "" for an unknown name.
func (s Settings) Origin(name string) string {
	for _, v := range s {
		if v.Name == name {
			return v.Origin
		}
	}
	return ""
}

// Value returns the value of the named option, nil for an unknown name.
func (s Settings) Value(name string) any {
	for _, v := range s {
		if v.Name == name {
			return v.Value
		}
	}
	return nil
}

// Given reports whether the option was set by flag, argument, environment or configuration.
func (s Settings) Given(name string) bool {
	o := s.Origin(name)
	return o != "" && o != "default"
}

// Files returns the configuration files that values came from.
func (s Settings) Files() (all []string) {
	for _, v := range s {
		from, ok := strings.CutPrefix(v.Origin, "config ")
		if name := from[:max(0, strings.LastIndexByte(from, ':'))]; ok && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// Changed reports whether the option was given a value other than its default.
func (s Settings) Changed(name string) bool {
	return slices.ContainsFunc(s, func(v Setting) bool { return v.Name == name && v.changed })
}

// Asked returns the flags of those options that were given a value other than the default.
func (s Settings) Asked(names ...string) (flags []string) {
	for _, name := range names {
		if s.Changed(name) {
			flags = append(flags, "--"+name)
		}
	}
	return flags
}

// Over reports whether the option was set in a place that wins over the one where other was: a flag over the environment,
// that over a configuration, that over a default.
func (s Settings) Over(name, other string) bool {
	return strength(s.Origin(name)) > strength(s.Origin(other))
}

// strength orders the places that a value may come from.
func strength(origin string) int {
	switch {
	case origin == "flag":
		return 3
	case strings.HasPrefix(origin, "env "):
		return 2
	case strings.HasPrefix(origin, "config "):
		return 1
	}
	return 0
}

// Map returns the settings by configuration key, for a run's manifest.
func (s Settings) Map() map[string]Setting {
	m := make(map[string]Setting, len(s))
	for _, v := range s {
		m[strings.ReplaceAll(v.Name, "-", "_")] = v
	}
	return m
}

// source is one place a value may come from.
type source struct {
	texts  []string
	origin string
	fail   func(err error) error // adds the place to a complaint about the value
	base   string                // folder that relative paths start from; empty: working directory
}

// merge gives every option its value: command line, then environment, then file, then default.
func merge(opts []Option, file *configFile, env map[string]string) (Settings, error) {
	sources := map[string]*source{}
	for i := range opts {
		if src := pick(&opts[i], file, env); src != nil {
			sources[opts[i].Name] = src
		}
	}
	gone := replaced(opts, sources)
	var all Settings
	for i := range opts {
		o := &opts[i]
		src, def := sources[o.Name], o.Value.get()
		if src != nil {
			if o.NotBuilt != "" {
				return nil, src.fail(fault.New(fault.Unavailable, "not built yet: %s", o.NotBuilt))
			}
			if err := apply(o, src); err != nil {
				return nil, err
			}
		}
		set := Setting{Name: o.Name, Value: o.Value.get(), Origin: "default", envOnly: o.EnvOnly, replaced: gone[o.Name]}
		set.changed = !reflect.DeepEqual(set.Value, def)
		if src != nil {
			set.Origin = src.origin
		} else {
			set.unset = o.Default
		}
		all = append(all, set)
	}
	return all, nil
}

// replaced takes out of sources those of options that another one replaces.
func replaced(opts []Option, sources map[string]*source) map[string]*replacement {
	gone := map[string]*replacement{}
	for i := range opts {
		by := sources[opts[i].Name]
		for _, name := range opts[i].Replaces {
			if src := sources[name]; src != nil && by != nil && strength(by.origin) > strength(src.origin) {
				gone[name] = &replacement{src.texts, src.origin, opts[i].Name}
			}
		}
	}
	for name := range gone {
		delete(sources, name)
	}
	return gone
}

// required complains about the first required option that nobody gave.
func required(opts []Option, s Settings) error {
	for i := range opts {
		if opts[i].Required && !s.Given(opts[i].Name) {
			return missing(&opts[i])
		}
	}
	return nil
}

// missing is the complaint about a required option nobody gave.
func missing(o *Option) error {
	if o.Arg {
		return fault.New(fault.Usage, "missing argument %s: %s", strings.ToUpper(o.Name), o.Help)
	}
	return fault.New(fault.Usage, "missing --%s: %s", o.Name, o.Help)
}

// pick returns the strongest source of o, or nil.
func pick(o *Option, file *configFile, env map[string]string) *source {
	if o.given != nil {
		name := "--" + o.Name
		if o.Arg {
			name = strings.ToUpper(o.Name)
		}
		return &source{texts: o.given, origin: "flag", fail: func(err error) error { return placed(err, name, "") }}
	}
	if v := env[o.Env]; o.Env != "" && v != "" {
		return &source{texts: []string{v}, origin: "env " + o.Env, fail: func(err error) error { return placed(err, o.Env, "") }}
	}
	if o.FromEnv != nil {
		if v, name := o.FromEnv(func(name string) string { return env[name] }); name != "" {
			return &source{texts: []string{v}, origin: "env " + name, fail: func(err error) error { return placed(err, name, "") }}
		}
	}
	if file != nil {
		if v, ok := file.values[o.Name]; ok {
			return &source{
				texts: v.texts, origin: fmt.Sprintf("config %s:%d", file.path, v.line), base: file.dir,
				fail: func(err error) error {
					return placed(err, file.path, fmt.Sprintf("line %d, column %d, %s", v.line, v.column, v.key))
				},
			}
		}
	}
	return nil
}

// apply stores the texts of src into the option.
func apply(o *Option, src *source) error {
	texts := src.texts
	if l, ok := o.Value.(list); ok {
		l.clear()
	} else {
		texts = texts[len(texts)-1:] // the last use of a flag counts
	}
	for _, t := range texts {
		t = o.from(src.base, t)
		if err := o.Value.set(t); err != nil {
			return src.fail(err)
		}
	}
	return nil
}

var hubName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)

// from makes a relative path in t start from base, unless that is empty.
func (o *Option) from(base, t string) string {
	name, path, ok := strings.Cut(t, o.After)
	if o.After == "" || !ok {
		name, path = "", t
	} else {
		name += o.After
	}
	if !o.Path && !o.Model || base == "" || !localPath(path) {
		return t
	}
	return name + o.resolve(base, path)
}

// resolve makes a relative path of a configuration file relative to that file's folder.
func (o *Option) resolve(base, t string) string {
	if t == o.Optional || slices.Contains(o.Keywords, t) {
		return t
	}
	p := filepath.Join(base, t)
	if o.Model && hubName.MatchString(t) {
		if _, err := os.Stat(p); err != nil {
			return t
		}
	}
	return p
}

// localPath reports whether t is a relative file path: not a hub reference such as hf://org/name.
func localPath(t string) bool {
	return t != "" && t != "-" && !filepath.IsAbs(t) && !strings.Contains(t, "://")
}

// placed turns a complaint about a value into a usage error that names its place; a fault keeps its kind and hint.
func placed(err error, path, place string) error {
	f := &fault.Error{Kind: fault.Usage, Path: path, Place: place}
	var inner *fault.Error
	if errors.As(err, &inner) {
		f.Kind, f.Msg, f.Hint, f.ID = inner.Kind, inner.Msg, inner.Hint, inner.ID
	} else {
		f.Msg = err.Error()
	}
	return f
}

// unhonoured lists the variables with the prefix that no option reads, sorted.
func unhonoured(prefix string, opts []Option, env map[string]string) []string {
	var names []string
	for name, v := range env {
		known := slices.ContainsFunc(opts, func(o Option) bool { return o.Env == name })
		if prefix != "" && v != "" && strings.HasPrefix(name, prefix) && !known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// envMap turns KEY=VALUE lines into a map; the last one of a name counts.
func envMap(environ []string) map[string]string {
	m := map[string]string{}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[k] = v
		}
	}
	return m
}

// sortedKeys returns the keys of m in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
