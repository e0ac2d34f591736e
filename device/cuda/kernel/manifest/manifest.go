// Package manifest describes the compiled kernels of device/cuda/kernel: what `make kernels` writes beside the PTX and the
// host reads to know what a module is for. No code looks at the names of modules or kernels for that.
//
// A .cu file declares its module in one line,
//
//	//apr:module target=sm_90a types=bf16 roles=attention,train
//
// with the keys of Declare. The compiler's hashes and the entry points come from what it made of the file.
package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"apr/tensor"
)

// Role says when a step needs a module; one of several roles needs all of them.
type Role string

// The roles. A module without any is needed always.
const (
	Train        Role = "train"          // a loss, a gradient or an update
	Attention    Role = "attention"      // attention of certain heads: see kernel.AttentionModules
	Products     Role = "products"       // products where cublasLt is missing or declines
	Blocks       Role = "blocks"         // matrices in quantised blocks are expanded
	FewRows      Role = "few-rows"       // products of a few rows: generation
	FewRowBlocks Role = "few-row-blocks" // products of a few rows with matrices in blocks
	Tiles        Role = "tiles"          // products of up to 64 rows with matrices in tiles
	FP8          Role = "fp8"            // products in 8-bit floats
	Optional     Role = "optional"       // what some models need: see modulesOf of package cuda
)

// The targets of compilers: BaseTarget runs on compute capability 8.0 and all later ones, Hopper on 9.0 alone.
const (
	BaseTarget = "sm_80"
	Hopper     = "sm_90a"
)

// Extension ends the names of files with PTX, each a stream of Pack.
const Extension = ".ptx.br"

// Manifest is ptx/manifest.json.
type Manifest struct {
	Compiler string   `json:"compiler"`
	Headers  string   `json:"headers_sha256"` // of all .cuh files, in order of name
	Modules  []Module `json:"modules"`        // in order of name
}

// Module is a compiled .cu file.
type Module struct {
	Name string `json:"name"` // the file's, without extension
	Declaration
	Flags   string            `json:"flags"`
	Source  string            `json:"source_sha256"`
	PTXHash string            `json:"ptx_sha256"`      // of the text; what is stored is compressed
	Bytes   int               `json:"ptx_bytes"`       // of the text
	Kernels []string          `json:"kernels"`         // entry points
	Twins   map[string]string `json:"twins,omitempty"` // kernel of another module → the kernel here that stands in for it
}

// Declaration is what a .cu file says about its module.
type Declaration struct {
	Target string   `json:"target"`
	Types  []string `json:"types"` // element types of activations that it has kernels for
	Roles  []Role   `json:"roles,omitempty"`
	// Emulated says that a module for one target uses no instruction that the emulator lacks: it runs wherever the compute
	// capability is right.
	Emulated bool `json:"emulated,omitempty"`
	// twinSuffix ends the names of kernels that stand in for those of other modules.
	twinSuffix string
}

// Has reports whether the module has a role.
func (d *Declaration) Has(r Role) bool { return slices.Contains(d.Roles, r) }

// Serves reports whether the module has kernels for activations of a type.
func (d *Declaration) Serves(t tensor.DType) bool { return slices.Contains(d.Types, t.String()) }

var declaration = regexp.MustCompile(`(?m)^//apr:module (.*)$`)

// Declare reads the declaration of a .cu file. Keys: target, types and roles (lists with commas), emulated (yes), and twins,
// which is how the names of kernels end that stand in for those of other modules. target and types must be there.
func Declare(source string) (d Declaration, err error) {
	lines := declaration.FindAllStringSubmatch(source, -1)
	if len(lines) != 1 {
		return d, fmt.Errorf("has %d lines //apr:module, wants one", len(lines))
	}
	for _, field := range strings.Fields(lines[0][1]) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "target":
			d.Target = value
		case "types":
			d.Types = strings.Split(value, ",")
		case "roles":
			for _, r := range strings.Split(value, ",") {
				d.Roles = append(d.Roles, Role(r))
			}
		case "emulated":
			d.Emulated = value == "yes"
		case "twins":
			d.twinSuffix = value
		default:
			return d, fmt.Errorf("//apr:module has no key %q", key)
		}
	}
	return d, d.check()
}

func (d *Declaration) check() error {
	if d.Target != BaseTarget && d.Target != Hopper {
		return fmt.Errorf("//apr:module: target %q is neither %s nor %s", d.Target, BaseTarget, Hopper)
	}
	if len(d.Types) == 0 {
		return fmt.Errorf("//apr:module: types is missing")
	}
	for _, t := range d.Types {
		if t != tensor.F32.String() && t != tensor.BF16.String() {
			return fmt.Errorf("//apr:module: type %q is neither f32 nor bf16", t)
		}
	}
	for _, r := range d.Roles {
		if !slices.Contains([]Role{Train, Attention, Products, Blocks, FewRows, FewRowBlocks, Tiles, FP8, Optional}, r) {
			return fmt.Errorf("//apr:module: there is no role %q", r)
		}
	}
	return nil
}

// Twin returns the name of the kernel of another module that a kernel stands in for, or none.
func (d *Declaration) Twin(kernel string) (of string, ok bool) {
	if d.twinSuffix == "" {
		return "", false
	}
	return strings.CutSuffix(kernel, d.twinSuffix)
}
