package model

import (
	"apr/device"
	"apr/tensor"
)

// Cache holds the rotated keys and the values of one sequence, so that a position is computed once.
type Cache struct {
	k, v     []device.Tensor // per layer [capacity, kv·d]
	capacity int
	length   int
}

// NewCache reserves a cache of capacity positions.
func (m *Model) NewCache(capacity int) *Cache {
	c := &Cache{capacity: capacity}
	act := m.dev.Info().Activations
	for range m.layers {
		c.k = append(c.k, m.dev.Alloc("cache.k", device.KVCache, act, capacity, m.kvDim()))
		c.v = append(c.v, m.dev.Alloc("cache.v", device.KVCache, act, capacity, m.kvDim()))
	}
	return c
}

// Free gives the cache's memory back; it must not be used afterwards.
func (c *Cache) Free(dev device.Device) {
	dev.Free(c.k...)
	dev.Free(c.v...)
}

// Len returns the number of positions held.
func (c *Cache) Len() int { return c.length }

// Capacity returns the number of positions that fit.
func (c *Cache) Capacity() int { return c.capacity }

// Reset forgets all positions.
func (c *Cache) Reset() { c.length = 0 }

// Extend runs the body over n further positions of the cached sequence (ids I32 [n,1]) and writes the final
// normalised hidden state of the last one to dst [1, h]. It is the forward of Hidden with keys and values kept.
// More positions than fit are a broken precondition.
func (m *Model) Extend(s device.Stream, dst device.Tensor, c *Cache, ids device.Tensor) {
	n, h, q, kv := ids.Rows, m.HiddenSize, m.qDim(), m.kvDim()
	if c.length+n > c.capacity {
		panic("model: cache is full")
	}
	temp := func(name string, cols int) device.Tensor { return s.Temp(name, device.Scratch, dst.DType, n, cols) }
	x, y, delta := temp("x", h), temp("y", h), temp("delta", h)
	qkv, att := temp("qkv", m.qkvDim()), temp("attention", q)
	gu, prod := temp("gate_up", 2*m.IntermediateSize), temp("swiglu", m.IntermediateSize)
	shape := device.Attn{
		Batch: 1, QLen: n, KLen: c.length + n, QOffset: c.length, KStride: c.capacity,
		Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.HeadDim,
	}
	var none, pending device.Tensor
	s.Embed(x, m.embed, ids)
	for i := range m.layers {
		l := &m.layers[i]
		m.normed(s, y, none, x, pending, l.inputNorm)
		s.MatMul(qkv, y, l.qkv, l.qkvBias, false)
		s.Rotate(qkv.ColRange(0, q+kv), m.rotary(n, c.length, false))
		s.Copy(c.k[i].RowRange(c.length, c.length+n), qkv.ColRange(q, q+kv))
		s.Copy(c.v[i].RowRange(c.length, c.length+n), qkv.ColRange(q+kv, q+2*kv))
		s.Attention(att, none, qkv.ColRange(0, q), c.k[i], c.v[i], shape)
		s.MatMul(delta, att, l.o, none, false)
		m.normed(s, y, none, x, delta, l.postNorm)
		s.MatMulSwiGLU(prod, gu, y, l.gateUp, false)
		s.MatMul(delta, prod, l.down, none, false)
		pending = delta
	}
	last := func(t device.Tensor) device.Tensor { return t.RowRange(n-1, n) }
	m.normed(s, dst, none, last(x), last(pending), m.norm)
	s.Release(prod, gu, att, qkv, delta, y, x)
	c.length += n
}

// NextLogits writes the logits over the first V ids that follow hidden [1, h] to host memory and waits.
func (m *Model) NextLogits(s device.Stream, host []float32, hidden device.Tensor) error {
	z := s.Temp("logits", device.Logits, tensor.F32, 1, len(host))
	defer s.Release(z)
	m.Logits(s, z, hidden)
	return s.Download(host, z)
}
