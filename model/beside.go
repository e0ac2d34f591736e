package model

import "apr/device"

// Beside returns a frozen model on a device beside m's own, which reads the present weights of m there. All of m
// trains, and none of it in blocks: a device may rearrange blocks that it reads.
func (m *Model) Beside(dev device.Beside) *Model {
	if len(m.params) == 0 || m.Adapted() || m.Quantized() {
		panic("model: only a model that trains as a whole, in dense matrices, is read beside its own device")
	}
	f := m.Frozen()
	f.dev, f.beside = dev, true
	for _, g := range f.groups {
		if g.slots[0].Fixed {
			continue
		}
		if matrix, vec := f.place(g); matrix != nil {
			matrix.weight = dev.LendWeight(matrix.weight)
		} else {
			vec.value = dev.Lend(vec.value)
		}
	}
	if f.Config.Tied {
		f.head.weight = f.embed.weight
	}
	return f
}
