package cuda

import (
	"sync"

	"apr/device"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// rotaryTables keeps the cosines and sines of each θ and head size on the device, for as many positions as were asked for.
type rotaryTables struct {
	mu     sync.Mutex
	tables map[rotaryKey]device.Tensor
}

type rotaryKey struct {
	theta float64
	dim   int
}

// leastPositions are in every table, so that a generation does not begin with many growths.
const leastPositions = 1024

// rotary returns the table of kernel.RotaryTable for at least n positions.
func (s *Stream) rotary(r device.Rotary, n int) (device.Tensor, error) {
	c := &s.dev.rotary
	c.mu.Lock()
	defer c.mu.Unlock()
	key := rotaryKey{r.Theta, r.HeadDim}
	old, ok := c.tables[key]
	if ok && old.Rows >= n {
		return old, nil
	}
	rows := max(leastPositions, n)
	if ok {
		rows = max(rows, 2*old.Rows) // generation asks for one more each time
	}
	b, err := s.dev.take("rotary table", device.Scratch, device.TensorBytes(device.OpRotate, tensor.F32, rows, r.HeadDim), false)
	if err != nil {
		return device.Tensor{}, err
	}
	t := device.Whole(b, tensor.F32, rows, r.HeadDim)
	s.dev.internal().Upload(t, kernel.RotaryTable(r.Theta, r.HeadDim, rows))
	if ok {
		s.dev.give(old.Buf.(*buffer))
	}
	if c.tables == nil {
		c.tables = map[rotaryKey]device.Tensor{}
	}
	c.tables[key] = t
	return t, nil
}
