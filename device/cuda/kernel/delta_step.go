package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

const (
	deltaStepThreads = 1024 // STEP_THREADS of delta_step.cuh
	deltaStepTaps    = 4    // of the convolution at most
)

// DeltaStepMats are the operands of DeltaStep, by the names of device.DeltaStep.
type DeltaStepMats struct {
	X, Z, BA           Mat
	Taps, LogA, DT     Mat
	Norm               Mat
	From, To           Mat
	FromInputs, Inputs Mat
}

// deltaStepArgs is struct DeltaStepArgs of delta_step.cuh.
type deltaStepArgs struct {
	x, z, ba, y                               uint64
	taps, logA, dt, norm                      uint64
	from, to, inputs, next                    uint64
	tapsStride, fromStride, toStride          int64
	inputsStride, nextStride                  int64
	keyHeads, valueHeads, dk, dv, conv, lanes uint32
	eps, invD                                 float32
}

// DeltaStepServes reports whether DeltaStep takes these: heads that a thread block holds, of whole packs, and inputs
// that are not written where others read them.
func DeltaStepServes(y Mat, m DeltaStepMats, d device.Delta) bool {
	apart := d.KeyHeads == d.ValueHeads || m.FromInputs.Ptr != m.Inputs.Ptr
	return d.KeyDim <= device.MaxDeltaKeys && d.ValueDim <= device.MaxDeltaKeys && m.Taps.Cols <= deltaStepTaps && apart &&
		packWidth(d.ValueDim, y, m.Z, m.Norm) == 8
}

// DeltaStep is, of one position of one sequence, Conv of x, DeltaNet of its output, HeadNorm of that, and GLU with SiLU
// of z and the norm, in their bits: see device.DeltaStepper. A thread block has a head.
//
// Bytes moved: those of the states, once in and once out.
func DeltaStep(q Queue, y Mat, m DeltaStepMats, d device.Delta, eps float64) {
	need(DeltaStepServes(y, m, d), "DeltaStep", "heads, taps or alignment")
	need(m.Norm.Type == tensor.F32 && m.To.Type == tensor.F32, "DeltaStep", "type")
	q.Launch(Launch{
		Module: DeltaModule, Kernel: "delta_step_" + typeName(y.Type),
		Grid: [3]int{d.ValueHeads, 1, 1}, Block: deltaStepThreads,
		Args: unsafe.Pointer(&deltaStepArgs{
			x: m.X.Ptr, z: m.Z.Ptr, ba: m.BA.Ptr, y: y.Ptr, taps: m.Taps.Ptr, logA: m.LogA.Ptr, dt: m.DT.Ptr, norm: m.Norm.Ptr,
			from: m.From.Ptr, to: m.To.Ptr, inputs: m.FromInputs.Ptr, next: m.Inputs.Ptr, tapsStride: int64(m.Taps.Stride),
			fromStride: int64(m.From.Stride), toStride: int64(m.To.Stride), inputsStride: int64(m.FromInputs.Stride),
			nextStride: int64(m.Inputs.Stride), keyHeads: uint32(d.KeyHeads), valueHeads: uint32(d.ValueHeads),
			dk: uint32(d.KeyDim), dv: uint32(d.ValueDim), conv: uint32(m.Taps.Cols),
			lanes: headNormForm(d.ValueDim, y, m.Z, m.Norm).lanes, eps: float32(eps), invD: 1 / float32(d.ValueDim),
		}),
	})
}
