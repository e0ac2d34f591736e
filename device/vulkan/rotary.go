package vulkan

import (
	"encoding/binary"
	"math"

	"apr/device"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
	"apr/tensor"
)

// rotaryTables are cosines and sines on the device, by what they are of, for as many positions as were asked for.
type rotaryTables struct {
	keys   map[*device.Frequencies]string // of those seen, which are the same from then on
	tables map[string]*rotaryTable
	scales map[queryScale]device.Tensor // [1, positions]
}

type rotaryTable struct {
	n, half      int
	cosine, sine device.Tensor // [n, half]
}

type queryScale struct {
	beta   float64
	length int
}

// turns returns the tables of at least n positions. Angles and functions are float64, rounded once. A table that has
// become too short stays where it is until Close, for launches that read it may be queued.
func (d *Device) turns(r device.Rotary, n int) kernel.Turns {
	c := &d.rotary
	if c.tables == nil {
		c.keys, c.tables = map[*device.Frequencies]string{}, map[string]*rotaryTable{}
		c.scales = map[queryScale]device.Tensor{}
	}
	key, ok := c.keys[r.Table]
	if !ok {
		key = r.Table.Key()
		c.keys[r.Table] = key
	}
	t := c.tables[key]
	if t == nil || t.n < n {
		n := max(n, 64)
		if t != nil {
			n = max(n, 2*t.n) // generation asks for one more each time
		}
		t = d.newTurns(r.Table, n)
		c.tables[key] = t
	}
	out := kernel.Turns{Cosine: mat(t.cosine), Sine: mat(t.sine)}
	if r.QBeta != 0 {
		q := queryScale{r.QBeta, r.QLength}
		if s, ok := c.scales[q]; !ok || s.Cols < t.n {
			factors := make([]float32, t.n)
			for p := range factors {
				factors[p] = float32(r.QScale(p))
			}
			c.scales[q] = d.upload("factors of queries", 1, t.n, factors)
		}
		out.Factors = mat(c.scales[q])
	}
	return out
}

func (d *Device) newTurns(f *device.Frequencies, n int) *rotaryTable {
	half, gain := len(f.Inv), f.Gain()
	cos, sin := make([]float32, n*half), make([]float32, n*half)
	for i, freq := range f.Inv {
		for pos := range n {
			s, c := math.Sincos(float64(pos) * freq)
			cos[pos*half+i], sin[pos*half+i] = float32(gain*c), float32(gain*s)
		}
	}
	return &rotaryTable{n, half, d.upload("cosines", n, half, cos), d.upload("sines", n, half, sin)}
}

// upload returns a lasting tensor of these values.
func (d *Device) upload(name string, rows, cols int, values []float32) device.Tensor {
	t := d.Alloc(name, device.Scratch, tensor.F32, rows, cols)
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.write(t.Buf.(*buffer).place, 0, b)
	return t
}

func falling(i int, key, before int32) *fault.Error {
	return fault.New(fault.Invalid, "Attention: the first key %d is below that of the query before, %d", key,
		before).At("query %d", i).WithID("E-VULKAN-033")
}
