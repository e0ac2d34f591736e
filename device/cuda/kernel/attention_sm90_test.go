package kernel

import (
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// hopper runs f with AttentionSM90.
func hopper(f func()) {
	before := UseAttentionSM90
	UseAttentionSM90 = true
	defer func() { UseAttentionSM90 = before }()
	f()
}

// TestAttentionSM90Launch: what is asked of a device. The numbers are tested where there is one that runs the kernel.
func TestAttentionSM90Launch(t *testing.T) {
	for _, c := range []struct {
		name   string
		a      device.Attn
		kernel string
		blocks int
	}{
		{"one block", device.Attn{Batch: 1, QLen: 64, KLen: 64, KStride: 64, Heads: 1, KVHeads: 1, HeadDim: 64}, "attention_sm90_d64", 1},
		{"an item each", device.Attn{Batch: 1, QLen: 129, KLen: 200, QOffset: 71, KStride: 256, Heads: 2, KVHeads: 1, HeadDim: 128}, "attention_sm90_d128", 4},
		{"7B", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 28, KVHeads: 4, HeadDim: 128}, "attention_sm90_d128", 0},
		{"a window", device.Attn{Batch: 8, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, Window: 512}, "attention_limited_sm90_d128", 0},
		{"a window that hides nothing", device.Attn{Batch: 8, QLen: 512, KLen: 512, KStride: 512, Heads: 32, KVHeads: 8, HeadDim: 128, Window: 512}, "attention_sm90_d128", 0},
		{"narrow", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 32, KVHeads: 8, HeadDim: 64, Window: 128}, "attention_limited_sm90_d64", 0},
		{"wide", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 8, KVHeads: 4, HeadDim: 256, Cap: 50}, "attention_limited_sm90_d256", 0},
		{"0.5B", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 14, KVHeads: 2, HeadDim: 64}, "attention_sm90_d64", 0},
	} {
		q := dense(tensor.BF16, c.a.Batch*c.a.QLen, c.a.Heads*c.a.HeadDim)
		k := dense(tensor.BF16, c.a.Batch*c.a.KStride, c.a.KVHeads*c.a.HeadDim)
		var r recorder
		hopper(func() { AttentionSM90(&r, q, Mat{}, q, k, k, c.a, Mat{}) })
		if c.blocks == 0 {
			c.blocks = r.Multiprocessors()
		}
		if len(r.launches) != 1 {
			t.Fatalf("%s: %d launches", c.name, len(r.launches))
		}
		l := r.launches[0]
		if !slices.Contains(AttentionModules(c.a, false, tensor.BF16, false), l.Module) {
			t.Errorf("%s: module %s was not announced", c.name, l.Module)
		}
		if l.Kernel != c.kernel || !hasKernel(t, l.Module, l.Kernel) || l.Grid != [3]int{c.blocks, 1, 1} || l.Block != 384 || l.Shared > 227<<10 {
			t.Errorf("%s: %+v", c.name, l)
		}
	}
}

// TestAttentionSM90Serves: which operands it takes.
func TestAttentionSM90Serves(t *testing.T) {
	good := device.Attn{Batch: 2, QLen: 64, KLen: 64, KStride: 64, Heads: 4, KVHeads: 2, HeadDim: 64}
	for _, c := range []struct {
		name   string
		change func(o, q, k, v *Mat, a *device.Attn)
		want   bool
	}{
		{"all aligned", func(o, q, k, v *Mat, a *device.Attn) {}, true},
		{"wide rows", func(o, q, k, v *Mat, a *device.Attn) { q.Stride, k.Stride, v.Stride = 512, 512, 520 }, true},
		{"few queries", func(o, q, k, v *Mat, a *device.Attn) { a.QLen = 63 }, false},
		{"a window", func(o, q, k, v *Mat, a *device.Attn) { a.Window = 9 }, true},
		{"a soft-cap", func(o, q, k, v *Mat, a *device.Attn) { a.Cap = 9 }, false},
		{"another width", func(o, q, k, v *Mat, a *device.Attn) { a.HeadDim = 96 }, false},
		{"float32", func(o, q, k, v *Mat, a *device.Attn) { o.Type = tensor.F32 }, false},
		{"o begins eight bytes later", func(o, q, k, v *Mat, a *device.Attn) { o.Ptr += 8 }, false},
		{"q begins two bytes later", func(o, q, k, v *Mat, a *device.Attn) { q.Ptr += 2 }, false},
		{"rows of k eight bytes wider", func(o, q, k, v *Mat, a *device.Attn) { k.Stride += 4 }, false},
		{"rows of v two bytes wider", func(o, q, k, v *Mat, a *device.Attn) { v.Stride++ }, false},
	} {
		o, k, a := dense(tensor.BF16, 128, 256), dense(tensor.BF16, 128, 128), good
		q, v := o, k
		c.change(&o, &q, &k, &v, &a)
		hopper(func() {
			if got := AttentionSM90Serves(o, q, k, v, a, Mat{}); got != c.want {
				t.Errorf("%s: %v", c.name, got)
			}
		})
	}
}
