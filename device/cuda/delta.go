package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
	"apr/tensor"
)

// Conv: y_t = silu(Σ_j w_j·x_{t−K+1+j}) by channel.
func (s *Stream) Conv(y, x, w, from, to device.Tensor, c device.Sequences) {
	device.CheckConv(y, x, w, from, to, c)
	limit(w.Cols <= device.MaxTaps, device.OpConv, "more than 8 taps")
	if o := s.begin("Conv", y, x, w, from, to, c.First); o != nil {
		o.sized(x.Rows, x.Cols, w.Cols)
		kernel.Conv(o, mat(y), mat(x), mat(w), mat(from), mat(to), mat(c.First), c)
		o.end()
	}
}

// ConvBackward writes dx and adds dw.
func (s *Stream) ConvBackward(dx, dw, dy, x, w device.Tensor, c device.Sequences) {
	device.CheckConvBackward(dx, dw, dy, x, w, c)
	limit(w.Cols <= device.MaxTaps, device.OpConvBackward, "more than 8 taps")
	if o := s.begin("ConvBackward", dx, dw, dy, x, w, c.First); o != nil {
		o.sized(x.Rows, x.Cols, w.Cols)
		kernel.ConvBackward(o, mat(dx), mat(dw), mat(dy), mat(x), mat(w), mat(c.First), c)
		o.end()
	}
}

// DeltaNet: S̃ = e^g·S, ε = v − S̃ᵀk, S = S̃ + k(βε)ᵀ and o = Sᵀq for each value head.
func (s *Stream) DeltaNet(o, u, ba, logA, dt, from, to device.Tensor, d device.Delta) {
	device.CheckDeltaNet(o, u, ba, logA, dt, from, to, d)
	limit(d.KeyDim <= device.MaxDeltaKeys, device.OpDeltaNet, "heads of more than 128 keys")
	op := s.begin("DeltaNet", o, u, ba, logA, dt, from, to, d.First)
	if op == nil || !s.holds(device.OpDeltaNet, d, u.DType) {
		return
	}
	op.sized(d.Batch, d.Len, d.ValueHeads, d.KeyDim, d.ValueDim)
	kernel.DeltaNet(op, mat(o), mat(u), mat(ba), mat(logA), mat(dt), mat(from), mat(to), mat(d.First), d, s.dev.desc.SharedPerBlockOptin)
	op.end()
}

// DeltaNetBackward writes du and dba, and adds to dLogA and ddt.
func (s *Stream) DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states device.Tensor, d device.Delta) {
	device.CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	limit(d.KeyDim <= device.MaxDeltaKeys, device.OpDeltaNetBackward, "heads of more than 128 keys")
	op := s.begin("DeltaNetBackward", du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d.First)
	if op == nil || !s.holds(device.OpDeltaNetBackward, d, u.DType) {
		return
	}
	op.sized(d.Batch, d.Len, d.ValueHeads, d.KeyDim, d.ValueDim)
	kernel.DeltaNetBackward(op, mat(du), mat(dba), mat(dLogA), mat(ddt), mat(do), mat(u), mat(ba), mat(logA), mat(dt), mat(states), mat(d.First), d, s.dev.desc.SharedPerBlockOptin)
	op.end()
}

// holds reports whether a thread block has room for a chunk of a head, or fails the stream: with float32 activations,
// heads of 128 keys take more shared memory than GPUs for desktops have.
func (s *Stream) holds(op device.Op, d device.Delta, t tensor.DType) bool {
	need, has := kernel.DeltaShared(d, t, op == device.OpDeltaNetBackward), s.dev.desc.SharedPerBlockOptin
	if need > has {
		s.fail(fault.New(fault.Unavailable, "%s of heads of %d keys in %s takes %d bytes of shared memory, %s has %d", op, d.KeyDim, t, need, s.dev.desc.Name, has).
			WithHint("--device cpu, or activations in bf16").WithID("E-CUDA-071"))
		return false
	}
	return true
}

var _ device.DeltaStepper = (*Stream)(nil)

// DeltaStep is Conv, DeltaNet, HeadNorm and GLU of one position by one kernel: see device.DeltaStepper.
func (s *Stream) DeltaStep(y device.Tensor, d device.DeltaStep) bool {
	device.CheckDeltaStep(y, d)
	if s.failed() {
		return true // tensors need not have a place
	}
	m := kernel.DeltaStepMats{
		X: mat(d.X), Z: mat(d.Z), BA: mat(d.BA), Taps: mat(d.Taps), LogA: mat(d.LogA), DT: mat(d.DT), Norm: mat(d.Norm),
		From: mat(d.From), To: mat(d.To), FromInputs: mat(d.FromInputs), Inputs: mat(d.Inputs),
	}
	if !kernel.DeltaStepServes(mat(y), m, d.Delta) {
		return false
	}
	o := s.begin("DeltaStep", y, d.X, d.Z, d.BA, d.Taps, d.LogA, d.DT, d.Norm, d.From, d.To, d.FromInputs, d.Inputs)
	if o != nil {
		o.sized(d.ValueHeads, d.KeyDim, d.ValueDim)
		kernel.DeltaStep(o, mat(y), m, d.Delta, d.Eps)
		o.end()
	}
	return true
}
