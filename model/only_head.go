package model

import (
	"apr/arch"
	"apr/device"
)

// LoadHead puts of a model on a device what Logits multiplies hidden states by, in the form that LoadFrozenAs gives it:
// its head, or its embedding where that is the head, and the final norm. The model has no layers. The rest of the file
// is not read.
func LoadHead(dev device.Device, w Weights, c device.Component, form device.Form) (*Model, error) {
	return loadFrozen(dev, headOnly{w}, c, form)
}

// LoadHead is LoadHead on a device that reads no source.
func (o *Outline) LoadHead(dev device.Device, c device.Component, form device.Form) (*Model, error) {
	return loadFrozen(dev, headOnly{o}, c, form)
}

// headOnly are the weights of a model without its layers.
type headOnly struct{ Weights }

// skips leaves the embedding out where the head is a matrix of its own.
func (h headOnly) skips(s arch.Slot) bool { return s.Role == arch.Embedding && !h.Weights.Arch().Tied }

// Arch returns the description without layers.
func (h headOnly) Arch() arch.Config {
	c := h.Weights.Arch()
	c.Layers, c.PLE = nil, arch.PLE{}
	return c
}
