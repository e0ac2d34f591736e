package kernel

import (
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestSinkLaunches: at the sizes of gpt-oss, and of batches that scratch has no room for at once, every launch is one that a device
// accepts, every row is attended once, and scratch suffices.
func TestSinkLaunches(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F32} {
		for _, c := range []struct {
			a     device.Attn
			parts int
		}{
			{device.Attn{Batch: 8, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 64, KVHeads: 8, HeadDim: 64, Window: 128}, 1},
			{device.Attn{Batch: 257, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 64, KVHeads: 8, HeadDim: 64}, 9},
			{device.Attn{Batch: 1, QLen: 1, KLen: 1 << 17, QOffset: 1<<17 - 1, KStride: 1 << 17, Heads: 64, KVHeads: 8, HeadDim: 64}, 1},
			{device.Attn{Batch: 64, QLen: 1, KLen: 1 << 16, QOffset: 1<<16 - 1, KStride: 1 << 16, Heads: 64, KVHeads: 8, HeadDim: 64}, 1},
			{device.Attn{Batch: 3, QLen: 7, KLen: 7, KStride: 7, Heads: 3, KVHeads: 3, HeadDim: 20}, 1},
		} {
			a := c.a
			a.Sinks = device.Tensor{Rows: 1, Cols: a.Heads, Stride: a.Heads, Buf: noBuffer{}}
			q, k := dense(d, a.Batch*a.QLen, a.Heads*a.HeadDim), dense(d, a.Batch*a.KStride, a.KVHeads*a.HeadDim)
			lse, sinks := dense(tensor.F32, q.Rows, a.Heads), dense(tensor.F32, 1, a.Heads)
			var r, g recorder
			batches := 0
			count := func(queue Queue, o, lse, q, k, v Mat, a device.Attn, first Mat) {
				batches += a.Batch
				Attention(queue, o, lse, q, k, v, a, first)
			}
			AttentionSinks(&r, count, q, lse, q, k, k, a, Mat{}, sinks)
			SinkGrad(&g, sinks, q, q, lse, sinks, a.HeadDim)
			ends := 0
			for _, l := range slices.Concat(r.launches, g.launches) {
				if l.Kernel == "add_sinks_"+typeName(d)+"_8" || l.Kernel == "add_sinks_"+typeName(d)+"_1" {
					ends++
				}
				if !hasKernel(t, l.Module, l.Kernel) && l.Module == SinksModule {
					t.Errorf("%s.cu has no kernel %s", l.Module, l.Kernel)
				}
				if min(l.Grid[0], l.Grid[1], l.Grid[2]) < 1 || l.Grid[1] > 65535 || l.Grid[2] > 65535 {
					t.Errorf("%+v: %s has grid %v", c.a, l.Kernel, l.Grid)
				}
			}
			if batches != a.Batch || ends != c.parts || r.scratch > MaxScratch || g.scratch > MaxScratch {
				t.Errorf("%+v: %d of %d batch rows in %d parts, want %d; %d and %d bytes of scratch", c.a, batches, a.Batch, ends, c.parts, r.scratch, g.scratch)
			}
		}
	}
}

// noBuffer marks a tensor as there.
type noBuffer struct{ device.Buffer }
