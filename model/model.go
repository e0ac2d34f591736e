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

	embed, head linear // [vocab, h]; one when tied
	norm        vector // [1, h], the last one
	layers      []layer
	ropes       []rope
	pleTable    linear // [ids, layers·p]
	pleModel    linear // [layers·p, h]
	pleNorm     vector // [1, p]

	groups []group
	fixed  map[string][]float32 // tensors that are stored but not trained, on the host; the trainable model and its views share them

	// A trainable model has these; a frozen one never does.
	params  []*device.Param
	parts   []Part
	balance float64 // see Balance

	// Whole gathers all values of a companion that ranks share in p.Staging; it has to be set before they are asked for.
	Whole func(p *device.Param, c device.Companion)

	// So has one that trains by adapters, for these alone.
	drop  *dropout
	sinks map[[2]int]device.Tensor // see unread, by shape

	streams bool // the layers' matrices come from the host
	beside  bool // it is read beside the device of the model that trains: see Beside
}

// newModel returns a model without its tensors.
func newModel(dev device.Device, c arch.Config) *Model {
	m := &Model{Config: c, dev: dev, layers: newLayers(c), ropes: newRopes(c), groups: groups(c), fixed: map[string][]float32{}}
	for _, g := range m.groups {
		if s := g.slots[0]; s.Fixed {
			m.fixed[s.Name] = m.layers[s.Layer].outScale
		}
	}
	return m
}

// finalNorm is the slot of the norm before the head.
const finalNorm = "model.norm.weight"

// place returns the tensor of a group: a matrix or a vector.
func (m *Model) place(g group) (*linear, *vector) {
	s := g.slots[0]
	switch {
	case s.Layer >= 0:
		return m.layers[s.Layer].place(g.part)
	case s.Role == arch.Embedding:
		return &m.embed, nil
	case s.Role == arch.Head:
		return &m.head, nil
	case s.Role == arch.PLETable:
		return &m.pleTable, nil
	case s.Role == arch.PLEModel:
		return &m.pleModel, nil
	case s.Name == finalNorm:
		return nil, &m.norm
	case s.Role == arch.Norm:
		return nil, &m.pleNorm
	}
	panic("model: no place for " + s.Name) // Computed accepted the description
}

// group is the slots that are one tensor on the device: q, k and v; their biases; gate and up; of a DeltaNet q, k, v and z, or b
// and a; else one slot.
type group struct {
	slots []arch.Slot
	part  string // of a layer: the first slot's name within it
}

// stack says which group a slot belongs to, by the role of the group's first slot; "": one of its own. What all experts have
// of one matrix is one slot.
func stack(s arch.Slot) arch.Role {
	switch s.Role {
	case arch.Q, arch.K, arch.V:
		return arch.Q
	case arch.Gate, arch.Up:
		return arch.Gate
	case arch.DeltaQKV, arch.DeltaZ:
		return arch.DeltaQKV
	case arch.DeltaB, arch.DeltaA:
		return arch.DeltaB
	}
	return ""
}

// groups returns the groups of a model in the order of their parameters: each has the place of its first slot, biases
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

// matrix reports whether the group is a matrix, or one of each expert, and not vectors.
func (g group) matrix() bool { return len(g.slots[0].Shape) > 1 && !g.slots[0].Bias }

// experts returns how many experts have a tensor of the group; 0: it is not of experts.
func (g group) experts() int {
	switch s := g.slots[0]; s.Role {
	case arch.ExpertGate, arch.ExpertUp, arch.ExpertDown:
		return s.Shape[0]
	}
	return 0
}

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
func (m *Model) Head() (device.Weight, *device.Param) { return m.head.weight, m.head.param }

// HeadBackward goes back through the head, given dz [c, V] over the logits of hidden rows x [c, h] before a soft-cap: it writes dx and
// adds the head's gradient. at is the place of the first row among the step's targets.
func (m *Model) HeadBackward(s device.Stream, dx, dz, x device.Tensor, at int) {
	if m.head.lora != nil {
		defer m.dropping(at)()
		m.head.lora.weightGrad(s, dz, x, device.Tensor{})
	}
	m.head.inputGrad(s, dx, dz, false)
	if p := m.head.param; p != nil {
		s.MatMulWeightGrad(p.Grad.RowRange(0, dz.Cols), device.Tensor{}, dz, x)
	}
}
