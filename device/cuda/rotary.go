package cuda

import (
	"fmt"
	"math"
	"sync"

	"apr/device"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// rotaryTables keeps the cosines and sines of each table of frequencies on the device, and the scales of queries, for as many
// positions as were asked for.
type rotaryTables struct {
	mu     sync.Mutex
	keys   map[*device.Frequencies]string // of those seen, which are the same from then on
	tables map[string]device.Tensor
}

// locked returns the tables for one caller, who unlocks them.
func (c *rotaryTables) locked() *rotaryTables {
	c.mu.Lock()
	if c.tables == nil {
		c.keys, c.tables = map[*device.Frequencies]string{}, map[string]device.Tensor{}
	}
	return c
}

// leastPositions are in every table, so that a generation does not begin with many growths.
const leastPositions = 1024

// rotary returns the table of kernel.RotaryTable for at least n positions.
func (s *Stream) rotary(f *device.Frequencies, n int) (device.Tensor, error) {
	c := s.dev.rotary.locked()
	defer c.mu.Unlock()
	key, ok := c.keys[f]
	if !ok {
		key = f.Key()
		c.keys[f] = key
	}
	return s.positions(key, n, 2*len(f.Inv), func(rows int) []float32 { return kernel.RotaryTable(f, rows) })
}

// queryScale returns the table of kernel.RotaryScale for at least n positions.
func (s *Stream) queryScale(r device.Rotary, n int) (device.Tensor, error) {
	defer s.dev.rotary.locked().mu.Unlock()
	key := fmt.Sprintf("scale %x %d", math.Float64bits(r.QBeta), r.QLength)
	return s.positions(key, n, 1, func(rows int) []float32 { return kernel.RotaryScale(r, rows) })
}

// positions returns the table named key, of at least n rows, which values makes. The lock is held.
func (s *Stream) positions(key string, n, cols int, values func(rows int) []float32) (device.Tensor, error) {
	tables := s.dev.rotary.tables
	old, ok := tables[key]
	if ok && old.Rows >= n {
		return old, nil
	}
	rows := max(leastPositions, n)
	if ok {
		rows = max(rows, 2*old.Rows) // generation asks for one more each time
	}
	b, err := s.dev.take("rotary table", device.Scratch, device.TensorBytes(device.OpRotate, tensor.F32, rows, cols), false)
	if err != nil {
		return device.Tensor{}, err
	}
	t := device.Whole(b, tensor.F32, rows, cols)
	s.dev.internal().Upload(t, values(rows))
	if ok {
		s.dev.give(old.Buf.(*buffer))
	}
	tables[key] = t
	return t, nil
}

// rotaryFor returns what kernel.Rotate reads for n rows of heads.
func (s *Stream) rotaryFor(r device.Rotary, rows int) (t kernel.RotaryTables, err error) {
	t.Rows = r.Offset + min(r.SeqLen, max(1, rows))
	if !r.Positions.IsZero() {
		t.Rows, t.Positions = r.Offset+r.SeqLen, mat(r.Positions)
	}
	table, err := s.rotary(r.Table, t.Rows)
	if err != nil {
		return t, err
	}
	t.Table = mat(table).Ptr
	if r.QBeta != 0 {
		if table, err = s.queryScale(r, t.Rows); err != nil {
			return t, err
		}
		t.Scale = mat(table).Ptr
	}
	return t, nil
}
