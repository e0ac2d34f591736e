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
	DeltaTensorModule   = "delta_backward_tensor"
)

// Of delta.cuh, delta_tensor.cuh and the .cu files.
const (
	deltaThreads = 256
	deltaTeam    = 512 // of kernels on tensor cores that fill a multiprocessor with one block
	deltaSlice   = 32  // columns of a state in a thread block
	deltaPart    = 16  // columns that the last kernel of the backward takes at a time
	deltaWide    = 64  // on tensor cores
	deltaPairs   = 2 * 4 * device.DeltaChunk * device.DeltaChunk
	deltaScalars = (2 + 11) * 4 * device.DeltaChunk                 // bytes of struct DeltaScalars
	deltaFill    = 128                                              // blocks of delta_gradients that fill a large device
	deltaSteps   = 16                                               // up to how many positions come one by one
	deltaMixed   = 4*4*device.DeltaChunk + deltaSquares*deltaSquare // bytes of struct DeltaMixed
	deltaSquare  = 2 * device.DeltaChunk * device.DeltaChunk

	// Squares of DeltaMixed that passes read.
	deltaSquares         = 5
	deltaBackwardSquares = 4
	deltaStatesSquares   = 2
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

// deltaPairsArgs is struct DeltaPairsArgs of delta.cu, and with squares DeltaMixArgs.
type deltaPairsArgs struct {
	d       deltaRule
	pairs   uint64
	squares uint32
}

// deltaForwardArgs is struct DeltaForwardArgs of delta.cu.
type deltaForwardArgs struct {
	d                             deltaRule
	pairs, o, states, from, to    uint64
	oStride, fromStride, toStride int64
	stages, squares               uint32
}

// deltaStatesBackwardArgs is struct DeltaStatesBackwardArgs of delta_backward.cu.
type deltaStatesBackwardArgs struct {
	d                          deltaRule
	pairs, do, after, from, to uint64
	doStride                   int64
}

// deltaStatesTensorArgs is struct DeltaStatesBackwardArgs of delta_backward_tensor.cu.
type deltaStatesTensorArgs struct {
	d                                 deltaRule
	mixed, do, du, after, w, from, to uint64
	doStride, duStride                int64
	stages                            uint32
}

// deltaGradientsTensorArgs is struct DeltaGradientsArgs of delta_backward_tensor.cu.
type deltaGradientsTensorArgs struct {
	d                             deltaRule
	mixed, do, w, du, dba         uint64
	states, after, dLogA, ddt     uint64
	doStride, duStride, dbaStride int64
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
	stages  int    // 0: on plain cores
	shared  int    // bytes of the kernels that go from chunk to chunk
	sized   string // of names of kernels on tensor cores for heads of 128 keys and values, as published models have them
	pitch   int    // distance of rows of q and k in shared memory
	between int    // bytes of what positions of a chunk have to do with each other
	squares int    // of DeltaMixed, on tensor cores
}

// keeps returns the form of a pass that reads so many squares of DeltaMixed.
func (f deltaForm) keeps(squares int) deltaForm {
	if f.stages > 0 {
		f.squares, f.between = squares, deltaMixed-(deltaSquares-squares)*deltaSquare
	}
	return f
}

// threads returns those of a kernel that goes from chunk to chunk.
func (f deltaForm) threads() int {
	if f.stages > 0 {
		return deltaTeam
	}
	return deltaThreads
}

// deltaFormOf chooses: tensor cores where rows of bfloat16 are whole fragments, at addresses of asynchronous copies,
// and a thread block has the memory.
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
		sized := ""
		if d.KeyDim == 128 && d.ValueDim == 128 {
			sized = "_128"
		}
		return deltaForm{
			"delta_forward_tensor_bf16" + sized, stages, stages*stage + work, sized, pitch, deltaMixed, deltaSquares,
		}
	}
	return deltaForm{
		"delta_forward_" + typeName(u.Type), 0, deltaForwardBytes(d, u.Type), "", deltaPitch(d.KeyDim, u.Type), deltaPairs, 0,
	}
}

// deltaGradientsTensorBytes returns the shared memory of delta_gradients on tensor cores: numbers of positions, q, k,
// tiles of 64 columns, and two parts of states, in whose place four matrices of positions come.
func deltaGradientsTensorBytes(d device.Delta, pitch int) int {
	const line, rows = deltaWide + 8, ((4+4+4+1)*device.DeltaChunk + 34 + 3) / 4 * 16
	states := max(4*ceil(d.KeyDim, 64)*64, 8*device.DeltaChunk)
	return deltaScalars + rows + 2*device.DeltaChunk*2*pitch + 2*line*(7*device.DeltaChunk+states)
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

// deltaSegments returns how many at a time where each head takes perHead bytes, and each chunk of it perChunk.
func deltaSegments(d device.Delta, perHead, perChunk int) deltaSegment {
	room := deltaScratch / d.ValueHeads
	need(room >= perHead+perChunk, "DeltaNet", "too many heads for the scratch memory")
	s := deltaSegment{seqs: min(max(1, d.Batch), room/(perHead+perChunk))}
	s.chunks = min(d.Chunks(), (room/s.seqs-perHead)/perChunk)
	return s
}

// DeltaNet is the gated delta rule: see device.LinearAttention, whose names these are. Sums are float32, in an order that depends
// on the shape alone.
//
// Up to 16 positions come one after the other: a thread block has 32 columns of a head's state in registers. Of more,
// delta_pairs computes for all chunks of 64 positions at once what they have among themselves, m∘kkᵀ and m∘qkᵀ; then a
// block goes from chunk to chunk with 32 columns of a head's state, which do not depend on the others, and solves for x.
//
// In bfloat16, with keys of whole fragments, tensor cores compute all products, and delta_mix inverts I +
// strictlower(βKKᵀ∘M) for all chunks at once: from chunk to chunk three products remain, one after the other, while the
// next chunk is copied. What chunks have among themselves is computed for as many as scratch memory has room for.
// shared is the bytes of shared memory that a thread block may have.
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
	form, state := deltaFormOf(u, d, shared, o), d.KeyDim*d.ValueDim
	segment := deltaSegments(d, 4*state, form.between)
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
		l.Kernel = "delta_mix_bf16" + f.sized
		l.Shared = deltaScalars + 4*(square+device.DeltaChunk+square/4) + 2*2*device.DeltaChunk*f.pitch
	}
	l.Args = unsafe.Pointer(&deltaPairsArgs{r, to, uint32(f.squares)})
	q.Launch(l)
}

func forwardArgs(r deltaRule, o, from, to Mat) *deltaForwardArgs {
	return &deltaForwardArgs{
		d: r, o: o.Ptr, from: from.Ptr, to: to.Ptr, oStride: int64(o.Stride), fromStride: int64(from.Stride), toStride: int64(to.Stride),
	}
}

// launch runs a kernel with a thread block for each value head of n sequences and each slice of its columns.
func (a *deltaForwardArgs) launch(q Queue, f deltaForm, d device.Delta, n int) {
	a.d.pitch, a.stages, a.squares = uint32(f.pitch), uint32(f.stages), uint32(f.squares)
	q.Launch(Launch{
		Module: DeltaModule, Kernel: f.kernel, Grid: [3]int{n * d.ValueHeads, ceil(d.ValueDim, deltaSlice), 1},
		Block: f.threads(), Shared: f.shared, Args: unsafe.Pointer(a),
	})
}

// DeltaNetBackward writes du and dba, and adds to dLogA and ddt: see device.LinearAttention. Sums are float32, in an order that
// depends on the shape alone.
//
// First the forward again, which leaves in states the state at the begin of each chunk; it has all the scratch memory,
// and on tensor cores wants less of each chunk than gradients do. Then, for as many chunks as scratch memory has room
// for at a time, delta_states_backward goes from the last chunk to the first with the gradient of the state behind
// each, and delta_gradients has a thread block for each chunk of a key head, with the value heads that read it.
//
// On tensor cores delta_states_backward solves for the gradient of v too, which delta_gradients reads again.
func DeltaNetBackward(q Queue, du, dba, dLogA, ddt, do, u, ba, logA, dt, states, first Mat, d device.Delta, shared int) {
	if d.Batch == 0 || d.Len == 0 {
		return
	}
	form := deltaFormOf(u, d, shared, do, du).keeps(deltaBackwardSquares)
	if form.stages > 0 && deltaGradientsTensorBytes(d, form.pitch) > shared {
		form = deltaFormOf(u, d, 0)
	}
	b := &deltaBackward{Queue: q, d: d, t: u.Type, form: form, do: do, du: du, dba: dba, dLogA: dLogA, ddt: ddt}
	state, solved := 4*d.KeyDim*d.ValueDim, 0
	if form.stages > 0 {
		solved = 2 * 2 * device.DeltaChunk * d.ValueDim
	}
	perChunk := form.between + state + solved
	b.segment = deltaSegments(d, state+2*4*d.Chunks(), perChunk)
	if fill := deltaFill / (b.segment.seqs * d.KeyHeads); form.stages > 0 && fill > 0 && b.segment.chunks > fill {
		b.segment.chunks -= b.segment.chunks % fill
	}
	heads := b.segment.seqs * d.ValueHeads
	need(b.segment.seqs*d.KeyHeads <= mostGroups && b.segment.chunks <= mostGroups, "DeltaNetBackward", "too many heads")
	b.between = q.Scratch(heads * b.segment.chunks * perChunk)
	b.after = b.between + uint64(heads*b.segment.chunks*form.between)
	b.w = b.after + uint64(heads*b.segment.chunks*state)
	b.first, b.forward = form, b.segment.chunks
	if b.segment.chunks < d.Chunks() { // the forward has the room of all
		b.first = form.keeps(deltaStatesSquares)
		b.forward = min(d.Chunks(), b.segment.chunks*perChunk/b.first.between)
	}
	need(b.forward <= mostGroups, "DeltaNetBackward", "too many chunks")
	size := d.KeyDim * d.ValueDim
	b.carried = Mat{Ptr: q.Scratch(heads * state), Rows: heads, Cols: size, Stride: size, Type: tensor.F32}
	groups := b.segment.seqs * d.Chunks()
	b.partLogA, b.partDT = q.Scratch(4*groups*d.ValueHeads), q.Scratch(4*groups*d.ValueHeads)
	rule := deltaOf(u, ba, logA, dt, first, d)
	eachSequences(d.Batch, b.segment.seqs, func(lo, hi int) {
		b.run(rule.of(lo, u, ba, first, d), states.rows(lo*d.ValueHeads*d.Chunks(), hi*d.ValueHeads*d.Chunks()).Ptr, lo, hi)
	})
}

// deltaBackward is a backward at work.
type deltaBackward struct {
	Queue
	d                 device.Delta
	t                 tensor.DType
	form, first       deltaForm // first: of the forward
	segment           deltaSegment
	forward           int // chunks of the forward at a time
	do, du, dba       Mat
	dLogA, ddt        Mat
	between, after, w uint64 // of the chunks of a segment: of their positions, gradients of the states behind them, and of v
	carried           Mat
	partLogA, partDT  uint64
}

// run goes back through sequences [lo,hi).
func (b *deltaBackward) run(r deltaRule, states uint64, lo, hi int) {
	d, n, chunks := b.d, hi-lo, b.d.Chunks()
	var at Mat
	for c := 0; c < chunks; c += b.forward {
		r.chunk, r.chunks = uint32(c), uint32(min(b.forward, chunks-c))
		r.launchBetween(b, b.between, b.first, b.t, d, n)
		a := forwardArgs(r, Mat{}, at, b.carried)
		a.pairs, a.states = b.between, states
		form := b.first
		if form.stages > 0 {
			form.kernel = "delta_states_tensor_bf16" + form.sized
		}
		a.launch(b, form, d, n)
		at = b.carried
	}
	from := uint64(0)
	for end := chunks; end > 0; end -= b.segment.chunks {
		r.chunk = uint32(max(0, end-b.segment.chunks))
		r.chunks = uint32(end) - r.chunk
		if b.segment.chunks < chunks { // else what is between positions is there
			r.launchBetween(b, b.between, b.form, b.t, d, n)
		}
		if b.form.stages > 0 {
			b.gradientsTensor(r, states, from, lo, hi)
		} else {
			b.gradients(r, states, from, lo, hi)
		}
		from = b.carried.Ptr
	}
	columnSum(b, b.dLogA, b.partLogA, n*chunks)
	columnSum(b, b.ddt, b.partDT, n*chunks)
}

// rows are the operands of sequences [lo,hi).
func (b *deltaBackward) rows(lo, hi int) (do, du, dba Mat) {
	lo, hi = lo*b.d.Len, hi*b.d.Len
	return b.do.rows(lo, hi), b.du.rows(lo, hi), b.dba.rows(lo, hi)
}

func (b *deltaBackward) gradients(r deltaRule, states, from uint64, lo, hi int) {
	do, du, dba := b.rows(lo, hi)
	b.eachHead("delta_states_backward_"+typeName(b.t), DeltaBackwardModule, hi-lo, deltaStatesBackwardBytes(b.d, b.t), unsafe.Pointer(&deltaStatesBackwardArgs{
		d: r, pairs: b.between, do: do.Ptr, after: b.after, from: from, to: b.carried.Ptr, doStride: int64(do.Stride),
	}))
	b.eachChunk("delta_gradients_"+typeName(b.t), DeltaBackwardModule, r, hi-lo, deltaGradientsBytes(b.d, b.t), unsafe.Pointer(&deltaGradientsArgs{
		d: r, pairs: b.between, do: do.Ptr, du: du.Ptr, dba: dba.Ptr, states: states, after: b.after, dLogA: b.partLogA, ddt: b.partDT,
		doStride: int64(do.Stride), duStride: int64(du.Stride), dbaStride: int64(dba.Stride),
	}))
}

func (b *deltaBackward) gradientsTensor(r deltaRule, states, from uint64, lo, hi int) {
	do, du, dba := b.rows(lo, hi)
	r.pitch = uint32(b.form.pitch)
	name := "delta_states_backward_tensor_bf16" + b.form.sized
	b.eachHead(name, DeltaTensorModule, hi-lo, b.form.shared, unsafe.Pointer(&deltaStatesTensorArgs{
		d: r, mixed: b.between, do: do.Ptr, du: du.Ptr, after: b.after, w: b.w, from: from, to: b.carried.Ptr,
		doStride: int64(do.Stride), duStride: int64(du.Stride), stages: uint32(b.form.stages),
	}))
	name, shared := "delta_gradients_tensor_bf16"+b.form.sized, deltaGradientsTensorBytes(b.d, b.form.pitch)
	b.eachChunk(name, DeltaTensorModule, r, hi-lo, shared, unsafe.Pointer(&deltaGradientsTensorArgs{
		d: r, mixed: b.between, do: do.Ptr, w: b.w, du: du.Ptr, dba: dba.Ptr, states: states, after: b.after, dLogA: b.partLogA, ddt: b.partDT,
		doStride: int64(do.Stride), duStride: int64(du.Stride), dbaStride: int64(dba.Stride),
	}))
}

// eachHead starts a thread block for each value head of n sequences and each slice of its columns, eachChunk one for
// each chunk and key head.
func (b *deltaBackward) eachHead(name, module string, n, shared int, args unsafe.Pointer) {
	grid := [3]int{n * b.d.ValueHeads, ceil(b.d.ValueDim, deltaSlice), 1}
	b.Launch(Launch{Module: module, Kernel: name, Grid: grid, Block: b.form.threads(), Shared: shared, Args: args})
}

func (b *deltaBackward) eachChunk(name, module string, r deltaRule, n, shared int, args unsafe.Pointer) {
	grid := [3]int{int(r.chunks), n * b.d.KeyHeads, 1}
	b.Launch(Launch{Module: module, Kernel: name, Grid: grid, Block: b.form.threads(), Shared: shared, Args: args})
}
