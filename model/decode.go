package model

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// Cache holds the rotated keys and the values of one sequence, so that a position is computed once.
type Cache struct {
	rows     []device.Tensor // per layer [capacity, 2·kv·d]: a key, then its value
	capacity int
	length   int
	decoding string
}

// NewCache reserves a cache of capacity positions.
func (m *Model) NewCache(capacity int) *Cache {
	c := &Cache{capacity: capacity}
	act := m.dev.Info().Activations
	a, _ := m.shape()
	for range m.layers {
		c.rows = append(c.rows, m.dev.Alloc("cache", device.KVCache, act, capacity, 2*a.KVDim()))
	}
	return c
}

// Free gives the cache's memory back; it must not be used afterwards.
func (c *Cache) Free(dev device.Device) { dev.Free(c.rows...) }

// Len returns the number of positions held.
func (c *Cache) Len() int { return c.length }

// Decoding says how the layers of a single position ran: "one launch", or "operation by operation" and why. It is empty on a device
// that knows one way only, or before there was such a position.
func (c *Cache) Decoding() string { return c.decoding }

// Reset forgets all positions.
func (c *Cache) Reset() { c.length = 0 }

// Forget drops the latest n positions.
func (c *Cache) Forget(n int) { c.length -= n }

// Extend runs the body over n further positions of the cached sequence (ids I32 [n,1]) and writes the final
// normalised hidden state of the last one to dst [1, h]. It is the forward of Hidden with keys and values kept.
// More positions than fit are a broken precondition.
func (m *Model) Extend(s device.Stream, dst device.Tensor, c *Cache, ids device.Tensor) {
	a, width := m.shape()
	n, h, q, kv := ids.Rows, m.Config.Hidden, a.QDim(), a.KVDim()
	if c.length+n > c.capacity {
		panic("model: cache is full")
	}
	temp := func(name string, cols int) device.Tensor { return s.Temp(name, device.Scratch, dst.DType, n, cols) }
	x, y, delta := temp("x", h), temp("y", h), temp("delta", h)
	qkv, att := temp("qkv", qkvDim(a)), temp("attention", q)
	gu, prod := temp("gate_up", 2*width), temp("swiglu", width)
	shape := device.Attn{
		Batch: 1, QLen: n, KLen: c.length + n, QOffset: c.length, KStride: c.capacity,
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim,
	}
	var none, pending device.Tensor
	s.Embed(x, m.embed, ids)
	layers := m.layers
	atOnce := n == 1 && m.decodeAtOnce(s, dst, x, c)
	if atOnce {
		layers = nil
	}
	for i := range layers {
		l := &m.layers[i]
		m.normed(s, y, none, x, pending, l.inputNorm)
		s.MatMul(qkv, y, l.qkv, l.qkvBias, false)
		s.Rotate(qkv.ColRange(0, q+kv), m.rotary(n, c.length, false))
		s.Copy(c.rows[i].RowRange(c.length, c.length+n), qkv.ColRange(q, q+2*kv))
		s.Attention(att, none, qkv.ColRange(0, q), c.rows[i].ColRange(0, kv), c.rows[i].ColRange(kv, 2*kv), shape)
		s.MatMul(delta, att, l.o, none, false)
		m.normed(s, y, none, x, delta, l.postNorm)
		s.MatMulSwiGLU(prod, gu, y, l.gateUp, false)
		s.MatMul(delta, prod, l.down, none, false)
		pending = delta
	}
	if !atOnce {
		m.normed(s, dst, none, x.RowRange(n-1, n), pending.RowRange(n-1, n), m.norm)
	}
	s.Release(prod, gu, att, qkv, delta, y, x)
	c.length += n
}

// decodeAtOnce runs all layers for one position, and the norm behind them, as one operation, if the device has it.
func (m *Model) decodeAtOnce(s device.Stream, dst, x device.Tensor, c *Cache) bool {
	at, ok := s.(device.Decoder)
	if !ok {
		return false
	}
	a, width := m.shape()
	d := device.Decode{
		Norm:  m.norm,
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Inter: width, Position: c.length,
		Theta: m.Config.Ropes[0].Theta, Eps: m.Config.Eps,
	}
	for i := range m.layers {
		l := &m.layers[i]
		d.Layers = append(d.Layers, device.DecodeLayer{
			InputNorm: l.inputNorm, PostNorm: l.postNorm, QKV: l.qkv, O: l.o, GateUp: l.gateUp, Down: l.down, Bias: l.qkvBias, Cache: c.rows[i],
		})
	}
	if err := at.Decode(dst, x, d); err != nil {
		c.decoding = "operation by operation: " + err.Error()
		return false
	}
	c.decoding = "one launch"
	return true
}

// NextLogits writes the logits over the first V ids that follow hidden [1, h] to host memory and waits.
func (m *Model) NextLogits(s device.Stream, host []float32, hidden device.Tensor) error {
	z := s.Temp("logits", device.Logits, tensor.F32, 1, len(host))
	defer s.Release(z)
	m.Logits(s, z, hidden)
	return s.Download(host, z)
}

// Greedy finds the id of the largest logit on the device, so that two numbers come to the host instead of a vocabulary.
type Greedy struct {
	m     *Model
	vocab int
	id    device.Tensor // I32 [1,1]
	best  device.Tensor // [1,2]: the id and its logit, or what says that a logit is not finite
	host  [2]float32    // best
}

// NewGreedy returns a Greedy over the first vocab < 2²⁴ ids.
func (m *Model) NewGreedy(vocab int) *Greedy {
	alloc := func(name string, d tensor.DType, cols int) device.Tensor {
		return m.dev.Alloc(name, device.Logits, d, 1, cols)
	}
	return &Greedy{m: m, vocab: vocab, id: alloc("greedy.id", tensor.I32, 1), best: alloc("greedy.best", tensor.F32, 2)}
}

// Free gives the device's memory back.
func (g *Greedy) Free() { g.m.dev.Free(g.id, g.best) }

// Next returns the id of the largest logit that follows hidden [1, h], the lowest of several, and waits. It reports false
// if a logit is NaN or +∞, or all are −∞; then the id says nothing, and NextLogits shows which.
func (g *Greedy) Next(s device.Stream, hidden device.Tensor) (id int32, finite bool, err error) {
	g.queue(s, hidden)
	err = s.Download(g.host[:], g.best)
	return g.found(err)
}

// ID is where the device has the id: I32 [1,1].
func (g *Greedy) ID() device.Tensor { return g.id }

// Begin is Next in two parts, for a stream that is a device.Fetcher: what it returns waits, and has to be called once. Until then
// the device may already compute what follows ID.
func (g *Greedy) Begin(s device.Stream, hidden device.Tensor) func() (id int32, finite bool, err error) {
	g.queue(s, hidden)
	wait := s.(device.Fetcher).Fetch(g.best)
	return func() (int32, bool, error) { return g.found(wait(g.host[:])) }
}

// queue lets the device find the id.
func (g *Greedy) queue(s device.Stream, hidden device.Tensor) {
	z := s.Temp("logits", device.Logits, tensor.F32, 1, g.vocab)
	defer s.Release(z)
	g.m.Logits(s, z, hidden)
	s.ArgMax(g.id, g.best, z)
}

// found reads what queue has found.
func (g *Greedy) found(err error) (id int32, finite bool, _ error) {
	if err != nil {
		return 0, false, err
	}
	if logit := float64(g.host[1]); math.IsNaN(logit) || math.IsInf(logit, 0) {
		return 0, false, nil
	}
	return int32(g.host[0]), true, nil
}
