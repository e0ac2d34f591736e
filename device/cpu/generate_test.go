package cpu_test

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/tensor"
)

// BenchmarkAttentionOneQuery is attention while generating: one query, a long cache.
func BenchmarkAttentionOneQuery(b *testing.B) {
	for _, keys := range []int{256, 4096} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			d := open(b, cpu.Options{})
			s := d.Stream()
			a := device.Attn{Batch: 1, QLen: 1, KLen: keys, QOffset: keys - 1, KStride: keys, Heads: 14, KVHeads: 2, HeadDim: 64}
			q := d.Alloc("q", device.Batch, tensor.F32, 1, a.Heads*a.HeadDim)
			o := d.Alloc("o", device.Batch, tensor.F32, 1, a.Heads*a.HeadDim)
			k := d.Alloc("k", device.KVCache, tensor.F32, keys, a.KVHeads*a.HeadDim)
			v := d.Alloc("v", device.KVCache, tensor.F32, keys, a.KVHeads*a.HeadDim)
			for b.Loop() {
				s.Attention(o, device.Tensor{}, q, k, v, a)
			}
			b.SetBytes(2 * 4 * int64(keys*a.KVHeads*a.HeadDim))
		})
	}
}

// BenchmarkAttention is attention of the teacher of BenchmarkStep, and its backward.
func BenchmarkAttention(b *testing.B) {
	for _, backward := range []bool{false, true} {
		b.Run(fmt.Sprint("backward=", backward), func(b *testing.B) {
			d := open(b, cpu.Options{})
			s := d.Stream()
			a := device.Attn{Batch: 8, QLen: 256, KLen: 256, KStride: 256, Heads: 4, KVHeads: 2, HeadDim: 64}
			alloc := func(cols int) device.Tensor { return d.Alloc("x", device.Activations, tensor.F32, 8*256, cols) }
			qkv, dqkv, o, do, lse := alloc(512), alloc(512), alloc(256), alloc(256), alloc(4)
			split := func(x device.Tensor) (q, k, v device.Tensor) {
				return x.ColRange(0, 256), x.ColRange(256, 384), x.ColRange(384, 512)
			}
			q, k, v := split(qkv)
			dq, dk, dv := split(dqkv)
			for b.Loop() {
				if backward {
					s.AttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
				} else {
					s.Attention(o, lse, q, k, v, a)
				}
			}
			op := s.Profile()[0]
			b.ReportMetric(float64(op.FLOPs)/op.Time.Seconds()/1e9, "GFLOP/s")
		})
	}
}
