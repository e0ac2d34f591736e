package teacher

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"apr/device"
	"apr/teacher/cache"
)

// Drawer draws ids from softmax(t/T) with replacement, as device.ManyDrawer does. What it draws at a position of a
// row follows from the seed, the row's key, the position and the logits alone. It may be used by one goroutine
// at a time.
type Drawer struct {
	Temperature float64
	Draws       int
	Seed        uint64

	weights []uint64
	row     []float32
	ids     []int32
}

// DrawKey is the key of a row's random numbers: the first 8 bytes, little-endian, of SHA-256 of "apr draws", the seed
// in 8 bytes and the key of the row.
func DrawKey(seed uint64, row cache.Key) [2]uint32 {
	b := binary.LittleEndian.AppendUint64([]byte("apr draws"), seed)
	sum := sha256.Sum256(append(b, row[:]...))
	return [2]uint32{binary.LittleEndian.Uint32(sum[:]), binary.LittleEndian.Uint32(sum[4:])}
}

// Draw appends the draws at a position of a row to entries, ids ascending, and returns the entropy of softmax(t/T) in
// nats. Logits whose softmax is not finite are an error.
func (d *Drawer) Draw(entries []cache.Entry, logits []float32, row cache.Key, position int) (_ []cache.Entry,
	entropy float64, err error) {
	d.weights, d.row = slices.Grow(d.weights[:0], len(logits)), slices.Grow(d.row[:0], d.Draws+device.ManySums)
	drawn := d.row[:d.Draws+device.ManySums]
	device.DrawManyRow(drawn, logits, d.weights[:len(logits)], DrawKey(d.Seed, row), uint32(position), d.Temperature)
	return d.Read(entries, drawn, len(logits), position)
}

// Read appends what device.ManyDrawer drew of v logits at a position to entries, ids ascending; it returns the entropy.
func (d *Drawer) Read(entries []cache.Entry, drawn []float32, v, position int) (_ []cache.Entry, entropy float64,
	err error) {
	sum, entropy := device.ManyResult(drawn, v)
	if sum == 0 {
		return nil, 0, fmt.Errorf("the teacher's logits at position %d are not finite", position)
	}
	d.ids = d.ids[:0]
	for _, id := range drawn[:len(drawn)-device.ManySums] {
		d.ids = append(d.ids, int32(id))
	}
	slices.Sort(d.ids)
	first := len(entries)
	for _, id := range d.ids {
		if n := len(entries); n > first && entries[n-1].ID == id {
			entries[n-1].Count++
			continue
		}
		entries = append(entries, cache.Entry{ID: id, Count: 1})
	}
	return entries, entropy, nil
}
