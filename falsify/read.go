package falsify

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// Bounds of a file.
const (
	maxFile  = 1 << 20 // bytes
	maxNodes = 200_000 // values, with aliases expanded
	maxDepth = 64      // levels
)

// Rules is a rule set. A later one knows every key and rule of those before it.
type Rules int

// The rule sets.
const (
	Earlier Rules = iota // aprender's format, before SCHEMA-018
	Later                // all of aprender's format
	Ours                 // Later, and that claims can be run
)

// ParseRules reads the name of a rule set: earlier, later or ours.
func ParseRules(name string) (Rules, error) {
	if i := slices.Index([]string{"earlier", "later", "ours"}, name); i >= 0 {
		return Rules(i), nil
	}
	return 0, fault.New(fault.Usage, "unknown rule set %q (known: ours, later, earlier)", name)
}

// Document is a contract with what its file said: places for errors, and keys that no field holds.
type Document struct {
	Contract *Contract
	Rules    Rules
	SHA256   string // of the text, in hexadecimal

	root    *yaml.Node
	unknown []finding
	results []finding
	doubles []finding // keys given twice
}

// Read reads and decodes the contract in a file by the keys of a rule set. A file that is missing is a fault of kind
// NotFound; one that is not a contract of kind Vacuous, with line and column.
func Read(path string, rules Rules) (*Document, error) {
	text, err := readfile.String(path, maxFile)
	if fault.KindOf(err) == fault.Format {
		return nil, parseError(path, 0, 0, fmt.Sprintf("longer than a contract may be (%d bytes)", maxFile))
	}
	if err != nil {
		return nil, err
	}
	return Parse(path, []byte(text), rules)
}

// Parse decodes a contract from memory; path names it in errors, and its id is the base name without extension.
func Parse(path string, text []byte, rules Rules) (*Document, error) {
	root, err := parseYAML(path, text)
	if err != nil {
		return nil, err
	}
	base := filepath.Base(path)
	c := &Contract{ID: strings.TrimSuffix(base, filepath.Ext(base)), Path: path}
	d := decoder{file: path, rules: rules}
	if root, err = d.resolve(root, nil); err != nil {
		return nil, err
	}
	if err := d.object(root, nil, reflect.ValueOf(c).Elem()); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	doc := &Document{Contract: c, Rules: rules, SHA256: hex.EncodeToString(sum[:]), root: root, unknown: d.unknown, results: d.results}
	s := scanner{decoder: &d}
	if err := s.scan(root, nil); err != nil {
		return nil, err
	}
	doc.doubles = s.doubles
	return doc, nil
}

// parseYAML returns the root of the only document in text.
func parseYAML(path string, text []byte) (root *yaml.Node, err error) {
	if len(text) > maxFile {
		return nil, parseError(path, 0, 0, fmt.Sprintf("longer than a contract may be (%d bytes)", maxFile))
	}
	defer func() { // the library panics where its scanner and its parser disagree; a file must not end the program
		if r := recover(); r != nil {
			root, err = nil, parseError(path, 0, 0, fmt.Sprintf("not YAML: %v", r))
		}
	}()
	var doc yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return nil, parseError(path, 1, 1, "the file is empty")
	case err != nil:
		return nil, notYAML(path, err)
	}
	switch err := dec.Decode(new(yaml.Node)); {
	case err == nil:
		return nil, parseError(path, 0, 0, "holds more than one YAML document")
	case !errors.Is(err, io.EOF):
		return nil, notYAML(path, err)
	}
	return doc.Content[0], nil
}

// notYAML turns an error of the library, "yaml: line 3: what", into a parse error. It counts no columns.
func notYAML(path string, err error) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	e := parseError(path, 0, 0, "not YAML: "+clip(msg))
	var line int
	if _, scanErr := fmt.Sscanf(msg, "line %d:", &line); scanErr == nil {
		_, rest, _ := strings.Cut(msg, ": ")
		e = parseError(path, 0, 0, "not YAML: "+clip(rest)).At("line %d", line)
	}
	return e
}

// scanner looks at the whole file, also at what no field holds.
type scanner struct {
	decoder *decoder
	doubles []finding
}

// scan finds keys given twice in one mapping. Aliases are not followed: what they stand for is scanned where it is.
func (s *scanner) scan(n *yaml.Node, at path) error {
	if len(at) > maxDepth {
		return s.decoder.fail(n, nil, "nested deeper than %d levels", maxDepth)
	}
	if n.Kind != yaml.MappingNode {
		for i, e := range n.Content {
			if err := s.scan(e, at.with(i)); err != nil {
				return err
			}
		}
		return nil
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind == yaml.ScalarNode {
			if id := k.Tag + " " + k.Value; seen[id] {
				s.doubles = append(s.doubles, finding{at: at.with(k.Value), node: n.Content[i]})
			} else {
				seen[id] = true
			}
		}
		if err := s.scan(n.Content[i+1], at.with(k.Value)); err != nil {
			return err
		}
	}
	return nil
}

// aliases are the second names of keys; tests alone have any.
var aliases = func() map[string]string {
	all := map[string]string{}
	for _, k := range keysOf(reflect.TypeFor[Test]()) {
		all[k.name] = k.alias
	}
	return all
}()

// at returns the node at a path, or the one nearest to it on the way there.
func (d *Document) at(p path) *yaml.Node {
	n := d.root
	for _, step := range p {
		next := child(n, step)
		if name, ok := step.(string); ok && next == nil && aliases[name] != "" {
			next = child(n, aliases[name])
		}
		if next == nil {
			break
		}
		n = next
	}
	return n
}

// child returns the value below n at one step, nil if there is none. An alias stands for its value, but a value behind
// one is reported where the alias is.
func child(n *yaml.Node, step any) *yaml.Node {
	for range maxDepth {
		if n.Kind != yaml.AliasNode {
			break
		}
		n = n.Alias
	}
	switch s := step.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && s < len(n.Content) {
			return n.Content[s]
		}
	case string:
		if n.Kind != yaml.MappingNode {
			return nil
		}
		for i := len(n.Content) - 2; i >= 0; i -= 2 { // the last counts
			if n.Content[i].Value == s {
				return n.Content[i+1]
			}
		}
	}
	return nil
}

// Files returns the contracts that a path names: the file itself, or all files ending in .yaml or .yml of a directory,
// by name. An empty directory is a fault of kind Vacuous: nothing was validated.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, readfile.Fault(path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, readfile.Fault(path, err)
	}
	var files []string
	for _, e := range entries {
		if name := e.Name(); isContractName(name) && e.Type()&fs.ModeDir == 0 {
			files = append(files, filepath.Join(path, name))
		}
	}
	if len(files) == 0 {
		return nil, fault.In(fault.Vacuous, path, "no contract found").WithHint("contracts are files ending in .yaml").WithID("E-CONTRACT-002")
	}
	return files, nil
}

func isContractName(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".")
}
