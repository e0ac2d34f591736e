package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// The modules of DeltaNet and its backward.
const (
	DeltaModule         = "delta"
	DeltaBackwardModule = "delta_backward"
)

// Of delta.cuh, delta.cu and delta_backward.cu.
const (
	deltaThreads = 256
	deltaSlice   = 32 // columns of a state in a thread block
	deltaPart    = 16 // columns that the last kernel of the backward takes at a time
	deltaPairs   = 2 * 4 * device.DeltaChunk * device.DeltaChunk
	deltaScalars = (2 + 11) * 4 * device.DeltaChunk // bytes of struct DeltaScalars
	deltaSteps   = 16                               // up to how many positions come one by one
	deltaMixed   = (3+2)*2*device.DeltaChunk*device.DeltaChunk + 4*4*device.DeltaChunk // bytes of struct DeltaMixed
)

// deltaScratch bounds the pairs and states of an operation; partial sums of the backward take little beside them. Tests set less.
var deltaScratch = MaxScratch - MaxScratch/8

// deltaRule is struct DeltaRule of delta.cuh.
type deltaRule struct {
	u, ba, logA, dt, first            uint64
	uStride, baStride                 int64
	len, keyHeads, valueHeads         uint32
	dk, dv                            uint32
	goesOn, chunk, chunks, all, pitch uint32
}

// deltaPairsArgs is struct DeltaPairsArgs of delta.cu, and DeltaMixArgs.
type deltaPairsArgs struct {
	d     deltaRule
	pairs uint64
}

// deltaForwardArgs is struct DeltaForwardArgs of delta.cu.
type deltaForwardArgs struct {
	d                             deltaRule
	pairs, o, states, from, to    uint64
	oStride, fromStride, toStride int64
	stages                        uint32
}

// deltaStatesBackwardArgs is struct DeltaStatesBackwardArgs of delta_backward.cu.
type deltaStatesBackwardArgs struct {
	d                          deltaRule
	pairs, do, after, from, to uint64
	doStride                   int64
}

// deltaGradientsArgs is struct DeltaGradientsArgs of delta_backward.cu.
type deltaGradientsArgs struct {
	d                             deltaRule
	pairs, do, du, dba            uint64
	states, after, dLogA, ddt     uint64
	doStride, duStride, dbaStride int64
}

// deltaOf describes the rule for kernels.
func deltaOf(u, ba, logA, dt, first Mat, d device.Delta) deltaRule {
	need(d.KeyDim <= device.MaxDeltaKeys, "DeltaNet", "too many keys of a head")
	need(d.Batch*d.ValueHeads < 1<<31 && ceil(d.ValueDim, deltaSlice) <= mostGroups, "DeltaNet", "too many heads")
	return deltaRule{
		u: u.Ptr, ba: ba.Ptr, logA: logA.Ptr, dt: dt.Ptr, first: vectorOf(first), uStride: int64(u.Stride), baStride: int64(ba.Stride), len: uint32(d.Len),
		keyHeads: uint32(d.KeyHeads), valueHeads: uint32(d.ValueHeads), dk: uint32(d.KeyDim), dv: uint32(d.ValueDim), all: uint32(d.Chunks()),
		pitch: uint32(deltaPitch(d.KeyDim, u.Type)),
	}
}

// deltaPitch returns the distance of rows of dk values in shared memory: an odd number of words, so that values below one another
// are in different banks.
func deltaPitch(dk int, t tensor.DType) int {
	values := 4 / t.BlockBytes()
	return (ceil(dk, values) | 1) * values
}

// deltaBytes returns the shared memory for the scalars of a chunk's positions, its q and k, and `floats` float32
// values.
func deltaBytes(d device.Delta, t tensor.DType, floats int) int {
	return deltaScalars + 4*floats + 2*device.DeltaChunk*deltaPitch(d.KeyDim, t)*t.BlockBytes()
}

// The shared memory of the kernels: states and matrices of positions by columns of v, with a column more, and pairs.
func deltaForwardBytes(d device.Delta, t tensor.DType) int {
	return deltaBytes(d, t, (d.KeyDim+device.DeltaChunk)*(deltaSlice+1)+2*device.DeltaChunk*(device.DeltaChunk+1))
}

func deltaStatesBackwardBytes(d device.Delta, t tensor.DType) int {
	return deltaBytes(d, t, (d.KeyDim+2*device.DeltaChunk)*(deltaSlice+1)+device.DeltaChunk*(device.DeltaChunk+1))
}

func deltaGradientsBytes(d device.Delta, t tensor.DType) int {
	return deltaBytes(d, t, (2*d.KeyDim+3*device.DeltaChunk)*(deltaPart+1)+2*device.DeltaChunk*(device.DeltaChunk+1))
}

// deltaForm says how chunks are computed: on plain cores, or on tensor cores with so many chunks in shared memory at a time.
type deltaForm struct {
	kernel  string
	stages  int // 0: on plain cores
	shared  int // bytes of the kernels that go from chunk to chunk
	pitch   int // distance of rows of q and k in shared memory
	between int // bytes of what positions of a chunk have to do with each other
}

// deltaFormOf chooses: tensor cores where rows of bfloat16 are whole fragments, at addresses of asynchronous copies, and a thread block has
// the memory.
func deltaFormOf(u Mat, d device.Delta, most int, others ...Mat) deltaForm {
	const line, pair = deltaSlice + 8, device.DeltaChunk + 8
	pitch := d.KeyDim + 8
	stage := 2*device.DeltaChunk*(2*pitch+line+5*pair) + 4*4*device.DeltaChunk
	work := 2 * line * (3*device.DeltaChunk + max(3*d.KeyDim, 6*device.DeltaChunk))
	aligned := d.KeyDim%16 == 0 && d.ValueDim%8 == 0
	for _, m := range append(others, u) {
		aligned = aligned && (m.IsZero() || m.Type == tensor.BF16 && m.Ptr%16 == 0 && m.Stride%8 == 0)
	}
	if stages := min((most-work)/stage, 2); aligned && stages > 0 {
		return deltaForm{"delta_forward_tensor_bf16", stages, stages*stage + work, pitch, deltaMixed}
	}
	return deltaForm{"delta_forward_" + typeName(u.Type), 0, deltaForwardBytes(d, u.Type), deltaPitch(d.KeyDim, u.Type), deltaPairs}
}

// DeltaShared returns the bytes of shared memory that a thread block of a DeltaNet or of its backward needs.
func DeltaShared(d device.Delta, t tensor.DType, backward bool) int {
	if backward {
		return max(deltaStatesBackwardBytes(d, t), deltaGradientsBytes(d, t))
	}
	return deltaForwardBytes(d, t)
}

// deltaSegment is some sequences and, of each, some chunks: scratch memory bounds how many at a time.
type deltaSegment struct {
	seqs, chunks int
}

// deltaSegments returns how many at a time where each chunk of a head takes perChunk bytes and each head a state besides.
func deltaSegments(d device.Delta, perChunk int) deltaSegment {
	state := 4 * d.KeyDim * d.ValueDim
	room := deltaScratch / d.ValueHeads
	need(room >= state+perChunk, "DeltaNet", "too many heads for the scratch memory")
	s := deltaSegment{seqs: min(max(1, d.Batch), room/(state+perChunk))}
	s.chunks = min(d.Chunks(), (room/s.seqs-state)/perChunk)
	return s
}

// DeltaNet is the gated delta rule: see device.LinearAttention, whose names these are. Sums are float32, in an order that depends
// on the shape alone.
//
// Up to 16 positions come one after the other: a thread block has 32 columns of a head's state in registers. Of more,
// delta_pairs computes for all chunks of 64 positions at once what they have among themselves, m∘kkᵀ and m∘qkᵀ; then a
// block goes from chunk to chunk with 32 columns of a head's state, which do not depend on the others. In bfloat16,
// with keys of whole fragments, both run on tensor cores. Pairs of as many chunks as scratch memory has room for are
// computed at a time. shared is the bytes of shared memory that a thread block may have.
func DeltaNet(q Queue, o, u, ba, logA, dt, from, to, first Mat, d device.Delta, shared int) {
	rule := deltaOf(u, ba, logA, dt, first, d)
	if !from.IsZero() {
		rule.goesOn = 1
	}
	if d.Batch == 0 {
		return
	}
	if d.Len <= deltaSteps {
		a := forwardArgs(rule, o, from, to)
		a.launch(q, deltaForm{kernel: "delta_steps_" + typeName(u.Type)}, d, d.Batch)
		return
	}
	form, state := deltaFormOf(u, d, shared), d.KeyDim*d.ValueDim
	segment := deltaSegments(d, form.between)
	pairs := q.Scratch(segment.seqs * d.ValueHeads * segment.chunks * form.between)
	carried := Mat{Rows: segment.seqs * d.ValueHeads, Cols: state, Stride: state, Type: tensor.F32}
	if segment.chunks < d.Chunks() {
		carried.Ptr = q.Scratch(4 * carried.Rows * state)
	}
	eachSequences(d.Batch, segment.seqs, func(lo, hi int) {
		r, n := rule.of(lo, u, ba, first, d), hi-lo
		o, at := o.rows(lo*d.Len, hi*d.Len), from.rows(lo*d.ValueHeads, hi*d.ValueHeads)
		for c := 0; c < d.Chunks(); c += segment.chunks {
			r.chunk, r.chunks = uint32(c), uint32(min(segment.chunks, d.Chunks()-c))
			next := carried
			if c+segment.chunks >= d.Chunks() {
				next = to.rows(lo*d.ValueHeads, hi*d.ValueHeads)
			}
			r.launchBetween(q, pairs, form, u.Type, d, n)
			a := forwardArgs(r, o, at, next)
			a.pairs = pairs
			a.launch(q, form, d, n)
			at = carried
		}
	})
}

// eachSequences calls do for n sequences, some at a time.
func eachSequences(n, some int, do func(lo, hi int)) {
	for lo := 0; lo < n; lo += some {
		do(lo, min(lo+some, n))
	}
}

// of returns the rule of the sequences from number lo on.
func (r deltaRule) of(lo int, u, ba, first Mat, d device.Delta) deltaRule {
	n := d.Batch * d.Len
	r.u, r.ba, r.first = u.rows(lo*d.Len, n).Ptr, ba.rows(lo*d.Len, n).Ptr, first.rows(lo*d.Len, n).Ptr
	return r
}

// launchBetween computes what positions of chunks of n sequences have to do with each other.
func (r deltaRule) launchBetween(q Queue, to uint64, f deltaForm, t tensor.DType, d device.Delta, n int) {
	l := Launch{Module: DeltaModule, Kernel: "delta_pairs_" + typeName(t), Grid: [3]int{n * d.ValueHeads, int(r.chunks), 1}, Block: deltaThreads}
	r.pitch, l.Shared = uint32(deltaPitch(d.KeyDim, t)), deltaBytes(d, t, 0)
	if f.stages > 0 {
		r.pitch = uint32(f.pitch)
		const square = device.DeltaChunk * device.DeltaChunk
		l.Kernel, l.Shared = "delta_mix_bf16", deltaScalars+4*(square+device.DeltaChunk+square/4)+2*2*device.DeltaChunk*f.pitch
	}
	l.Args = unsafe.Pointer(&deltaPairsArgs{r, to})
	q.Launch(l)
}

func forwardArgs(r deltaRule, o, from, to Mat) *deltaForwardArgs {
	return &deltaForwardArgs{
		d: r, o: o.Ptr, from: from.Ptr, to: to.Ptr, oStride: int64(o.Stride), fromStride: int64(from.Stride), toStride: int64(to.Stride),
	}
}

// launch runs a kernel with a thread block for each value head of n sequences and each slice of its columns.
func (a *deltaForwardArgs) launch(q Queue, f deltaForm, d device.Delta, n int) {
	a.d.pitch, a.stages = uint32(f.pitch), uint32(f.stages)
	q.Launch(Launch{
		Module: DeltaModule, Kernel: f.kernel, Grid: [3]int{n * d.ValueHeads, ceil(d.ValueDim, deltaSlice), 1}, Block: deltaThreads,
		Shared: f.shared, Args: unsafe.Pointer(a),
	})
}

// DeltaNetBackward writes du and dba, and adds to dLogA and ddt: see device.LinearAttention. Sums are float32, in an order that
// depends on the shape alone.
//
// First the forward again, which leaves in states the state at the begin of each chunk. Then, for as many chunks as scratch memory has room
// for at a time, delta_states_backward goes from the last chunk to the first with the gradient of the state behind each, and
// delta_gradients has a thread block for each chunk of a key head, with the value heads that read it.
func DeltaNetBackward(q Queue, du, dba, dLogA, ddt, do, u, ba, logA, dt, states, first Mat, d device.Delta, shared int) {
	if d.Batch == 0 || d.Len == 0 {
		return
	}
	state := d.KeyDim * d.ValueDim
	b := &deltaBackward{Queue: q, d: d, t: u.Type, form: deltaFormOf(u, d, shared), do: do, du: du, dba: dba, dLogA: dLogA, ddt: ddt}
	between := max(b.form.between, deltaPairs)
	b.segment = deltaSegments(d, between+4*state)
	heads := b.segment.seqs * d.ValueHeads
	need(b.segment.seqs*d.KeyHeads <= mostGroups && b.segment.chunks <= mostGroups, "DeltaNetBackward", "too many heads")
	b.pairs, b.after = q.Scratch(heads*b.segment.chunks*between), q.Scratch(heads*b.segment.chunks*4*state)
	b.carried = Mat{Ptr: q.Scratch(heads * 4 * state), Rows: heads, Cols: state, Stride: state, Type: tensor.F32}
	groups := b.segment.seqs * b.segment.chunks
	b.partLogA, b.partDT = q.Scratch(4*groups*d.ValueHeads), q.Scratch(4*groups*d.ValueHeads)
	rule := deltaOf(u, ba, logA, dt, first, d)
	eachSequences(d.Batch, b.segment.seqs, func(lo, hi int) {
		b.run(rule.of(lo, u, ba, first, d), states.rows(lo*d.ValueHeads*d.Chunks(), hi*d.ValueHeads*d.Chunks()).Ptr, lo, hi)
	})
}

// deltaBackward is a backward at work.
type deltaBackward struct {
	Queue
	d                device.Delta
	t                tensor.DType
	form             deltaForm
	segment          deltaSegment
	do, du, dba      Mat
	dLogA, ddt       Mat
	pairs, after     uint64 // of the chunks of a segment: pairs, and the gradients of the states behind them
	carried          Mat
	partLogA, partDT uint64
}

// run goes back through sequences [lo,hi).
func (b *deltaBackward) run(r deltaRule, states uint64, lo, hi int) {
	d, n, chunks := b.d, hi-lo, b.d.Chunks()
	do, du, dba := b.do.rows(lo*d.Len, hi*d.Len), b.du.rows(lo*d.Len, hi*d.Len), b.dba.rows(lo*d.Len, hi*d.Len)
	var at Mat
	for c := 0; c < chunks; c += b.segment.chunks {
		r.chunk, r.chunks = uint32(c), uint32(min(b.segment.chunks, chunks-c))
		r.launchBetween(b, b.pairs, b.form, b.t, d, n)
		a := forwardArgs(r, Mat{}, at, b.carried)
		a.pairs, a.states = b.pairs, states
		a.launch(b, b.form, d, n)
		at = b.carried
	}
	from := uint64(0)
	for end := chunks; end > 0; end -= b.segment.chunks {
		r.chunk = uint32(max(0, end-b.segment.chunks))
		r.chunks = uint32(end) - r.chunk
		r.launchBetween(b, b.pairs, deltaForm{}, b.t, d, n)
		b.start("delta_states_backward_", n*d.ValueHeads, ceil(d.ValueDim, deltaSlice), deltaStatesBackwardBytes(d, b.t), unsafe.Pointer(&deltaStatesBackwardArgs{
			d: r, pairs: b.pairs, do: do.Ptr, after: b.after, from: from, to: b.carried.Ptr, doStride: int64(do.Stride),
		}))
		from = b.carried.Ptr
		b.start("delta_gradients_", int(r.chunks), n*d.KeyHeads, deltaGradientsBytes(d, b.t), unsafe.Pointer(&deltaGradientsArgs{
			d: r, pairs: b.pairs, do: do.Ptr, du: du.Ptr, dba: dba.Ptr, states: states, after: b.after, dLogA: b.partLogA, ddt: b.partDT,
			doStride: int64(do.Stride), duStride: int64(du.Stride), dbaStride: int64(dba.Stride),
		}))
		columnSum(b, b.dLogA, b.partLogA, n*int(r.chunks))
		columnSum(b, b.ddt, b.partDT, n*int(r.chunks))
	}
}

func (b *deltaBackward) start(name string, x, y, shared int, args unsafe.Pointer) {
	b.Launch(Launch{Module: DeltaBackwardModule, Kernel: name + typeName(b.t), Grid: [3]int{x, y, 1}, Block: deltaThreads, Shared: shared, Args: args})
}
