package cpu

import (
	"math"
	"sync"

	"apr/device"
	"apr/internal/fault"
)

// rotaryCache keeps the cosines and sines of each table of frequencies, for as many positions as were asked for.
type rotaryCache struct {
	mu     sync.Mutex
	keys   map[*device.Frequencies]string // of those seen, which are the same from then on
	tables map[string]*rotaryTable
}

// rotaryTable holds rows of half values, one for each position.
type rotaryTable struct {
	n, half       int
	cos, sin, neg []float32 // neg = −sin, for the inverse
}

// table returns a table of at least n positions. Angles and functions are float64, rounded once.
func (c *rotaryCache) table(f *device.Frequencies, n int) *rotaryTable {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tables == nil {
		c.keys, c.tables = map[*device.Frequencies]string{}, map[string]*rotaryTable{}
	}
	key, ok := c.keys[f]
	if !ok {
		key = f.Key()
		c.keys[f] = key
	}
	old := c.tables[key]
	if old != nil && old.n >= n {
		return old
	}
	if old != nil {
		n = max(n, 2*old.n) // generation asks for one more each time
	}
	half, gain := len(f.Inv), f.Gain()
	t := &rotaryTable{n: n, half: half, cos: make([]float32, n*half), sin: make([]float32, n*half), neg: make([]float32, n*half)}
	for i, freq := range f.Inv {
		for pos := range n {
			sin, cos := math.Sincos(float64(pos) * freq)
			k := pos*half + i
			t.cos[k], t.sin[k], t.neg[k] = float32(gain*cos), float32(gain*sin), -float32(gain*sin)
		}
	}
	c.tables[key] = t
	return t
}

type rotateOp struct {
	s         *Stream
	x         mat
	r         device.Rotary
	positions []int32 // nil: Offset + r mod SeqLen
	t         *rotaryTable
	run       func(worker, lo, hi int)
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	if !s.begin() {
		return
	}
	o := &s.ops.rotate
	o.x, o.r, o.positions = floats(x), r, nil
	n := r.Offset + min(r.SeqLen, max(1, x.Rows))
	if !r.Positions.IsZero() {
		o.positions = ints(r.Positions)
		n = 0
		for i, p := range o.positions {
			if p < 0 || int(p) >= r.Offset+r.SeqLen {
				s.fail(fault.New(fault.Invalid, "Rotate: position %d is not below %d", p, r.Offset+r.SeqLen).At("row %d", i).WithID("E-CPU-008"))
				return
			}
			n = max(n, int(p)+1)
		}
	}
	o.t = s.dev.rotary.table(r.Table, n)
	s.split(o.x.rows, rowGrain(o.x.cols), o.run)
	s.end(device.OpRotate, 0)
}

func (o *rotateOp) rows(_, lo, hi int) {
	half, d := o.t.half, o.r.HeadDim
	sin := o.t.sin
	if o.r.Inverse {
		sin = o.t.neg
	}
	for r := lo; r < hi; r++ {
		p := o.r.Offset + r%o.r.SeqLen
		if o.positions != nil {
			p = int(o.positions[r])
		}
		at, x := p*half, o.x.row(r)
		if 2*half == d {
			o.s.isa.Rotate(x, o.t.cos[at:at+half], sin[at:at+half], len(x)/d)
		} else {
			for ; len(x) > 0; x = x[d:] {
				o.s.isa.Rotate(x[:2*half], o.t.cos[at:at+half], sin[at:at+half], 1)
			}
		}
		if f := o.r.QScale(p); f != 1 {
			o.s.isa.Scale(o.x.row(r), float32(f))
		}
	}
}
