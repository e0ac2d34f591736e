package model

import (
	"apr/arch"
	"apr/device"
)

// Matrices returns the matrices that products read, each with the slots that it holds below each other.
func (m *Model) Matrices() map[device.Weight][]arch.Slot {
	all := map[device.Weight][]arch.Slot{}
	for _, g := range m.groups {
		if g.slots[0].Fixed {
			continue
		}
		if matrix, _ := m.place(g); matrix != nil {
			all[matrix.weight] = g.slots
		}
	}
	return all
}

// Vectors returns the vectors that belong to one slot, such as the weights of norms, by their tensors.
func (m *Model) Vectors() map[device.Tensor]arch.Slot {
	all := map[device.Tensor]arch.Slot{}
	for _, g := range m.groups {
		if g.slots[0].Fixed || len(g.slots) > 1 {
			continue
		}
		if _, vec := m.place(g); vec != nil {
			all[vec.value] = g.slots[0]
		}
	}
	return all
}
