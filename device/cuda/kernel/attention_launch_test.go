package kernel

import (
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// leastShared is the shared memory that every device since compute capability 8.0 gives a block that asks for it.
const leastShared = 99 << 10

// TestAttentionLaunches: at the sizes of published models, launches are ones that every device accepts, of kernels in the
// announced modules, and the widths that have kernels of their own use them.
func TestAttentionLaunches(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F32} {
		for _, a := range []device.Attn{
			{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 14, KVHeads: 2, HeadDim: 64},
			{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 28, KVHeads: 4, HeadDim: 128},
			{Batch: 64, QLen: 2048, KLen: 2048, KStride: 2048, Heads: 28, KVHeads: 4, HeadDim: 128},
			{Batch: 1, QLen: 32768, KLen: 32768, KStride: 32768, Heads: 40, KVHeads: 8, HeadDim: 128},
			{Batch: 1, QLen: 7, KLen: 7, KStride: 7, Heads: 3, KVHeads: 3, HeadDim: 80},
			{Batch: 1, QLen: 7, KLen: 7, KStride: 7, Heads: 3, KVHeads: 3, HeadDim: 256},
			{Batch: 8, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 8, KVHeads: 4, HeadDim: 256, Window: 1024, Cap: 50},
			{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 8, KVHeads: 1, HeadDim: 512},
			{Batch: 8, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, Window: 512},
			{Batch: 8, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 32, KVHeads: 8, HeadDim: 64, Window: 512},
			{Batch: 1, QLen: 1, KLen: 9000, QOffset: 8999, KStride: 9000, Heads: 8, KVHeads: 4, HeadDim: 256, Window: 4096, Cap: 50},
			{Batch: 1, QLen: 1, KLen: 9000, QOffset: 8999, KStride: 9000, Heads: 8, KVHeads: 1, HeadDim: 512},
			{Batch: 4, QLen: 1, KLen: 100, QOffset: 99, KStride: 128, Heads: 14, KVHeads: 2, HeadDim: 64},
			{Batch: 1, QLen: 1, KLen: 9000, QOffset: 8999, KStride: 9000, Heads: 28, KVHeads: 4, HeadDim: 128},
		} {
			q, k := dense(d, a.Batch*a.QLen, a.Heads*a.HeadDim), dense(d, a.Batch*a.KStride, a.KVHeads*a.HeadDim)
			lse := dense(tensor.F32, q.Rows, a.Heads)
			var r recorder
			Attention(&r, q, lse, q, k, k, a, Mat{})
			AttentionBackward(&r, q, k, k, q, q, lse, q, k, k, a, Mat{})
			if r.scratch > MaxScratch {
				t.Errorf("%+v: %d bytes of scratch", a, r.scratch)
			}
			module, tiles := plainModule, flashTiles
			if limits(a, Mat{}) || a.HeadDim == 256 && d == tensor.BF16 || a.HeadDim > 256 {
				module, tiles = limitedModule, limitedTiles
			}
			if f, ok := tiles[a.HeadDim]; ok && d == tensor.BF16 {
				module = f.module
			}
			for i, l := range r.launches {
				want := module
				seen := a.KLen
				if a.Window > 0 {
					seen = min(seen, a.Window)
				}
				if a.QLen == 1 && a.HeadDim <= 256 && i < min(2, ceil(seen, decodeShare)) { // of several blocks a head, and what joins them
					want = decodeModule
					if i == 0 && a.Cap > 0 {
						want = decodeCappedModule
					}
				}
				if l.Module != want || !hasKernel(t, l.Module, l.Kernel) || !slices.Contains(AttentionModules(a, false, d, false), want) {
					t.Errorf("%+v of %v: kernel %s of module %s, want %s", a, d, l.Kernel, l.Module, want)
				}
				if l.Shared > leastShared-1024 || l.Block != 64 && l.Block != 128 && l.Block != 256 && l.Block != 512 || l.Grid[1] > 65535 || l.Grid[2] > 65535 || min(l.Grid[0], l.Grid[1], l.Grid[2]) < 1 {
					t.Errorf("%+v: %s has grid %v, block %d, %d bytes of shared memory", a, l.Kernel, l.Grid, l.Block, l.Shared)
				}
			}
		}
	}
}

// TestAttentionTF32Launches: what TestAttentionLaunches says, of float32 heads whose products may round; and where
// others serve.
func TestAttentionTF32Launches(t *testing.T) {
	for _, a := range []device.Attn{
		{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 14, KVHeads: 2, HeadDim: 64},
		{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 16, KVHeads: 8, HeadDim: 128},
		{Batch: 1, QLen: 32768, KLen: 32768, KStride: 32768, Heads: 40, KVHeads: 8, HeadDim: 128},
	} {
		q, k := dense(tensor.F32, a.Batch*a.QLen, a.Heads*a.HeadDim), dense(tensor.F32, a.Batch*a.KStride, a.KVHeads*a.HeadDim)
		lse := dense(tensor.F32, q.Rows, a.Heads)
		var r recorder
		AttentionTF32(&r, q, lse, q, k, k, a, Mat{})
		AttentionBackwardTF32(&r, q, k, k, q, q, lse, q, k, k, a, Mat{})
		if r.scratch > MaxScratch {
			t.Errorf("%+v: %d bytes of scratch", a, r.scratch)
		}
		for _, l := range r.launches {
			if !hasKernel(t, l.Module, l.Kernel) || !slices.Contains(AttentionModules(a, false, tensor.F32, true), l.Module) || slices.Contains(AttentionModules(a, false, tensor.F32, false), l.Module) {
				t.Errorf("%+v: kernel %s of module %s", a, l.Kernel, l.Module)
			}
			if l.Shared > leastShared-1024 || l.Grid[1] > 65535 || l.Grid[2] > 65535 || min(l.Grid[0], l.Grid[1], l.Grid[2]) < 1 {
				t.Errorf("%+v: %s has grid %v and %d bytes of shared memory", a, l.Kernel, l.Grid, l.Shared)
			}
		}
	}
	q, k := dense(tensor.F32, 64, 256), dense(tensor.F32, 64, 128)
	odd := k
	odd.Stride += 2
	plain := device.Attn{Batch: 2, QLen: 32, KLen: 32, KStride: 32, Heads: 4, KVHeads: 2, HeadDim: 64}
	one, wide, window, capped := plain, plain, plain, plain
	one.QLen, wide.HeadDim, window.Window, capped.Cap = 1, 32, 8, 5
	for name, c := range map[string]struct {
		a      device.Attn
		ms     []Mat
		serves bool
	}{
		"all": {plain, []Mat{q, k}, true}, "one query": {one, []Mat{q, k}, false}, "other widths": {wide, []Mat{q, k}, false}, "a window": {window, []Mat{q, k}, false},
		"a soft-cap": {capped, []Mat{q, k}, false}, "rows that begin anywhere": {plain, []Mat{q, odd}, false}, "bfloat16": {plain, []Mat{dense(tensor.BF16, 64, 256)}, false},
	} {
		if AttentionTF32Serves(c.a, Mat{}, c.ms...) != c.serves {
			t.Errorf("%s: served %v", name, !c.serves)
		}
	}
	if AttentionTF32Serves(plain, dense(tensor.I32, 64, 1), q, k) {
		t.Error("documents are served")
	}
}

// TestAttentionAlignment: tensor cores serve only rows that begin at multiples of 16 bytes.
func TestAttentionAlignment(t *testing.T) {
	a := device.Attn{Batch: 2, QLen: 32, KLen: 32, KStride: 32, Heads: 4, KVHeads: 2, HeadDim: 64}
	for _, c := range []struct {
		name string
		move func(q, k, v, o *Mat)
		fast bool
	}{
		{"all aligned", func(q, k, v, o *Mat) {}, true},
		{"wide rows", func(q, k, v, o *Mat) { k.Stride, v.Stride = 512, 520 }, true},
		{"q begins two bytes later", func(q, k, v, o *Mat) { q.Ptr += 2 }, false},
		{"o begins eight bytes later", func(q, k, v, o *Mat) { o.Ptr += 8 }, false},
		{"rows of k eight bytes wider", func(q, k, v, o *Mat) { k.Stride += 4 }, false},
		{"rows of v two bytes wider", func(q, k, v, o *Mat) { v.Stride++ }, false},
	} {
		q, k := dense(tensor.BF16, 64, 256), dense(tensor.BF16, 64, 128)
		v, o := k, q
		c.move(&q, &k, &v, &o)
		var r recorder
		Attention(&r, o, Mat{}, q, k, v, a, Mat{})
		if fast := r.launches[0].Module == "attention_d64"; len(r.launches) != 1 || fast != c.fast {
			t.Errorf("%s: %d launches, the first of %s", c.name, len(r.launches), r.launches[0].Module)
		}
	}
}

// TestAttentionRefuses: what no kernel serves is a panic; other mistakes are found by device.CheckAttention.
func TestAttentionRefuses(t *testing.T) {
	for _, c := range []struct {
		name        string
		dim, stride int
	}{
		{"heads of 513 columns", 513, 0}, {"a stride of 2³¹ elements", 64, 1 << 31},
	} {
		a := device.Attn{Batch: 2, QLen: 32, KLen: 32, KStride: 32, Heads: 4, KVHeads: 2, HeadDim: c.dim}
		q, k := dense(tensor.BF16, 64, 4*c.dim), dense(tensor.BF16, 64, 2*c.dim)
		k.Stride = max(k.Stride, c.stride)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", c.name)
				}
			}()
			Attention(&recorder{}, q, Mat{}, q, k, k, a, Mat{})
		}()
	}
}
