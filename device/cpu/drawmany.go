package cpu

import "apr/device"

var _ device.ManyDrawer = (*Stream)(nil)

// DrawMany draws ids, a row a task: see device.ManyDrawer.
func (s *Stream) DrawMany(out, z, keys device.Tensor, temperature float64) {
	device.CheckDrawMany(out, z, keys, temperature)
	if !s.begin() {
		return
	}
	o, t, k := floats(out), floats(z), ints(keys)
	s.split(t.rows, 1, func(_, lo, hi int) {
		weights := make([]uint64, z.Cols)
		for r := lo; r < hi; r++ {
			key := [2]uint32{uint32(k[3*r]), uint32(k[3*r+1])}
			device.DrawManyRow(o.row(r), t.row(r), weights, key, uint32(k[3*r+2]), temperature)
		}
	})
	s.end(device.OpDrawMany, 0)
}
