package kernel

import (
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestBlockLaunches: at the sizes of published models every launch is one that a device accepts, of a kernel in the
// module's PTX, and scratch suffices.
func TestBlockLaunches(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4} {
		for _, s := range [][2]int{{4608, 3584}, {37888, 3584}, {3584, 18944}, {152064, 3584}, {151936, 8192}, {896, 256}, {1, 8192}} {
			b := NewBlocks(1<<32, s[0], s[1], d)
			gaps := b
			gaps.RowBytes += 16
			raw := Bytes{1 << 40, s[0], s[1], s[1] + 16}
			for _, b := range []Blocks{b, gaps, b.Slice(s[0]/3, s[0])} {
				raw.Rows = b.Rows
				checkModules(t, func(q Queue) { DequantizeE4M3(q, raw, b, dense(tensor.F32, b.Rows, 1)) })
				checkModules(t, func(q Queue) { ScaleE4M3(q, dense(tensor.F32, 1, 1), b, b, b) })
				checkModules(t, func(q Queue) { RowScalesE4M3(q, dense(tensor.F32, b.Rows, 1), b) })
				for _, o := range []tensor.DType{tensor.BF16, tensor.F32} {
					checkModules(t, func(q Queue) { Dequantize(q, dense(o, b.Rows, b.Cols), b) })
					for _, m := range []int{1, 2, 8} {
						x, y := dense(o, m, b.Cols), dense(o, m, b.Rows)
						checkModules(t, func(q Queue) { Gemv(q, y, x, b, dense(tensor.F32, 1, b.Rows), true) })
						if half := b.Rows / 2; o == tensor.BF16 && half > 0 {
							gate, up := b.Slice(0, half), b.Slice(half, 2*half)
							checkModules(t, func(q Queue) { GemvSwiGLU(q, dense(o, m, half), dense(o, m, 2*half), x, gate, up, true) })
						}
						checkModules(t, func(q Queue) { GemvPlain(q, y, x, dense(o, b.Rows, b.Cols), Mat{}, false) })
					}
				}
			}
		}
	}
	for _, o := range []tensor.DType{tensor.BF16, tensor.F32} {
		checkModules(t, func(q Queue) { ScaleRows(q, dense(o, 1<<18, 37888), dense(tensor.F32, 1<<18, 1), Mat{}) })
		checkModules(t, func(q Queue) { GemvPlain(q, dense(o, 2, 7), dense(o, 2, 13), dense(o, 7, 13), Mat{}, false) })
	}
	checkModules(t, func(q Queue) {
		QuantizeRows(q, Bytes{1 << 40, 8192, 18944, 18944}, dense(tensor.F32, 8192, 1), dense(tensor.BF16, 8192, 18944))
		for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid} {
			QuantizeGLU(q, Bytes{1 << 40, 8192, 768, 768}, dense(tensor.F32, 8192, 1), dense(tensor.BF16, 8192, 1536), act)
		}
	})
}

func checkModules(t *testing.T, run func(Queue)) {
	t.Helper()
	var r recorder
	run(&r)
	if len(r.launches) == 0 || r.scratch > MaxScratch {
		t.Errorf("%d launches, %d bytes of scratch", len(r.launches), r.scratch)
	}
	for _, k := range r.launches {
		g := k.Grid
		if min(g[0], g[1], g[2]) < 1 || g[0] > 1<<31-1 || g[1] > 65535 || g[2] != 1 || k.Block < 32 || k.Block > 1024 || k.Block%32 != 0 {
			t.Errorf("%s has grid %v, block %d", k.Kernel, g, k.Block)
		}
		if !slices.ContainsFunc(Modules(), func(m Module) bool { return m.Name == k.Module && slices.Contains(m.Kernels, k.Kernel) }) {
			t.Errorf("module %s has no kernel %s", k.Module, k.Kernel)
		}
	}
}

// TestDequantizeServes: what has no kernel is refused before anything is launched.
func TestDequantizeServes(t *testing.T) {
	for _, c := range []struct {
		name string
		b    Blocks
		want bool
	}{
		{"q4_k", NewBlocks(1<<20, 3, 512, tensor.Q4_K), true},
		{"q6_k at 2 bytes", NewBlocks(1<<20+2, 3, 512, tensor.Q6_K), true},
		{"q6_k at 1 byte", NewBlocks(1<<20+1, 3, 512, tensor.Q6_K), false},
		{"q4_k at 8 bytes", NewBlocks(1<<20+8, 3, 512, tensor.Q4_K), false},
		{"iq4_nl at 2 bytes", NewBlocks(1<<20+2, 3, 96, tensor.IQ4_NL), true},
		{"iq4_xs at 8 bytes", NewBlocks(1<<20+8, 3, 512, tensor.IQ4_XS), true},
		{"iq4_xs at 4 bytes", NewBlocks(1<<20+4, 3, 512, tensor.IQ4_XS), false},
		{"mxfp4 at 1 byte", NewBlocks(1<<20+1, 3, 96, tensor.MXFP4), true},
		{"rows end inside a block", NewBlocks(1<<20, 3, 500, tensor.Q4_K), false},
		{"rows overlap", Blocks{1 << 20, 3, 512, 144, tensor.Q4_K}, false},
		{"rows of q5_k at 8 bytes", Blocks{1 << 20, 3, 256, 184, tensor.Q5_K}, false},
		{"plain", NewBlocks(1<<20, 3, 512, tensor.BF16), false},
		{"aprq4", NewBlocks(1<<20, 3, 512, tensor.AprQ4), false},
	} {
		if got := DequantizeServes(c.b); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
