package cpu

import (
	"math"
	"sync"

	"apr/device"
)

type swigluOp struct {
	s          *Stream
	m, gu, dgu mat
	fwd, bwd   func(worker, lo, hi int)
}

// SwiGLU: m = silu(g)·u, gu [n, 2f] holding g then u.
func (s *Stream) SwiGLU(m, gu device.Tensor) {
	device.CheckSwiGLU(m, gu)
	if !s.begin() {
		return
	}
	o := &s.ops.swiglu
	o.m, o.gu = floats(m), floats(gu)
	s.split(o.m.rows, rowGrain(o.m.cols), o.fwd)
	s.end(device.OpSwiGLU, 0)
}

func (o *swigluOp) forward(_, lo, hi int) {
	f := o.m.cols
	for r := lo; r < hi; r++ {
		gu := o.gu.row(r)
		o.s.isa.SiluMul(o.m.row(r), gu[:f], gu[f:])
	}
}

// MatMulSwiGLU: gu = x·Wᵀ and m = silu(g)·u. gu is kept in any case.
func (s *Stream) MatMulSwiGLU(m, gu, x device.Tensor, w device.Weight, _ bool) {
	device.CheckMatMulSwiGLU(m, gu, x, w)
	s.MatMul(gu, x, w, device.Tensor{}, false)
	s.SwiGLU(m, gu)
}

// SwiGLUBackward writes dgu: dg = dm·u·σ(g)(1+g(1−σ(g))), du = dm·g·σ(g). dgu may be gu itself.
func (s *Stream) SwiGLUBackward(dgu, dm, gu device.Tensor) {
	device.CheckSwiGLUBackward(dgu, dm, gu)
	if !s.begin() {
		return
	}
	o := &s.ops.swiglu
	o.dgu, o.m, o.gu = floats(dgu), floats(dm), floats(gu)
	s.split(o.m.rows, rowGrain(o.m.cols), o.bwd)
	s.end(device.OpSwiGLUBackward, 0)
}

func (o *swigluOp) backward(_, lo, hi int) {
	f := o.m.cols
	for r := lo; r < hi; r++ {
		gu, dgu := o.gu.row(r), o.dgu.row(r)
		o.s.isa.SiluMulGrad(dgu[:f], dgu[f:], o.m.row(r), gu[:f], gu[f:])
	}
}

// rotaryCache keeps the cosines and sines of each θ and head size, for as many positions as were asked for.
type rotaryCache struct {
	mu     sync.Mutex
	tables map[rotaryKey]*rotaryTable
}

type rotaryKey struct {
	theta float64
	half  int
}

// rotaryTable holds rows of half values, one for each position.
type rotaryTable struct {
	n, half       int
	cos, sin, neg []float32 // neg = −sin, for the inverse
}

// table returns a table of at least n positions. Angles and functions are float64, rounded once.
func (c *rotaryCache) table(theta float64, half, n int) *rotaryTable {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := rotaryKey{theta, half}
	if t := c.tables[key]; t != nil && t.n >= n {
		return t
	}
	if c.tables == nil {
		c.tables = map[rotaryKey]*rotaryTable{}
	}
	old := c.tables[key]
	if old != nil {
		n = max(n, 2*old.n) // generation asks for one more each time
	}
	t := &rotaryTable{n: n, half: half, cos: make([]float32, n*half), sin: make([]float32, n*half), neg: make([]float32, n*half)}
	for i := range half {
		freq := math.Pow(theta, -float64(i)/float64(half))
		for pos := range n {
			sin, cos := math.Sincos(float64(pos) * freq)
			k := pos*half + i
			t.cos[k], t.sin[k], t.neg[k] = float32(cos), float32(sin), -float32(sin)
		}
	}
	c.tables[key] = t
	return t
}

type rotateOp struct {
	s   *Stream
	x   mat
	r   device.Rotary
	t   *rotaryTable
	run func(worker, lo, hi int)
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	if !s.begin() {
		return
	}
	o := &s.ops.rotate
	o.x, o.r = floats(x), r
	o.t = s.dev.rotary.table(r.Theta, r.HeadDim/2, r.Offset+min(r.SeqLen, max(1, x.Rows)))
	s.split(o.x.rows, rowGrain(o.x.cols), o.run)
	s.end(device.OpRotate, 0)
}

func (o *rotateOp) rows(_, lo, hi int) {
	half := o.t.half
	sin := o.t.sin
	if o.r.Inverse {
		sin = o.t.neg
	}
	for r := lo; r < hi; r++ {
		at := (o.r.Offset + r%o.r.SeqLen) * half
		o.s.isa.Rotate(o.x.row(r), o.t.cos[at:at+half], sin[at:at+half], o.x.cols/o.r.HeadDim)
	}
}
