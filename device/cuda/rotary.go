package cuda

import (
	"sync"

	"apr/device"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// rotaryTables keeps the cosines and sines of each table of frequencies on the device, for as many positions as were asked for.
type rotaryTables struct {
	mu     sync.Mutex
	keys   map[*device.Frequencies]string // of those seen, which are the same from then on
	tables map[string]device.Tensor
}

// leastPositions are in every table, so that a generation does not begin with many growths.
const leastPositions = 1024

// rotary returns the table of kernel.RotaryTable for at least n positions.
func (s *Stream) rotary(f *device.Frequencies, n int) (device.Tensor, error) {
	c := &s.dev.rotary
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tables == nil {
		c.keys, c.tables = map[*device.Frequencies]string{}, map[string]device.Tensor{}
	}
	key, ok := c.keys[f]
	if !ok {
		key = f.Key()
		c.keys[f] = key
	}
	old, ok := c.tables[key]
	if ok && old.Rows >= n {
		return old, nil
	}
	rows, cols := max(leastPositions, n), 2*len(f.Inv)
	if ok {
		rows = max(rows, 2*old.Rows) // generation asks for one more each time
	}
	b, err := s.dev.take("rotary table", device.Scratch, device.TensorBytes(device.OpRotate, tensor.F32, rows, cols), false)
	if err != nil {
		return device.Tensor{}, err
	}
	t := device.Whole(b, tensor.F32, rows, cols)
	s.dev.internal().Upload(t, kernel.RotaryTable(f, rows))
	if ok {
		s.dev.give(old.Buf.(*buffer))
	}
	c.tables[key] = t
	return t, nil
}
