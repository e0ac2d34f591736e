package kernel

import (
	"math"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// Sizes of loss.cu.
const (
	lossThreads = 256
	lossSlice   = 4096                // columns that one thread block takes
	lossWarps   = 4                   // rows that a thread block of loss_rows and loss_sums takes
	lossRows    = 4096                // most rows of one round of launches
	lossScratch = MaxScratch / 4 * 3  // most bytes of one round, unless one row needs more
	rowBytes    = 3*8 + 8*4 + 4 + 3*4 // struct Row
	stateBytes  = 5*8 + 2*4 + 2*4     // struct State
	termsBytes  = 2 * 8               // struct Terms
	log2e       = 1 / math.Ln2
)

// The size of struct LossArgs.
var _ [168]byte = [unsafe.Sizeof(lossArgs{})]byte{}

// The kinds of loss.cu.
const (
	crossEntropy = iota
	forwardKL
	reverseKL
	totalVariation
	mixture
)

// lossMix holds the coefficients of a divergence from a mixture; struct Mix of loss.cu.
type lossMix struct{ beta, dp, dq, hLog, hP, hQ float32 }

// lossArgs is struct LossArgs of loss.cu.
type lossArgs struct {
	z, t, grad, targets, record, states, terms, rows uint64
	alpha, temperature                               float64
	zStride, tStride, gradStride, targetStride       int64
	n, cols, slices, kind, vector, narrow            int32
	k, invT                                          float32
	mix                                              lossMix
}

// cappedLossArgs is struct CappedLossArgs of loss.cuh; lossArgs begins it, so that all kernels read one.
type cappedLossArgs struct {
	lossArgs
	invCap float32
}

// LossCappedModule has the gradients of logits with a soft-cap.
const LossCappedModule = "loss_capped"

// The size of struct CappedLossArgs.
var _ [176]byte = [unsafe.Sizeof(cappedLossArgs{})]byte{}

// Loss adds the sums over the rows of z and t [c,V] (float32; t zero: no teacher) with targets (int32, [c,1] or [1,c])
// to the record and, unless grad is zero, writes InvN·∂/∂z of the loss, with InvN read from the record, to grad
// [c,V], float32 or bfloat16; grad may be z itself. Formulas: device.LossSpec. A target outside [0,V) is noted as
// FaultTarget; its row adds nothing and has the gradient 0. With spec.Cap the gradient is multiplied by 1−(z/Cap)².
//
// Bytes moved per logit with a bfloat16 gradient: 18 for forward KL, 26 for the other divergences, 10 without teacher.
func Loss(q Queue, grad, z, t, targets Mat, spec device.LossSpec) {
	if z.Rows == 0 || z.Cols == 0 {
		return
	}
	lossRounds(q, z, 0, func(lo int, scratch lossScratched) {
		a := newLossArgs(q.Record(), grad, z, t, targets, spec)
		a.take(lo, grad, z, t, scratch)
		lossRound(q, &a.lossArgs, spec)
	})
}

// lossScratched is the scratch memory of a round of n rows.
type lossScratched struct {
	n, slices                 int
	states, terms, rows, more uint64
}

// lossRounds calls f for groups of rows of z, each from row lo on, as large as scratch memory allows. A row needs
// scratch memory for its states and terms, and `more` bytes.
func lossRounds(q Queue, z Mat, more int, f func(lo int, s lossScratched)) {
	slices := ceil(z.Cols, lossSlice)
	perRow := rowBytes + slices*(stateBytes+termsBytes) + more
	group := min(z.Rows, lossRows, max(1, lossScratch/perRow))
	s := lossScratched{slices: slices, states: q.Scratch(group * perRow)}
	s.terms = s.states + uint64(group*slices*stateBytes)
	s.rows = s.terms + uint64(group*slices*termsBytes)
	s.more = s.rows + uint64(group*rowBytes)
	for lo := 0; lo < z.Rows; lo += group {
		s.n = min(group, z.Rows-lo)
		f(lo, s)
	}
}

// take sets the arguments of a group of rows that begins at row lo.
func (a *lossArgs) take(lo int, grad, z, t Mat, s lossScratched) {
	a.n, a.slices, a.states, a.terms, a.rows = int32(s.n), int32(s.slices), s.states, s.terms, s.rows
	skip(&a.z, lo, z)
	skip(&a.t, lo, t)
	skip(&a.grad, lo, grad)
	a.targets += uint64(4 * lo * int(a.targetStride))
}

// skip moves the address of m by rows, if m is there.
func skip(ptr *uint64, rows int, m Mat) {
	if !m.IsZero() {
		*ptr += uint64(rows * m.Stride * elementBytes(m.Type))
	}
}

func newLossArgs(record uint64, grad, z, t, targets Mat, spec device.LossSpec) *cappedLossArgs {
	a := &cappedLossArgs{}
	if spec.Cap > 0 {
		a.invCap = float32(1 / spec.Cap)
	}
	a.lossArgs = lossArgs{
		z: z.Ptr, t: t.Ptr, grad: grad.Ptr, targets: targets.Ptr, record: record,
		alpha: spec.Alpha, temperature: spec.Temperature,
		zStride: int64(z.Stride), tStride: int64(t.Stride), gradStride: int64(grad.Stride), targetStride: 1,
		cols: int32(z.Cols), vector: flag(fourAligned(z) && fourAligned(t) && fourAligned(grad)), narrow: flag(grad.Type == tensor.BF16),
	}
	if targets.Cols == 1 {
		a.targetStride = int64(targets.Stride)
	}
	if !t.IsZero() {
		a.k, a.invT = float32(log2e/spec.Temperature), float32(1/spec.Temperature)
		a.choose(spec)
	}
	return a
}

// choose sets the divergence to compute and the coefficients of its mixture. Where a parameter makes one divergence
// another, it is named for what it is.
func (a *lossArgs) choose(spec device.LossSpec) {
	b, rest := float32(spec.Beta), float32(1-spec.Beta)
	switch spec.Divergence {
	case device.ForwardKL:
		a.kind = forwardKL
	case device.ReverseKL:
		a.kind = reverseKL
	case device.TVD:
		a.kind = totalVariation
	case device.JSD:
		a.kind, a.mix = mixture, lossMix{beta: b, dp: b, dq: rest, hLog: rest}
		if b == 1 {
			a.kind = reverseKL
		}
	case device.SkewForward:
		a.kind, a.mix = mixture, lossMix{beta: b, dp: 1, hP: -rest}
	case device.SkewReverse:
		a.kind, a.mix = mixture, lossMix{beta: rest, dq: 1, hLog: 1, hQ: -b}
	default:
		panic("kernel: Loss: unknown divergence")
	}
	if b == 0 && (spec.Divergence == device.JSD || spec.Divergence == device.SkewForward) {
		a.kind = forwardKL
	}
	if b == 0 && spec.Divergence == device.SkewReverse {
		a.kind = reverseKL
	}
}

// lossRound queues the launches for a.n rows.
func lossRound(q Queue, a *lossArgs, spec device.LossSpec) {
	rows := (int(a.n) + lossWarps - 1) / lossWarps
	launch := func(kernel string, blocks, threads int) {
		q.Launch(Launch{Module: "loss", Kernel: kernel, Grid: [3]int{blocks, 1, 1}, Block: threads, Args: unsafe.Pointer(a)})
	}
	slices := func(module, kernel string) {
		q.Launch(Launch{Module: module, Kernel: kernel, Grid: [3]int{int(a.slices), int(a.n), 1}, Block: lossThreads, Args: unsafe.Pointer(a)})
	}
	eachSlice := func(kernel string) { slices("loss", kernel) }
	gradient := func(name string) {
		if spec.Cap > 0 {
			slices(LossCappedModule, "loss_capped_"+name)
			return
		}
		eachSlice("loss_grad_" + name)
	}
	if a.t == 0 {
		eachSlice("loss_stats_alone")
	} else {
		eachSlice("loss_stats")
	}
	launch("loss_rows", rows, 32*lossWarps)
	if a.kind > forwardKL {
		eachSlice("loss_terms_" + lossNames[a.kind])
		launch("loss_sums", rows, 32*lossWarps)
	}
	switch {
	case a.grad == 0:
	case spec.Alpha == 0:
		gradient("alone")
	default:
		gradient(lossNames[a.kind])
	}
	launch("loss_finish", 1, lossThreads)
}

// lossNames are the kinds in names of kernels.
var lossNames = [...]string{forwardKL: "forward", reverseKL: "reverse", totalVariation: "variation", mixture: "mixture"}

// fourAligned reports whether every row of m starts at a multiple of the size of four elements, so that four travel at
// once.
func fourAligned(m Mat) bool {
	return m.IsZero() || m.Ptr%uint64(4*elementBytes(m.Type)) == 0 && (m.Stride%4 == 0 || m.Rows == 1)
}

func elementBytes(d tensor.DType) int {
	switch d {
	case tensor.F32, tensor.I32:
		return 4
	case tensor.BF16:
		return 2
	}
	panic("kernel: type of a matrix")
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
