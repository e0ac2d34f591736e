package model

import "apr/device"

// States returns what a forward kept: the input of each layer, and the final hidden states.
func (v *Saved) States() (all []device.Tensor) {
	for _, k := range v.layers {
		all = append(all, k.x)
	}
	return append(all, v.Hidden)
}

// BeginDropping drops values as a training pass does, until the returned function is called.
func (m *Model) BeginDropping() func() { return m.dropping(0) }
