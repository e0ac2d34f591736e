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
	share  int               // query heads that read one value head, of the first layer with attention
	head   bool              // there is a head; else the embedding is the head too
	joint  map[string]string // slots that the output has in one tensor: its name
	apart  bool              // Hugging Face's files hold experts in MXFP4 as codes and scales
}

// rolesOf returns the roles of a model's slots, as they lie in the output.
func rolesOf(c arch.Config, to target) roles {
	list := arch.Slots(c)
	r := newRoles(list, len(c.Layers))
	r.apart, r.share = c.HoldsMXFP4(), headShare(c)
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
	"self_attn.v_proj.weight": arch.V, "mlp.down_proj.weight": arch.Down, "self_attn.o_proj.weight": arch.O,
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
// down projection; q, k and v in one tensor count as the value projection. In Q3_K_M value, down and output projections have Q4_K,
// of the first layers Q5_K; in Q2_K they have Q3_K, and values that four query heads share Q4_K.
func (r roles) mixed(name string, of Scheme) tensor.DType {
	s := r.slots[name]
	switch of {
	case Q4_K_M, Q5_K_M, Q4_0, Q5_0, Q3_K_M, Q2_K:
	default:
		return base[of]
	}
	if s.Role == arch.Head || s.Role == arch.Embedding && !r.head {
		return tensor.Q6_K
	}
	value, down, output := valueRole(s), s.Role == arch.Down || s.Role == arch.ExpertDown, s.Role == arch.O && !s.Bias && !strings.HasSuffix(s.GGUF.Name, "ssm_out.weight")
	switch {
	case (of == Q4_K_M || of == Q5_K_M) && (value && moreBits(r.at[name], r.values) || down && moreBits(s.Layer, r.layers)):
		return tensor.Q6_K
	case of == Q3_K_M && (value && r.at[name] < 2 || down && s.Layer < r.layers/16):
		return tensor.Q5_K
	case of == Q3_K_M && (value || down || output), of == Q2_K && value && r.share >= 4:
		return tensor.Q4_K
	case of == Q2_K && (value || down || output):
		return tensor.Q3_K
	}
	return base[of]
}

// headShare returns how many query heads read one value head in the first layer with attention; 0 without any.
func headShare(c arch.Config) int {
	for _, l := range c.Layers {
		if l.Attn.KVHeads > 0 {
			return l.Attn.Heads / l.Attn.KVHeads
		}
	}
	return 0
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
			if plan[i].again() {
				plan[i].Reason = "columns move inside blocks of " + c.DType.String() + ": encoded again"
			}
		}
	}
}
