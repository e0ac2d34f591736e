package convert

import (
	"slices"
	"strings"

	"apr/arch"
	"apr/tensor"
)

// roles say what the tensors of a model do, and which of them files have as one: that decides their types.
type roles struct {
	slots  map[string]arch.Slot
	at     map[string]int    // of a value projection: how many come before it
	values int               // value projections
	layers int               //
	head   bool              // there is a head; else the embedding is the head too
	joint  map[string]string // slots that the output has in one tensor: its name
	apart  bool              // Hugging Face's files hold experts in MXFP4 as codes and scales
}

// rolesOf returns the roles of a model's slots, as they lie in the output.
func rolesOf(c arch.Config, to target) roles {
	list := arch.Slots(c)
	r := newRoles(list, len(c.Layers))
	r.apart = c.HoldsMXFP4()
	held := map[string]int{}
	place := func(s arch.Slot) arch.Place {
		if to == toSafetensors {
			return s.HF
		}
		return s.GGUF // an .apr file holds blocks that can become a GGUF file's as they are
	}
	for _, s := range list {
		held[place(s).Name]++
	}
	for _, s := range list {
		if p := place(s); held[p.Name] > 1 && p.Name != "" {
			r.joint[s.Name] = p.Name
		}
	}
	return r
}

func newRoles(list []arch.Slot, layers int) roles {
	r := roles{slots: map[string]arch.Slot{}, at: map[string]int{}, layers: layers, joint: map[string]string{}}
	for _, s := range list {
		r.slots[s.Name] = s
		switch {
		case s.Role == arch.Head:
			r.head = true
		case valueRole(s):
			r.at[s.Name] = r.values
			r.values++
		}
	}
	return r
}

// nameRoles are the roles of names of Hugging Face that nearly all families share, for models that have no description.
var nameRoles = map[string]arch.Role{
	"self_attn.v_proj.weight": arch.V, "mlp.down_proj.weight": arch.Down,
}

// rolesByName returns what names tell of tensors without a description.
func rolesByName(tensors []tensor.Stored, layers int) roles {
	var list []arch.Slot
	for _, t := range tensors {
		s := arch.Slot{Name: t.Name, Layer: -1, Shape: t.Shape}
		switch t.Name {
		case headName:
			s.Role = arch.Head
		case embedName:
			s.Role = arch.Embedding
		default:
			rest, ok := strings.CutPrefix(t.Name, "model.layers.")
			number, part, _ := strings.Cut(rest, ".")
			if n, is := layerNumber(number); ok && is {
				s.Layer, s.Role = n, nameRoles[part]
			}
		}
		if s.Role != arch.Head || t.Elements() > 0 {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b arch.Slot) int { return a.Layer - b.Layer })
	return newRoles(list, layers)
}

// plainRoles are matrices that stay plain numbers: llama.cpp reads some of them as float32 only, and they are small.
var plainRoles = []arch.Role{arch.Router, arch.SharedGate, arch.DeltaConv, arch.PLEModel, arch.Scale}

// kept reports whether a tensor stays plain under every scheme: a vector, a bias, a router, a convolution.
func (r roles) kept(t tensor.Info) bool {
	s := r.slots[t.Name]
	return !isMatrix(t) || s.Bias || slices.Contains(plainRoles, s.Role)
}

// expert reports whether a tensor is a matrix of experts.
func (r roles) expert(name string) bool {
	s := r.slots[name]
	return !s.Bias && (s.Role == arch.ExpertGate || s.Role == arch.ExpertUp || s.Role == arch.ExpertDown)
}

// experts reports whether the model has any.
func (r roles) experts() bool {
	for name := range r.slots {
		if r.expert(name) {
			return true
		}
	}
	return false
}

// mixed is the type that llama.cpp gives a matrix under a scheme that it names after most of them. The output matrix (the
// embedding when it is the output too) has Q6_K. In Q4_K_M and Q5_K_M so have, in about half of the layers, the value and the
// down projection; q, k and v in one tensor count as the value projection.
func (r roles) mixed(name string, of Scheme) tensor.DType {
	s := r.slots[name]
	middle := of == Q4_K_M || of == Q5_K_M
	switch {
	case !middle && of != Q4_0 && of != Q5_0:
	case s.Role == arch.Head, s.Role == arch.Embedding && !r.head:
		return tensor.Q6_K
	case !middle:
	case valueRole(s) && moreBits(r.at[name], r.values), (s.Role == arch.Down || s.Role == arch.ExpertDown) && moreBits(s.Layer, r.layers):
		return tensor.Q6_K
	}
	return base[of]
}

// valueRole reports whether llama.cpp counts a matrix as a value projection; q, k and v of linear attention are one matrix.
func valueRole(s arch.Slot) bool { return (s.Role == arch.V || s.Role == arch.DeltaQKV) && !s.Bias }

// moreBits is llama.cpp's use_more_bits: the first and the last eighth, and every third in between.
func moreBits(i, n int) bool { return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2 }

// together gives the tensors that the output has as one the type of most bits among theirs.
func (r roles) together(plan []Choice) {
	widest := map[string]tensor.DType{}
	for _, c := range plan {
		if in := r.joint[c.Source.Name]; in != "" && bits(c.DType) > bits(widest[in]) {
			widest[in] = c.DType
		}
	}
	for i, c := range plan {
		if in := r.joint[c.Source.Name]; in != "" && c.DType != widest[in] {
			plan[i].DType, plan[i].Reason = widest[in], "is one tensor with others of "+widest[in].String()
		}
	}
}

// bits is the size of a value.
func bits(d tensor.DType) float64 {
	if d == tensor.Invalid {
		return 0
	}
	return 8 * float64(d.BlockBytes()) / float64(d.BlockLen())
}

// reorder has blocks of a GGUF file made of columns in the file's order where they cannot move afterwards: a block of 256 holds
// two value heads of Qwen3.5's ssm_out. Blocks that are there already are encoded again.
func (r roles) reorder(plan []Choice) {
	for i, c := range plan {
		p := r.slots[c.Source.Name].GGUF
		if c.DType.IsQuantized() && p.Cols != (arch.Order{}) && !p.MovesBlocks(c.DType.BlockLen()) {
			plan[i].order = p.Cols
			if c.Source.DType == c.DType {
				plan[i].Reason = "columns move inside blocks of " + c.DType.String() + ": encoded again"
			}
		}
	}
}
