// Package manifest describes the compiled kernels of device/vulkan/kernel: what `make kernels` writes beside the
// SPIR-V, and how a .wgsl file becomes the source of a kernel.
//
// A kernel's file declares its bindings and arguments in one line,
//
//	//apr:kernel y:rw x:r ids:r:i32 | rows:u32 eps:f32
//
// from which Source makes the declarations: for each binding NAME a storage array of 32-bit elements (f32 unless
// the line says u32 or i32), and push constants args with groups (the group behind the last one), first (the group
// that a dispatch begins with), NAME_at and NAME_row of each binding (the place of its first element and the
// elements between two rows), then the arguments. The file has a function
// run(group, lane), which each of 64 lanes, or as many as a line //apr:lanes N says, of `groups` thread groups
// calls. Lines //apr:include NAME ... put part_NAME.wgsl or NAME.wgsl before it, and a line //apr:variants A B
// makes kernels FILE_A and FILE_B, with $variant in included names replaced.
package manifest

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Manifest is spirv/manifest.json.
type Manifest struct {
	Compiler string   `json:"compiler"`
	Packed   string   `json:"packed_sha256"` // of the file with all modules
	Kernels  []Kernel `json:"kernels"`       // in order of name
}

// Kernel is one compiled module.
type Kernel struct {
	Name     string   `json:"name"`
	Bindings []string `json:"bindings"`
	Args     []string `json:"args"`          // what follows groups and the places of the bindings
	Lanes    int      `json:"lanes"`         // of a group
	Source   string   `json:"source_sha256"` // of the whole WGSL text
	Hash     string   `json:"spirv_sha256"`
	Bytes    int      `json:"spirv_bytes"`
}

// Word returns the place of an argument among the push constants.
func (k *Kernel) Word(arg string) int { return 2 + 2*len(k.Bindings) + slices.Index(k.Args, arg) }

// Text is a kernel's WGSL.
type Text struct {
	Kernel
	Source string
}

var (
	declaration = regexp.MustCompile(`(?m)^//apr:kernel (.*)\n`)
	variants    = regexp.MustCompile(`(?m)^//apr:variants (.*)\n`)
	lanes       = regexp.MustCompile(`(?m)^//apr:lanes (64|128|256)\n`)
	includes    = regexp.MustCompile(`(?m)^//apr:include (.*)\n`)
)

// Lanes is the size of a thread group, unless its kernel says otherwise.
const Lanes = 64

// Sources returns the texts of all kernels of a folder, in order of name.
func Sources(dir fs.FS) (all []Text, err error) {
	files, err := fs.Glob(dir, "*.wgsl")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		if !declaration.Match(text) {
			continue // a part
		}
		name := strings.TrimSuffix(file, ".wgsl")
		kinds := []string{""}
		if m := variants.FindStringSubmatch(string(text)); m != nil {
			kinds = strings.Fields(m[1])
		}
		for _, kind := range kinds {
			t, err := source(dir, name, kind, string(text))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Text) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// source makes the text of one variant of a kernel.
func source(dir fs.FS, name, kind, text string) (t Text, err error) {
	lines := declaration.FindAllStringSubmatch(text, -1)
	if len(lines) != 1 {
		return t, fmt.Errorf("has %d lines //apr:kernel, wants one", len(lines))
	}
	t.Name = name
	if kind != "" {
		t.Name += "_" + kind
	}
	t.Lanes = Lanes
	if m := lanes.FindStringSubmatch(text); m != nil {
		t.Lanes, _ = strconv.Atoi(m[1]) // a number, as the expression says
	}
	var b strings.Builder
	if err := t.declare(&b, lines[0][1]); err != nil {
		return t, err
	}
	seen := map[string]bool{}
	if err := include(&b, dir, text, kind, seen); err != nil {
		return t, err
	}
	b.WriteString(strip(text))
	fmt.Fprintf(&b, `@compute @workgroup_size(%d)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) at: vec3<u32>,
  @builtin(num_workgroups) of: vec3<u32>) {
  let group = args.first + at.x + at.y * of.x;
  if (group < args.groups) { run(group, lane); }
}
`, t.Lanes)
	t.Source = b.String()
	return t, nil
}

// declare writes the bindings and the push constants.
func (t *Text) declare(b *strings.Builder, line string) error {
	bindings, args, _ := strings.Cut(line, "|")
	var fields, storage strings.Builder
	for i, field := range strings.Fields(bindings) {
		name, rest, _ := strings.Cut(field, ":")
		access, typ, typed := strings.Cut(rest, ":")
		if !typed {
			typ = "f32"
		}
		mode, ok := map[string]string{"r": "read", "rw": "read_write"}[access]
		if !ok {
			return fmt.Errorf("//apr:kernel: binding %q is neither r nor rw", field)
		}
		t.Bindings = append(t.Bindings, name)
		fmt.Fprintf(&fields, "  %s_at: u32,\n  %s_row: u32,\n", name, name)
		fmt.Fprintf(&storage, "@group(0) @binding(%d) var<storage, %s> %s: array<%s>;\n", i, mode, name, typ)
	}
	for _, field := range strings.Fields(args) {
		name, typ, ok := strings.Cut(field, ":")
		if !ok {
			return fmt.Errorf("//apr:kernel: argument %q has no type", field)
		}
		t.Args = append(t.Args, name)
		fmt.Fprintf(&fields, "  %s: %s,\n", name, typ)
	}
	if n := 2 + 2*len(t.Bindings) + len(t.Args); n > 32 || len(t.Bindings) == 0 || len(t.Bindings) > 10 {
		return fmt.Errorf("//apr:kernel: %d bindings and %d words, at most 10 and 32", len(t.Bindings), n)
	}
	fmt.Fprintf(b, "struct Args {\n  groups: u32,\n  first: u32,\n%s}\nvar<push_constant> args: Args;\n%s",
		fields.String(), storage.String())
	return nil
}

// include writes the parts that a text names, each once.
func include(b *strings.Builder, dir fs.FS, text, kind string, seen map[string]bool) error {
	for _, line := range includes.FindAllStringSubmatch(text, -1) {
		for _, name := range strings.Fields(strings.ReplaceAll(line[1], "$variant", kind)) {
			if seen[name] {
				continue
			}
			seen[name] = true
			part, err := fs.ReadFile(dir, "part_"+name+".wgsl")
			if err != nil {
				part, err = fs.ReadFile(dir, name+".wgsl")
			}
			if err != nil {
				return fmt.Errorf("//apr:include: there is neither part_%s.wgsl nor %s.wgsl", name, name)
			}
			if err := include(b, dir, string(part), kind, seen); err != nil {
				return err
			}
			b.WriteString(strip(string(part)))
		}
	}
	return nil
}

// strip removes the directives.
func strip(text string) string {
	for _, directive := range []*regexp.Regexp{declaration, variants, lanes, includes} {
		text = directive.ReplaceAllString(text, "")
	}
	return text
}
