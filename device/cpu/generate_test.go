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
