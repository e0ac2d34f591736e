package kernel

import (
	"slices"
	"testing"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// hopperBackward runs f with AttentionBackwardSM90.
func hopperBackward(f func()) {
	before := UseAttentionBackwardSM90
	UseAttentionBackwardSM90 = true
	defer func() { UseAttentionBackwardSM90 = before }()
	f()
}

// TestAttentionBackwardSM90Launch: what is asked of a device. The numbers are tested where there is one that runs the
// kernels.
func TestAttentionBackwardSM90Launch(t *testing.T) {
	for _, c := range []struct {
		name          string
		a             device.Attn
		steps         int
		first, second int // blocks of dq and dkv
	}{
		{"one step", device.Attn{Batch: 1, QLen: 64, KLen: 64, KStride: 64, Heads: 1, KVHeads: 1, HeadDim: 64}, 1, 1, 1},
		{"a step a tile that nobody sees", device.Attn{Batch: 1, QLen: 65, KLen: 400, KStride: 400, Heads: 1, KVHeads: 1, HeadDim: 64}, 2 + 1 + 1 + 1, 1, 5},
		{"offset", device.Attn{Batch: 2, QLen: 129, KLen: 200, QOffset: 71, KStride: 256, Heads: 2, KVHeads: 1, HeadDim: 128}, 2 * (3 + 3), 8, 24},
		{"a window", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 28, KVHeads: 4, HeadDim: 128, Window: 128}, 7 * (7*4 + 2), 132, 132},
		{"7B", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 28, KVHeads: 4, HeadDim: 128}, 7 * 72, 132, 132},
		{"0.5B", device.Attn{Batch: 8, QLen: 1024, KLen: 1024, KStride: 1024, Heads: 14, KVHeads: 2, HeadDim: 64}, 7 * 72, 132, 132},
	} {
		q := dense(tensor.BF16, c.a.Batch*c.a.QLen, c.a.Heads*c.a.HeadDim)
		k := dense(tensor.BF16, c.a.Batch*c.a.KStride, c.a.KVHeads*c.a.HeadDim)
		var r recorder
		hopperBackward(func() {
			AttentionBackwardSM90(&r, q, k, k, q, q, dense(tensor.F32, q.Rows, c.a.Heads), q, k, k, c.a, Mat{})
		})
		want := []int{c.first, c.second}
		if c.second > 1 {
			want = append(want, c.second-1)
		}
		if len(r.launches) != len(want) || r.scratch > MaxScratch {
			t.Fatalf("%s: %d launches, %d bytes of scratch", c.name, len(r.launches), r.scratch)
		}
		for i, l := range r.launches {
			if !hasKernel(t, l.Module, l.Kernel) || !slices.Contains(AttentionModules(c.a, false, tensor.BF16, false), l.Module) || l.Grid[0] != want[i] || l.Shared > 227<<10 {
				t.Errorf("%s: %+v", c.name, l)
			}
		}
		shares := (*attentionBackwardArgs)(r.launches[0].Args).backwardShares
		if c.a.Window > 0 {
			shares = (*limitedBackwardArgs)(r.launches[0].Args).backwardShares
		}
		if int(shares.line) != c.steps || int(shares.chunks) != c.second {
			t.Errorf("%s: %d steps in %d chunks", c.name, shares.line, shares.chunks)
		}
	}
}

// TestWindowSteps: a window costs what it keeps. Of the steps of the whole causal triangle at 4,096 positions there are left less than
// a layer with that window may take of the time.
func TestWindowSteps(t *testing.T) {
	a := device.Attn{Batch: 1, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 8, KVHeads: 2, HeadDim: 128}
	all := backwardSteps(a)
	for window, most := range map[int]float64{128: .13, 512: .31, 1024: .5} {
		a.Window = window
		if part := float64(backwardSteps(a)) / float64(all); part > most {
			t.Errorf("a window of %d takes %.2f of the steps", window, part)
		}
	}
}

// TestAttentionBackwardSM90Args: the arguments lie as in attention_backward_sm90.cuh, where AttentionArgs, or LimitedArgs, is a
// member whose size is a multiple of eight.
func TestAttentionBackwardSM90Args(t *testing.T) {
	var a attentionBackwardArgs
	if at := unsafe.Offsetof(a.backwardShares); at != unsafe.Sizeof(a.attentionArgs) || at%8 != 0 {
		t.Errorf("line at %d", at)
	}
	var l limitedBackwardArgs
	if at := unsafe.Offsetof(l.backwardShares); at != unsafe.Sizeof(l.limitedArgs) || at%8 != 0 {
		t.Errorf("line at %d with limits", at)
	}
}

// TestAttentionBackwardSM90Serves: which operands it takes.
func TestAttentionBackwardSM90Serves(t *testing.T) {
	good := device.Attn{Batch: 2, QLen: 64, KLen: 64, KStride: 64, Heads: 4, KVHeads: 2, HeadDim: 64}
	for _, c := range []struct {
		name   string
		change func(dq, dk, do, q, k *Mat, a *device.Attn)
		want   bool
	}{
		{"all aligned", func(dq, dk, do, q, k *Mat, a *device.Attn) {}, true},
		{"wide rows", func(dq, dk, do, q, k *Mat, a *device.Attn) { dq.Stride, dk.Stride, k.Stride = 512, 512, 520 }, true},
		{"few queries", func(dq, dk, do, q, k *Mat, a *device.Attn) { a.QLen = 63 }, false},
		{"no rows", func(dq, dk, do, q, k *Mat, a *device.Attn) { a.Batch = 0 }, false},
		{"another width", func(dq, dk, do, q, k *Mat, a *device.Attn) { a.HeadDim = 96 }, false},
		{"float32", func(dq, dk, do, q, k *Mat, a *device.Attn) { do.Type = tensor.F32 }, false},
		{"dq begins eight bytes later", func(dq, dk, do, q, k *Mat, a *device.Attn) { dq.Ptr += 8 }, false},
		{"rows of dk eight bytes wider", func(dq, dk, do, q, k *Mat, a *device.Attn) { dk.Stride += 4 }, false},
		{"rows of q two bytes wider", func(dq, dk, do, q, k *Mat, a *device.Attn) { q.Stride++ }, false},
		{"statistics beyond the scratch", func(dq, dk, do, q, k *Mat, a *device.Attn) {
			a.Batch, a.QLen, a.KLen, a.KStride = 64, 1<<15, 1<<15, 1<<15
		}, false},
	} {
		q, k, a := dense(tensor.BF16, 128, 256), dense(tensor.BF16, 128, 128), good
		dq, do, o, dk := q, q, q, k
		c.change(&dq, &dk, &do, &q, &k, &a)
		hopperBackward(func() {
			if got := AttentionBackwardSM90Serves(dq, dk, k, do, o, q, k, k, a, Mat{}); got != c.want {
				t.Errorf("%s: %v", c.name, got)
			}
		})
	}
}
