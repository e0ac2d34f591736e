package model

import (
	"strings"

	"apr/arch"
	"apr/device"
	"apr/tensor"
)

// Model is a decoder on a device: frozen (a teacher, generation, evaluation) or trainable (a student).
//
// The shapes below use B rows of S positions, n = B·S, hidden width h, d = head dimension, f = intermediate width.
type Model struct {
	Config arch.Config
	dev    device.Device

	embed  device.Weight // [vocab, h]
	head   device.Weight // [vocab, h]; the same as embed when tied
	layers []layer
	norm   device.Tensor // [1, h]

	// A trainable model has these; a frozen one never does.
	params          []*device.Param
	parts           []Part
	embedParam      *device.Param
	headParam       *device.Param // embedParam when tied
	normParam       *device.Param
	trainableLayers []layerParams
}

// layer holds what the forward pass of one decoder layer reads.
type layer struct {
	inputNorm, postNorm device.Tensor // [1, h]
	qkv                 device.Weight // [(heads + 2·kv)·d, h]: q, k, v stacked
	qkvBias             device.Tensor // [1, (heads + 2·kv)·d]
	o                   device.Weight // [h, heads·d]
	gateUp              device.Weight // [2f, h]: gate, up stacked
	down                device.Weight // [h, f]
}

// weight and vector return the place of a group's tensor.
func (l *layer) weight(g group) *device.Weight {
	return map[string]*device.Weight{qkvPart: &l.qkv, oPart: &l.o, gateUpPart: &l.gateUp, downPart: &l.down}[g.part]
}

func (l *layer) vector(g group) *device.Tensor {
	return map[string]*device.Tensor{inputNormPart: &l.inputNorm, postNormPart: &l.postNorm, qkvBiasPart: &l.qkvBias}[g.part]
}

// layerParams are the trainable tensors behind a layer.
type layerParams struct {
	inputNorm, postNorm, qkv, qkvBias, o, gateUp, down *device.Param
}

// param returns the place of a group's parameter.
func (l *layerParams) param(g group) **device.Param {
	return map[string]**device.Param{
		inputNormPart: &l.inputNorm, postNormPart: &l.postNorm, qkvPart: &l.qkv, qkvBiasPart: &l.qkvBias, oPart: &l.o,
		gateUpPart: &l.gateUp, downPart: &l.down,
	}[g.part]
}

// group is the slots that are one tensor on the device: q, k and v; their biases; gate and up; else one slot.
type group struct {
	slots []arch.Slot
	part  string // of a layer: the first slot's name within it
}

// The groups of a layer, by the name of their first slot.
const (
	inputNormPart = "input_layernorm.weight"
	qkvPart       = "self_attn.q_proj.weight"
	qkvBiasPart   = "self_attn.q_proj.bias"
	oPart         = "self_attn.o_proj.weight"
	postNormPart  = "post_attention_layernorm.weight"
	gateUpPart    = "mlp.gate_proj.weight"
	downPart      = "mlp.down_proj.weight"
)

// stack says which group a slot belongs to, by the role of the group's first slot; "": one of its own.
func stack(s arch.Slot) arch.Role {
	switch s.Role {
	case arch.Q, arch.K, arch.V:
		return arch.Q
	case arch.Gate, arch.Up:
		return arch.Gate
	}
	return ""
}

// groups returns the groups of a model in the order of their parameters: each stands where its first slot does, biases
// behind the matrices.
func groups(c arch.Config) (all []group) {
	at := map[string]int{} // of the groups of several slots
	for _, s := range arch.Slots(c) {
		part := ""
		if s.Layer >= 0 {
			_, rest, _ := strings.Cut(strings.TrimPrefix(s.Name, "model.layers."), ".")
			part = rest
		}
		key := ""
		if r := stack(s); r != "" {
			key = string(r)
			if s.Bias {
				key += " bias"
			}
		}
		if i, ok := at[key]; ok && key != "" && all[i].slots[0].Layer == s.Layer {
			all[i].slots = append(all[i].slots, s)
			continue
		}
		at[key] = len(all)
		all = append(all, group{[]arch.Slot{s}, part})
	}
	return all
}

// names returns the names of the group's slots.
func (g group) names() (names []string) {
	for _, s := range g.slots {
		names = append(names, s.Name)
	}
	return names
}

// matrix reports whether the group is a matrix, and not a vector.
func (g group) matrix() bool { return len(g.slots[0].Shape) > 1 }

// Part is one named tensor of the model within a trainable parameter, which may hold several (q, k and v).
type Part struct {
	arch.Slot
	Param  *device.Param
	lo, hi int // rows of a matrix, columns of a vector
}

// Of returns the part's view of t, which is the parameter's value, gradient or a moment.
func (p Part) Of(t device.Tensor) device.Tensor {
	if p.Param.Rows == 1 && len(p.Shape) == 1 {
		return t.ColRange(p.lo, p.hi)
	}
	return t.RowRange(p.lo, p.hi)
}

// Elements returns the number of values of the part.
func (p Part) Elements() int { n, _ := tensor.Elements(p.Shape); return int(n) }

// Device returns the device the model lives on.
func (m *Model) Device() device.Device { return m.dev }

// Params returns the trainable parameters; none for a frozen model.
func (m *Model) Params() []*device.Param { return m.params }

// Parts returns the named tensors of a trainable model in a fixed order.
func (m *Model) Parts() []Part { return m.parts }

// Head returns the output matrix and, for a trainable model, the parameter behind it.
func (m *Model) Head() (device.Weight, *device.Param) { return m.head, m.headParam }

// shape is what every layer has; the description may have layers of several shapes, which are not computed yet.
func (m *Model) shape() (a arch.Attention, width int) {
	if len(m.Config.Layers) == 0 { // of a canary: one layer less
		return arch.Attention{HeadDim: 2, Heads: 1, KVHeads: 1}, 1
	}
	return m.Config.Layers[0].Attn, m.Config.Layers[0].FFN.Width
}

// qkvDim is the width of q, k and v together.
func qkvDim(a arch.Attention) int { return a.QDim() + 2*a.KVDim() }
