package cluster

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// key is one name in a File.
type key struct {
	name     string
	set      func(float64)
	unit     float64 // what 1 of it is in seconds or bytes
	min, max float64
	needed   bool
	flag     *bool // in place of set
	whole    bool
}

// section is a mapping of keys.
type section struct {
	name   string
	keys   []key
	needed bool
}

const (
	ms    = 1e-3
	giga  = 1e9
	large = 1e18
)

// number makes a key of a number from lo to hi.
func number(name string, v *float64, unit, lo, hi float64) key {
	return key{name: name, set: func(x float64) { *v = x }, unit: unit, min: lo, max: hi}
}

// must makes a key one that has to be given.
func must(k key) key { k.needed = true; return k }

// whole makes a key one of whole numbers.
func whole(k key) key { k.whole = true; return k }

// sections are the mappings of a File.
func (f *File) sections() []section {
	j, g, l, x, c, h, p := &f.Job, &f.Gradients, &f.Links, &f.Failures, &f.Checkpoints, &f.Cache, &f.Pool
	perHost := whole(must(number("gpus_per_host", nil, 1, 1, 1024)))
	perHost.set = func(v float64) { l.PerHost = int(v) }
	return []section{
		{"job", []key{must(number("tokens", &j.Tokens, 1, 1, large)), number("epochs", &j.Epochs, 1, 1, 1e6),
			whole(must(number("row_tokens", &j.RowTokens, 1, 1, 1e9)))}, true},
		{"gradients", []key{must(number("bytes", &g.Bytes, 1, 1, large)), number("last_bytes", &g.Last, 1, 0, large),
			whole(number("buckets", &g.Buckets, 1, 1, 1e4)), number("weight_bytes", &g.Weights, 1, 0, large),
			{name: "zero1", flag: &g.Zero1}}, true},
		{"links", []key{perHost, must(number("host_gb_per_s", &l.Host, giga, 1e-3, 1e6)),
			number("host_latency_us", &l.HostLatency, 1e-6, 0, 1e6),
			must(number("network_gb_per_s", &l.Network, giga, 1e-3, 1e6)),
			number("network_latency_us", &l.NetworkLatency, 1e-6, 0, 1e6)}, true},
		{"failures", []key{must(number("gpu_hours", &x.GPUHours, 1, 1e-3, large)),
			must(number("detect_s", &x.Detect, 1, 0, 1e6)), must(number("restart_s", &x.Restart, 1, 0, 1e6))}, false},
		{"checkpoints", []key{number("every_minutes", &c.Every, 60, 1e-3, 1e6), must(number("pause_s", &c.Pause, 1, 0, 1e6)),
			must(number("durable_s", &c.Durable, 1, 0, 1e6)), must(number("bytes", &c.Bytes, 1, 0, large)),
			whole(number("keep", &c.Keep, 1, 1, 1e6))}, false},
		{"cache", []key{must(number("bytes_per_token", &h.PerToken, 1, 1e-3, 1e9)),
			number("store_gb_per_s", &h.Store, giga, 1e-6, 1e6), number("shard_minutes", &h.Shard, 60, 0, 1e6)}, false},
		{"pool", []key{must(number("bytes_per_token", &p.PerToken, 1, 1e-3, 1e9)),
			must(number("ahead_steps", &p.Ahead, 1, 1, 1e6))}, false},
	}
}

// keys are those of an element of steps.
func (p *Phases) keys() []key {
	time := func(name string, v *float64) key { return must(number(name, v, ms, 0, 1e9)) }
	return []key{whole(must(number("tokens", &p.Tokens, 1, 1, 1e12))), time("teacher_ms", &p.Teacher),
		time("student_forward_ms", &p.StudentForward), time("loss_ms", &p.Loss),
		time("student_backward_ms", &p.StudentBackward), time("optimizer_ms", &p.Opt)}
}

// maxFile bounds a description.
const maxFile = 1 << 20

// reader reads one file.
type reader struct{ path string }

// bad is a fault of the file.
func (r reader) bad(format string, args ...any) *fault.Error {
	return fault.In(fault.Usage, r.path, format, args...).WithID("E-CLUSTER-001")
}

func (r reader) fail(n *yaml.Node, format string, args ...any) *fault.Error {
	return r.bad(format, args...).At("line %d, column %d", n.Line, n.Column)
}

// Read reads a description. Unknown and repeated keys, values out of bounds and what contradicts itself are faults of
// kind Usage with line and column.
func Read(path string) (*File, error) {
	text, err := readfile.String(path, maxFile)
	if err != nil {
		return nil, err
	}
	r := reader{path}
	dec := yaml.NewDecoder(strings.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, r.bad("is empty: job, steps, gradients and links are needed")
	case err != nil:
		return nil, r.bad("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, r.bad("holds more than one YAML document")
	}
	f := &File{Job: Job{Epochs: 1}, Gradients: Gradients{Buckets: 16}, Checkpoints: Checkpoints{Keep: 2}}
	if err := r.root(f, doc.Content[0]); err != nil {
		return nil, err
	}
	return f, r.check(f, doc.Content[0])
}

// root reads the sections.
func (r reader) root(f *File, n *yaml.Node) error {
	sections := f.sections()
	names := []string{"steps", "rank_jitter"}
	for _, s := range sections {
		names = append(names, s.name)
	}
	nodes, err := r.mapping(n, names)
	if err != nil {
		return err
	}
	for _, s := range sections {
		v := nodes[s.name]
		if v == nil && s.needed {
			return r.fail(n, "%s is missing", s.name)
		}
		if v != nil {
			if err := r.section(v, s.name, s.keys); err != nil {
				return err
			}
		}
	}
	if v := nodes["rank_jitter"]; v != nil {
		if err := r.value(v, number("rank_jitter", &f.Jitter, 1, 0, 1)); err != nil {
			return err
		}
	}
	steps := nodes["steps"]
	if steps == nil || steps.Kind != yaml.SequenceNode || len(steps.Content) == 0 {
		return r.fail(n, "steps is missing: a list of measured steps, each with tokens and the times of its phases")
	}
	for _, v := range steps.Content {
		var p Phases
		if err := r.section(v, "steps", p.keys()); err != nil {
			return err
		}
		if p.StudentForward+p.StudentBackward == 0 {
			return r.fail(v, "the student takes no time")
		}
		f.Steps = append(f.Steps, p)
	}
	slices.SortFunc(f.Steps, func(a, b Phases) int { return int(math.Copysign(1, b.Tokens-a.Tokens)) })
	return nil
}

// mapping returns the values of a mapping by their keys, which are known ones.
func (r reader) mapping(n *yaml.Node, names []string) (map[string]*yaml.Node, error) {
	if n.Kind != yaml.MappingNode {
		return nil, r.fail(n, "a mapping is needed, of %s", strings.Join(names, ", "))
	}
	all := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if !slices.Contains(names, k.Value) || k.Kind != yaml.ScalarNode {
			err := r.fail(k, "unknown key %q", k.Value)
			if near := fault.Nearest(k.Value, names); near != "" {
				return nil, err.WithHint("did you mean %s?", near)
			}
			return nil, err.WithHint("known are %s", strings.Join(names, ", "))
		}
		if all[k.Value] != nil {
			return nil, r.fail(k, "%s given twice", k.Value)
		}
		all[k.Value] = v
	}
	return all, nil
}

// section reads a mapping of keys.
func (r reader) section(n *yaml.Node, name string, keys []key) error {
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
	}
	nodes, err := r.mapping(n, names)
	if err != nil {
		return err
	}
	for _, k := range keys {
		switch v := nodes[k.name]; {
		case v == nil && k.needed:
			return r.fail(n, "%s has no %s", name, k.name)
		case v != nil:
			if err := r.value(v, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// value reads a number, or true and false.
func (r reader) value(n *yaml.Node, k key) error {
	if k.flag != nil {
		if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" {
			return r.fail(n, "%s: %q is neither true nor false", k.name, n.Value)
		}
		*k.flag = n.Value == "true"
		return nil
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	kind := "a number"
	if k.whole {
		kind = "a whole number"
	}
	if n.Kind != yaml.ScalarNode || err != nil || !(v >= k.min && v <= k.max) || k.whole && v != math.Trunc(v) {
		return r.fail(n, "%s: %q is not %s from %s to %s", k.name, n.Value, kind, short(k.min), short(k.max))
	}
	k.set(v * k.unit)
	return nil
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// check looks for what contradicts itself.
func (r reader) check(f *File, n *yaml.Node) error {
	largest := f.Steps[0]
	what := ""
	switch {
	case f.Gradients.Last > f.Gradients.Bytes:
		what = "gradients: last_bytes are more than bytes"
	case f.Gradients.Zero1 && f.Gradients.Weights == 0:
		what = "gradients: zero1 needs weight_bytes, which are gathered after the update"
	case !f.Gradients.Zero1 && f.Gradients.Weights > 0:
		what = "gradients: weight_bytes have no effect without zero1"
	case f.Failures.GPUHours > 0 && f.Checkpoints == (Checkpoints{Keep: 2}):
		what = "failures need checkpoints: a run without them begins anew after each"
	case f.Checkpoints.Every == 0 && f.Checkpoints.Pause == 0 && f.Failures.GPUHours > 0:
		what = "checkpoints: without every_minutes the interval follows from pause_s, which is 0"
	case math.Mod(largest.Tokens, f.Job.RowTokens) != 0:
		what = fmt.Sprintf("steps: %.0f tokens are not whole rows of row_tokens %.0f", largest.Tokens, f.Job.RowTokens)
	case largest.Teacher == 0 && (f.Cache.PerToken > 0 || f.Pool.Ahead > 0):
		what = "cache and pool need a teacher: teacher_ms is 0"
	}
	for i := 1; i < len(f.Steps); i++ {
		if f.Steps[i].Tokens == f.Steps[i-1].Tokens {
			what = fmt.Sprintf("steps: %.0f tokens stand there twice", f.Steps[i].Tokens)
		}
	}
	if what == "" {
		return nil
	}
	return r.fail(n, "%s", what)
}
