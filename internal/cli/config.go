package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"apr/internal/fault"
)

// Nested says which option a dotted key of a foreign configuration form stands for.
type Nested struct {
	Option string
	Value  string // if not empty, the key's presence sets Option to this, whatever the key's own value
}

// maxConfig bounds a configuration file.
const maxConfig = 1 << 20

// configFile is a parsed configuration: one entry for each option that the file names.
type configFile struct {
	path, dir string
	values    map[string]configValue // by option name
}

// configValue is the text of one key and its place.
type configValue struct {
	texts        []string
	key          string // as written, dotted
	line, column int
}

// configReader walks the tree of one file.
type configReader struct {
	file   *configFile
	opts   []Option
	nested map[string][]Nested
	advice map[string]string
}

// readConfig reads the YAML file at path against the option table opts of c. Keys are option names with _ for -, or the dotted
// keys of c.Nested written as mappings. Unknown and repeated keys and values of another type are usage errors with line
// and column.
func readConfig(path string, opts []Option, c *Command) (*configFile, error) {
	data, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	r := configReader{&configFile{path: path, dir: filepath.Dir(path), values: map[string]configValue{}}, opts, c.Nested, c.Advice}
	var doc yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return r.file, nil // nothing but comments
	case err != nil:
		return nil, fault.In(fault.Usage, path, "not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fault.In(fault.Usage, path, "holds more than one YAML document")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, r.fail(root, "", "the file must be a mapping of option names to values")
	}
	return r.file, r.mapping("", root)
}

// readSmall reads a regular file of at most maxConfig bytes.
func readSmall(path string) ([]byte, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fault.In(fault.NotFound, path, "configuration file not found")
	case err != nil:
		return nil, fault.In(fault.IO, path, "cannot read").Because(err)
	case !st.Mode().IsRegular():
		return nil, fault.In(fault.NotFound, path, "not a file")
	case st.Size() > maxConfig:
		return nil, fault.In(fault.Usage, path, "%d bytes, more than a configuration may have (%d)", st.Size(), maxConfig)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot read").Because(err)
	}
	return data, nil
}

func (r *configReader) fail(n *yaml.Node, key, format string, args ...any) *fault.Error {
	place := fmt.Sprintf("line %d, column %d", n.Line, n.Column)
	if key != "" {
		place += ", " + key
	}
	return fault.In(fault.Usage, r.file.path, format, args...).At("%s", place)
}

// mapping reads one level; prefix is "" or "outer.".
func (r *configReader) mapping(prefix string, n *yaml.Node) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" {
			return r.fail(k, "", "keys must be plain names")
		}
		if seen[key] {
			return r.fail(k, key, "key given twice")
		}
		seen[key] = true
		err := r.entry(key, k, v)
		if f, ok := err.(*fault.Error); ok && r.unread(key, v) {
			return f.WithHint("%s", strings.TrimPrefix(f.Hint+r.otherUnknown(prefix, n.Content[i+2:]), "; "))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unread reports whether nothing is known of a key.
func (r *configReader) unread(key string, v *yaml.Node) bool {
	_, nested := r.nested[key]
	return r.option(key) == nil && !nested && !(v.Kind == yaml.MappingNode && r.opensSection(key))
}

// otherUnknown lists the unknown keys among the rest of a mapping with their names here, so that a file of another
// program is rewritten at once and not key by key; "" if there is none.
func (r *configReader) otherUnknown(prefix string, rest []*yaml.Node) string {
	var all []string
	for i := 0; i+1 < len(rest); i += 2 {
		key := prefix + rest[i].Value
		if rest[i].Kind != yaml.ScalarNode || !r.unread(key, rest[i+1]) {
			continue
		}
		if name, _ := r.meant(key); name != "" {
			key += " (" + name + ")"
		}
		all = append(all, key)
	}
	if len(all) == 0 {
		return ""
	}
	return "; also unknown: " + strings.Join(all, ", ")
}

// entry reads one key and its value.
func (r *configReader) entry(key string, k, v *yaml.Node) error {
	if v.Kind == yaml.AliasNode {
		return r.fail(v, key, "YAML aliases are not read")
	}
	if v.Kind == yaml.MappingNode {
		if r.opensSection(key) {
			return r.mapping(key+".", v)
		}
		if r.option(key) != nil {
			return r.fail(v, key, "takes a value, not a mapping")
		}
		return r.unknown(key, k)
	}
	targets, ok := r.nested[key]
	if !ok {
		o := r.option(key)
		if o == nil {
			return r.unknown(key, k)
		}
		targets = []Nested{{Option: o.Name}}
	}
	for _, t := range targets {
		if err := r.store(t, key, k, v); err != nil {
			return err
		}
	}
	return nil
}

// option returns the option with configuration key key, or nil; names never hold dots, so nested keys find none.
func (r *configReader) option(key string) *Option {
	for i := range r.opts {
		o := &r.opts[i]
		if o.EnvOnly {
			continue
		}
		if o.key() == key || slices.ContainsFunc(o.Aliases, func(a string) bool { return strings.ReplaceAll(a, "-", "_") == key }) {
			return o
		}
	}
	return nil
}

// opensSection reports whether some nested key begins with key and a dot.
func (r *configReader) opensSection(key string) bool {
	for k := range r.nested {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

// unknown names the nearest key.
func (r *configReader) unknown(key string, k *yaml.Node) error {
	err := r.fail(k, "", "unknown key %q", key)
	switch name, advice := r.meant(key); {
	case advice != "":
		return err.WithHint("%s", advice)
	case name != "":
		return err.WithHint("did you mean %q?", name)
	}
	return err
}

// meant returns the key that an unknown one probably stands for, or what to do instead; "" for both if nothing is
// like it. Inside a section, an option of that very name is meant: it stands at the top of a file.
func (r *configReader) meant(key string) (name, advice string) {
	section, last, nested := key, "", false
	if i := strings.LastIndexByte(key, '.'); i >= 0 {
		section, last, nested = key[:i], key[i+1:], true
	}
	if nested && r.option(last) != nil {
		return "", fmt.Sprintf("%q is known outside of %s, at the beginning of a line", last, section)
	}
	var known []string
	for i := range r.opts {
		o := &r.opts[i]
		if o.EnvOnly {
			continue
		}
		if slices.Contains(o.Foreign, spelled(key)) {
			return o.key(), ""
		}
		known = append(known, o.key())
	}
	if text := r.advice[spelled(key)]; text != "" {
		return "", text
	}
	return fault.Nearest(key, append(known, sortedKeys(r.nested)...)), ""
}

// store keeps the value of key for option t; two keys that mean one option are an error.
func (r *configReader) store(t Nested, key string, k, v *yaml.Node) error {
	if old, ok := r.file.values[t.Option]; ok && t.Value == "" {
		return r.fail(k, key, "sets the same option as %s in line %d", old.key, old.line)
	}
	val := configValue{key: key, line: k.Line, column: k.Column}
	if t.Value != "" {
		val.texts = []string{t.Value}
		r.file.values[t.Option] = val
		return nil
	}
	texts, err := r.texts(t.Option, key, v)
	if err != nil {
		return err
	}
	val.texts = texts
	r.file.values[t.Option] = val
	return nil
}

// texts turns a YAML value into the texts of an option, checking its type.
func (r *configReader) texts(option, key string, v *yaml.Node) ([]string, error) {
	i := slices.IndexFunc(r.opts, func(o Option) bool { return o.Name == option })
	if i < 0 {
		panic("cli: nested key " + key + " stands for unknown option " + option)
	}
	value := r.opts[i].Value
	scalar := func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || !value.accepts(n.Tag) {
			return r.fail(n, key, "%s is expected, not %s", expected(value), describe(n))
		}
		return nil
	}
	if v.Kind != yaml.SequenceNode {
		return []string{v.Value}, scalar(v)
	}
	if _, ok := value.(list); !ok {
		return nil, r.fail(v, key, "takes one value, not a list")
	}
	if len(v.Content) == 0 {
		return nil, r.fail(v, key, "the list is empty")
	}
	var texts []string
	for _, n := range v.Content {
		if r.opts[i].Pairs && n.Kind == yaml.SequenceNode && len(n.Content) == 2 {
			if err := errors.Join(scalar(n.Content[0]), scalar(n.Content[1])); err != nil {
				return nil, err
			}
			texts = append(texts, n.Content[0].Value+":"+n.Content[1].Value)
			continue
		}
		if err := scalar(n); err != nil {
			return nil, err
		}
		texts = append(texts, n.Value)
	}
	return texts, nil
}

// describe names what a YAML node is.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case n.Tag == "!!null":
		return "nothing (null)"
	case n.Tag == "!!str":
		return fmt.Sprintf("the text %q", n.Value)
	case n.Tag == "!!float":
		return fmt.Sprintf("the fraction %q", n.Value)
	}
	return fmt.Sprintf("%q", n.Value)
}
