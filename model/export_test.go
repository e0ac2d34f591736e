package model

import (
	"apr/arch"
	"apr/device"
)

// Tensors gives the tensors of a model by name.
type Tensors = tensors

// LoadFrozenFrom is loadFrozen.
func LoadFrozenFrom(dev device.Device, c arch.Config, f Tensors, comp device.Component, form device.Form) (*Model, error) {
	return loadFrozen(dev, c, f, comp, form)
}

// LoadFrom is loadFrom.
func (m *Model) LoadFrom(s device.Stream, f Tensors) error { return m.loadFrom(s, f) }

// States returns what a forward kept: the input of each layer, and the final hidden states.
func (v *Saved) States() (all []device.Tensor) {
	for _, k := range v.layers {
		all = append(all, k.x)
	}
	return append(all, v.Hidden)
}
