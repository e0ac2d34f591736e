// Package adapter reads, writes and merges low-rank adapters (LoRA; Hu et al. 2021, arXiv:2106.09685) of models:
//
//	y = x·Wᵀ + b + scale·(x·Aᵀ)·Bᵀ, so that the merged matrix is W + scale·B·A
//
// An adapter is a folder as PEFT writes it, or a GGUF file as llama.cpp's converter does. In memory it is a list of modules by
// the slots of arch, whatever tensors a file has: rows of B stand in the order of the slot.
//
// Caveats. Adapters that change more than matrices (DoRA, biases, further trained modules, parameters of experts) are refused by
// name. An adapter says which model it is for by the values of its norms, which no quantisation changes; PEFT records none, and then
// shapes alone are compared.
package adapter

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// Module is the adapter of one matrix [out, in].
type Module struct {
	Slot  arch.Slot // of the matrix
	Rank  int
	Scale float64   // lora_alpha/r, or lora_alpha/√r
	A, B  []float32 // [Rank, in], [out, Rank]
}

// Adapter is a set of modules in the order of the model's slots.
type Adapter struct {
	Base    string // path or repository of the model that it was trained on, as it was recorded
	Norms   string // identity of that model, see Identity; empty: not recorded
	Times   string // how often that model holds the adapter, see holding; empty: not recorded
	Dropout float64
	Modules []Module

	Warnings []string // one line for each doubtful property of the file
	folder   string   // of PEFT; "": a file
	doubts   []string // those found in the bytes of A and B; Open puts them into Warnings
}

// The files of a folder, as PEFT names them.
const (
	configName  = "adapter_config.json"
	weightsName = "adapter_model.safetensors"
)

// headName is the slot of the output matrix.
const headName = "lm_head.weight"

// Slots returns the matrices of a model that can have an adapter, in order: those that stand alone, and the output matrix, also of a
// model whose head is tied.
func Slots(c arch.Config) (all []arch.Slot) {
	if c.Tied {
		c = Untied(c)
	}
	for _, s := range arch.Slots(c) {
		if len(s.Shape) == 2 && !s.Bias && !s.Fixed && target(s) != "" {
			all = append(all, s)
		}
	}
	return all
}

// Untied returns a description whose output matrix is its own.
func Untied(c arch.Config) arch.Config {
	c.Tied = false
	return c
}

// Targets are the names of matrices that adapters can be asked for.
func Targets() []string { return []string{"q", "k", "v", "o", "gate", "up", "down", "head"} }

// target returns the name of the targets that a slot belongs to; "": none.
func target(s arch.Slot) string {
	switch s.Role {
	case arch.Q, arch.K, arch.V, arch.Gate, arch.Up, arch.Down:
		return string(s.Role)
	case arch.O:
		if strings.HasSuffix(s.Name, "self_attn.o_proj.weight") {
			return "o"
		}
	case arch.Head:
		return "head"
	}
	return ""
}

// New returns the adapter of a new student, its A and B not made yet: rank r and scale alpha/r on every matrix of the targets. A
// target that the model does not have is a fault.
func New(c arch.Config, targets []string, rank int, alpha, dropout float64) (*Adapter, error) {
	if rank < 1 {
		return nil, fault.In(fault.Usage, "--lora-rank", "%d is not a rank: adapters need 1 or more", rank)
	}
	a, found := &Adapter{Dropout: dropout}, map[string]bool{}
	for _, t := range targets {
		if !slices.Contains(Targets(), t) {
			return nil, fault.In(fault.Usage, "--lora-targets", "%q is no matrix of a model; there are %s", t, strings.Join(Targets(), ", ")).
				WithHint("did you mean %q?", cmp.Or(fault.Nearest(t, Targets()), "q"))
		}
	}
	for _, s := range Slots(c) {
		t := target(s)
		if !slices.Contains(targets, t) {
			continue
		}
		found[t] = true
		if most := min(s.Shape[0], s.Shape[1]); rank > most {
			return nil, fault.In(fault.Usage, "--lora-rank", "%d exceeds %d, the rank that %s of shape %v can have", rank, most, s.Name, s.Shape)
		}
		a.Modules = append(a.Modules, Module{Slot: s, Rank: rank, Scale: alpha / float64(rank)})
	}
	for _, t := range targets {
		if !found[t] {
			return nil, fault.In(fault.Unavailable, "--lora-targets", "this %s model has no matrix %q outside its experts", c.Family, t).
				WithHint("leave %s out of --lora-targets", t)
		}
	}
	return a, nil
}

// Parameters returns the number of values of all A and B.
func (a *Adapter) Parameters() (n int64) {
	for _, m := range a.Modules {
		n += int64(m.Rank) * int64(m.Slot.Shape[0]+m.Slot.Shape[1])
	}
	return n
}

// Names returns the names of a module's A and B, as PEFT has them without its prefix where the matrix stands alone.
func (m Module) Names() (a, b string) {
	stem := strings.TrimSuffix(m.Slot.Name, "weight")
	return stem + "lora_A.weight", stem + "lora_B.weight"
}

// head reports whether the output matrix has an adapter.
func (a *Adapter) head() bool {
	return slices.ContainsFunc(a.Modules, func(m Module) bool { return m.Slot.Name == headName })
}

// Identity returns what tells a model from another whatever type its matrices are stored in: SHA-256 over name and values, as
// bfloat16, of each norm in the order of the slots.
func Identity(f *modelfile.Files) (string, error) {
	h := sha256.New()
	for _, s := range arch.Slots(f.Config) {
		if s.Role != arch.Norm {
			continue
		}
		values, err := f.ReadFloat32(s.Name)
		if err != nil {
			return "", err
		}
		raw := make([]byte, 2*len(values))
		tensor.Narrow(raw, values, tensor.BF16)
		fmt.Fprintf(h, "%s\x00%d\x00", s.Name, len(values))
		h.Write(raw)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Open reads the adapter of the folder or file path for the model f: a folder of PEFT or a GGUF file. One that is for another
// model, by shape or by recorded identity, is refused; so is one with values that no trained model has, unless f allows
// odd ones.
func Open(path string, f *modelfile.Files) (*Adapter, error) {
	a, err := read(path, f.Config, f.AllowOdd)
	if err != nil {
		return nil, err
	}
	if len(a.Modules) == 0 {
		return nil, fault.In(fault.Format, path, "holds no adapter").WithID("E-ADAPTER-001")
	}
	order := map[string]int{}
	for i, s := range Slots(f.Config) {
		order[s.Name] = i
	}
	slices.SortFunc(a.Modules, func(x, y Module) int { return cmp.Compare(order[x.Slot.Name], order[y.Slot.Name]) })
	if err := a.judge(path, f); err != nil {
		return nil, err
	}
	if tok, err := f.Tokenizer(); err == nil && a.folder != "" { // a model without one is told where it is needed
		a.doubts = append(a.doubts, tok.BesideAdapter(a.folder)...)
	}
	a.Warnings = append(a.doubts, a.Warnings...)
	if a.Norms == "" {
		return a, nil
	}
	is, err := Identity(f)
	if err != nil {
		return nil, err
	}
	if is != a.Norms {
		return nil, fault.In(fault.Invalid, path, "is an adapter of another model (%s): the norms of %s are not those that it was trained with", cmp.Or(a.Base, "of no name"), f.Path).
			WithHint("give the model that the adapter was trained on, in any type").WithID("E-ADAPTER-002")
	}
	return a, nil
}

// read reads a folder or a file. Where odd, values that no trained model has are only told.
func read(path string, c arch.Config, odd bool) (*Adapter, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fault.In(fault.NotFound, path, "is no adapter").Because(err).WithHint("an adapter is a folder with %s, or a .gguf file", configName)
	}
	if st.IsDir() {
		return readPEFT(path, c, odd)
	}
	if filepath.Base(path) == configName || filepath.Base(path) == weightsName {
		return readPEFT(filepath.Dir(path), c, odd)
	}
	return readGGUF(path, c, odd)
}

// pair is an A [r, in] and a B [out, r] of a file.
type pair struct{ a, b tensor.Stored }

// pairs collects the tensors of a file by the matrix that they belong to.
func pairs(path string, all []tensor.Stored, split func(name string) (matrix, which string, ok bool)) (map[string]*pair, error) {
	by := map[string]*pair{}
	for _, t := range all {
		matrix, which, ok := split(t.Name)
		if !ok {
			return nil, fault.In(fault.Unavailable, path, "is no matrix of a low-rank adapter that is read").At("tensor %q", t.Name).WithID("E-ADAPTER-003")
		}
		p := by[matrix]
		if p == nil {
			p = &pair{}
			by[matrix] = p
		}
		if which == "a" {
			p.a = t
		} else {
			p.b = t
		}
	}
	for name, p := range by {
		switch {
		case p.a.ReaderAt == nil || p.b.ReaderAt == nil:
			return nil, fault.In(fault.Load, path, "has only one of A and B").At("matrix %q", name).WithID("E-ADAPTER-004")
		case len(p.a.Shape) != 2 || len(p.b.Shape) != 2 || p.a.Shape[0] < 1 || p.a.Shape[0] != p.b.Shape[1]:
			return nil, fault.In(fault.Load, path, "A of shape %v and B of shape %v have no common rank", p.a.Shape, p.b.Shape).At("matrix %q", name).WithID("E-ADAPTER-005")
		}
	}
	return by, nil
}

// modules returns the modules of the slots that lie in the file's matrix of that name, by the places of a format.
func (p *pair) modules(path, name string, slots []arch.Slot, place func(arch.Slot) arch.Place, scale float64) (out []Module, err error) {
	a, err := modelfile.ReadFloat32(path, p.a)
	if err != nil {
		return nil, err
	}
	b, err := modelfile.ReadFloat32(path, p.b)
	if err != nil {
		return nil, err
	}
	rank := p.a.Shape[0]
	for _, s := range slots {
		at := place(s)
		if at.Name != name {
			continue
		}
		if at.Transposed || at.Cols != (arch.Order{}) || at.Values != arch.Same || at.Each != 0 {
			return nil, fault.In(fault.Unavailable, path, "adapters of a matrix whose columns this format reorders are not read").At("matrix %q", name).WithID("E-ADAPTER-006")
		}
		if rows, cols := at.Shape[0], s.Shape[1]; p.a.Shape[1] != cols || p.b.Shape[0] != rows {
			return nil, fault.In(fault.Invalid, path, "is an adapter of a matrix of shape [%d %d]; the model's is %v", p.b.Shape[0], p.a.Shape[1], []int{rows, cols}).
				At("matrix %q", name).WithHint("give the model that the adapter was trained on").WithID("E-ADAPTER-007")
		}
		m := Module{Slot: s, Rank: rank, Scale: scale, A: a, B: make([]float32, s.Shape[0]*rank)}
		for r := range s.Shape[0] {
			copy(m.B[r*rank:(r+1)*rank], b[at.Row(r)*rank:])
		}
		out = append(out, m)
	}
	if len(out) == 0 {
		return nil, fault.In(fault.Invalid, path, "is an adapter of a matrix that this model does not have").At("matrix %q", name).
			WithHint("give the model that the adapter was trained on").WithID("E-ADAPTER-008")
	}
	return out, nil
}

// stored is the adapter of one tensor of a file.
type stored struct {
	name  string // of the file's matrix
	rank  int
	scale float64
	a, b  []float32
	in    int
	out   int
}

// placed returns the adapters as they belong to the tensors of a format: slots that share a tensor get one A, their own below each
// other, and a B that is zero elsewhere.
func (a *Adapter) placed(place func(arch.Slot) arch.Place) ([]stored, error) {
	var all []stored
	at := map[string]int{}
	total := map[string]int{}
	for _, m := range a.Modules {
		total[place(m.Slot).Name] += m.Rank
	}
	from := map[string]int{}
	for _, m := range a.Modules {
		p := place(m.Slot)
		if p.Name == "" || p.Transposed || p.Cols != (arch.Order{}) || p.Values != arch.Same || p.Each != 0 {
			return nil, fault.New(fault.Unavailable, "an adapter of %s cannot be written in this format, which stores that matrix another way", m.Slot.Name).
				WithHint("merge it instead").WithID("E-ADAPTER-009")
		}
		i, ok := at[p.Name]
		if !ok {
			i = len(all)
			at[p.Name] = i
			r, out := total[p.Name], p.Shape[0]
			all = append(all, stored{name: p.Name, rank: r, scale: m.Scale, in: m.Slot.Shape[1], out: out,
				a: make([]float32, r*m.Slot.Shape[1]), b: make([]float32, out*r)})
		}
		s, col := &all[i], from[p.Name]
		copy(s.a[col*s.in:], m.A)
		f := float32(m.Scale / s.scale)
		for r := range m.Slot.Shape[0] {
			to := s.b[p.Row(r)*s.rank+col:]
			for k, v := range m.B[r*m.Rank : (r+1)*m.Rank] {
				if to[k] = v; f != 1 {
					to[k] = v * f
				}
			}
		}
		from[p.Name] += m.Rank
	}
	return all, nil
}

// sources returns A and B of the tensors as they are written, in float32.
func sources(all []stored, name func(s stored, which string) string) (out []tensor.Source) {
	add := func(name string, rows, cols int, v []float32) {
		raw := make([]byte, 4*len(v))
		tensor.Narrow(raw, v, tensor.F32)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: []int{rows, cols}}, raw))
	}
	for _, s := range all {
		add(name(s, "a"), s.rank, s.in, s.a)
		add(name(s, "b"), s.out, s.rank, s.b)
	}
	return out
}

// Values returns all A and B by the names of the slots.
func (a *Adapter) Values() map[string][]float32 {
	all := map[string][]float32{}
	for _, m := range a.Modules {
		nameA, nameB := m.Names()
		all[nameA], all[nameB] = m.A, m.B
	}
	return all
}

// With returns the adapter with these values of A and B, by the names of the slots.
func (a *Adapter) With(values map[string][]float32) *Adapter {
	c := *a
	c.Modules, c.Warnings = slices.Clone(a.Modules), nil
	for i := range c.Modules {
		m := &c.Modules[i]
		nameA, nameB := m.Names()
		m.A, m.B = values[nameA], values[nameB]
	}
	return &c
}

// SHA256 identifies an adapter by what it computes: slot, rank, scale and values of each module.
func (a *Adapter) SHA256() string {
	h := sha256.New()
	for _, m := range a.Modules {
		fmt.Fprintf(h, "%s\x00%d\x00%x\x00", m.Slot.Name, m.Rank, math.Float64bits(m.Scale))
		for _, v := range [][]float32{m.A, m.B} {
			raw := make([]byte, 4*len(v))
			tensor.Narrow(raw, v, tensor.F32)
			h.Write(raw)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
