package model

import (
	"maps"
	"slices"

	"apr/device"
	"apr/tensor"
)

// Fixed returns the tensors that are stored with a model but not trained, by name. They are the model's own: who changes
// them changes it, and the frozen views of it.
func (m *Model) Fixed() map[string][]float32 { return m.fixed }

// FixedSources returns them as they are written to a file, in float32.
func (m *Model) FixedSources() (out []tensor.Source) {
	for _, name := range slices.Sorted(maps.Keys(m.fixed)) {
		v := m.fixed[name]
		raw := make([]byte, 4*len(v))
		tensor.Narrow(raw, v, tensor.F32)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: []int{len(v)}}, raw))
	}
	return out
}

// Stored returns the present values of every tensor of a trainable model as files have them, by name: of blocks what they
// decode to.
func (m *Model) Stored(s device.Stream) (map[string][]float32, error) {
	out := map[string][]float32{}
	for _, p := range m.parts {
		host := make([]float32, p.Elements())
		if err := s.Download(host, p.Of(p.Param.Read())); err != nil {
			return nil, err
		}
		out[p.Name] = shifted(host, -offset(m.Config, p.Slot))
	}
	for name, v := range m.fixed {
		out[name] = slices.Clone(v)
	}
	return out, nil
}
