package kernel

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestMapLaunches: at the sizes of models, and of batches and rows that scratch has no room for at once, every launch is one that a
// device accepts, scratch suffices, and the strips of each round cover every query and every key once.
func TestMapLaunches(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F32} {
		for _, a := range []device.Attn{
			{Batch: 8, QLen: 1024, Heads: 16, KVHeads: 8, HeadDim: 128},
			{Batch: 300, QLen: 2048, Heads: 14, KVHeads: 2, HeadDim: 64, Window: 512},
			{Batch: 2, QLen: 1 << 15, Heads: 64, KVHeads: 8, HeadDim: 64},
			{Batch: 1, QLen: 1 << 16, Heads: 32, KVHeads: 8, HeadDim: 256},
			{Batch: 1 << 18, QLen: 1, Heads: 2, KVHeads: 1, HeadDim: 16}, {Batch: 200, QLen: 1 << 15, Heads: 64, KVHeads: 8, HeadDim: 64},
			{Batch: 3, QLen: 7, Heads: 3, KVHeads: 3, HeadDim: 20},
			{Batch: 2, QLen: 1, Heads: 1, KVHeads: 1, HeadDim: 512},
		} {
			a.KLen, a.KStride = a.QLen, a.QLen
			n := a.Batch * a.QLen
			q, k, lse := dense(d, n, a.Heads*a.HeadDim), dense(d, n, a.KVHeads*a.HeadDim), dense(tensor.F32, n, a.Heads)
			m := Map{Q: q, K: k, LSE: lse, Sinks: dense(tensor.F32, 1, a.Heads), Attn: a}
			var r recorder
			CompareMaps(&r, q, k, m.Sinks, m, m, dense(tensor.I32, n, 1), dense(tensor.I32, n, 1), .5)
			queries, keys := 0, 0
			for _, l := range r.launches {
				if l.Module != MapsModule {
					continue
				}
				if !hasKernel(t, l.Module, l.Kernel) {
					t.Errorf("%s.cu has no kernel %s", l.Module, l.Kernel)
				}
				if min(l.Grid[0], l.Grid[1], l.Grid[2]) < 1 || l.Grid[1] > 65535 || l.Grid[2] > 65535 {
					t.Errorf("%+v: %s has grid %v", a, l.Kernel, l.Grid)
				}
				args := (*mapsArgs)(l.Args)
				suffix := fmt.Sprintf("_%s_%d", typeName(d), mapColumns(a.HeadDim))
				switch l.Kernel {
				case "maps_queries" + suffix:
					queries += l.Grid[2] * int(args.queries)
				case "maps_keys" + suffix:
					keys += l.Grid[2] * int(args.keys)
				}
			}
			if queries != n || keys != n || r.scratch > MaxScratch {
				t.Errorf("%+v: %d queries and %d keys of %d, %d bytes of scratch", a, queries, keys, n, r.scratch)
			}
		}
	}
}
