package kernel

import (
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestDeltaLaunches: at the sizes of published models, and around what scratch memory has room for, every launch is one that a
// device accepts, of a kernel in the module's PTX, scratch suffices, and shared memory is that of a GPU of compute capability 8.6 in
// bfloat16, of 8.0 in float32.
func TestDeltaLaunches(t *testing.T) {
	for _, s := range []struct{ batch, n, hk, hv int }{
		{1, 1, 16, 32}, {1, 17, 16, 32}, {1, 4096, 16, 32}, {4, 4096, 16, 32}, {64, 2048, 16, 16}, {3, 262144, 16, 64}, {1000, 65, 16, 32}, {256, 64, 1, 2},
	} {
		d := device.Delta{Sequences: device.Sequences{Batch: s.batch, Len: s.n}, KeyHeads: s.hk, ValueHeads: s.hv, KeyDim: 128, ValueDim: 128}
		n, state := s.batch*s.n, d.KeyDim*d.ValueDim
		for _, o := range []tensor.DType{tensor.BF16, tensor.F32} {
			u, ba, out := dense(o, n, d.Channels()), dense(o, n, 2*s.hv), dense(o, n, d.Inner())
			log, states := dense(tensor.F32, 1, s.hv), dense(tensor.F32, s.batch*s.hv, state)
			checkModules(t, func(q Queue) { DeltaNet(q, out, u, ba, log, log, states, states, Mat{}, d, 227<<10) })
			chunks := dense(tensor.F32, s.batch*s.hv*d.Chunks(), state)
			checkModules(t, func(q Queue) { DeltaNetBackward(q, u, ba, log, log, out, u, ba, log, log, chunks, Mat{}, d, 227<<10) })
			x := dense(o, n, 8192)
			checkModules(t, func(q Queue) {
				Conv(q, x, x, dense(tensor.F32, 8192, 4), dense(o, s.batch*3, 8192), dense(o, s.batch*3, 8192), Mat{}, d.Sequences)
			})
			checkModules(t, func(q Queue) {
				ConvBackward(q, x, dense(tensor.F32, 8192, 4), x, x, dense(tensor.F32, 8192, 4), Mat{}, d.Sequences)
			})
			if f := deltaFormOf(u, d, 227<<10); o == tensor.BF16 && (f.stages != 2 || f.shared > 227<<10) {
				t.Errorf("%d chunks at a time in %d bytes", f.stages, f.shared)
			}
			if has := map[tensor.DType]int{tensor.BF16: 99 << 10, tensor.F32: 163 << 10}[o]; DeltaShared(d, o, true) > has || DeltaShared(d, o, false) > has {
				t.Errorf("%v: %d and %d bytes of shared memory, %d are there", o, DeltaShared(d, o, false), DeltaShared(d, o, true), has)
			}
		}
	}
}

// deltaStep launches DeltaStep at the sizes of Qwen3.5-9B.
func deltaStep(q Queue, act tensor.DType) {
	one := device.Sequences{Batch: 1, Len: 1}
	d := device.Delta{Sequences: one, KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128}
	heads, state := dense(tensor.F32, 1, 32), dense(tensor.F32, 32, 128*128)
	before, behind := dense(act, 3, 8192), dense(act, 3, 8192)
	behind.Ptr += 1 << 20
	DeltaStep(q, dense(act, 1, 4096), DeltaStepMats{
		X: dense(act, 1, 8192), Z: dense(act, 1, 4096), BA: dense(act, 1, 64), Taps: dense(tensor.F32, 8192, 4),
		LogA: heads, DT: heads, Norm: dense(tensor.F32, 1, 128), From: state, To: state, FromInputs: before, Inputs: behind,
	}, d, 1e-6)
}

func TestDeltaStepLaunches(t *testing.T) {
	for _, act := range []tensor.DType{tensor.BF16, tensor.F32} {
		checkModules(t, func(q Queue) { deltaStep(q, act) })
	}
}
