package model

import "apr/device"

// States returns what a forward kept: the input of each layer, and the final hidden states.
func (v *Saved) States() (all []device.Tensor) {
	for _, k := range v.layers {
		all = append(all, k.x)
	}
	return append(all, v.Hidden)
}

// Chosen returns the experts that each position of a layer has chosen, I32, as device.Routing has them.
func (v *Saved) Chosen(layer int) device.Tensor { return v.layers[layer].moe.chosen }
