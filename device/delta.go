package device

import "apr/tensor"

// Sequences says which rows of a tensor follow each other: Batch sequences of Len positions, one after the other.
//
// First, I32 [Batch·Len, 1] without gaps or zero for none, keeps documents of one sequence apart, as in Attn: position
// i begins a document if First[i] ≥ i. The state that an operation carries from position to position is reset there and
// at the begin of each sequence.
type Sequences struct {
	Batch, Len int
	First      Tensor
}

// Delta describes a gated delta rule of ValueHeads heads, each with a state S [KeyDim, ValueDim]. Value head h uses q and k
// of key head ⌊h·KeyHeads/ValueHeads⌋.
type Delta struct {
	Sequences
	KeyHeads, ValueHeads int
	KeyDim, ValueDim     int
}

// DeltaChunk is how many positions a device computes together: within a chunk by matrix products, from chunk to chunk by the
// state. Chunks are counted from the begin of each sequence.
const DeltaChunk = 64

// What devices that lack WideDelta bound: the keys of a head, and the taps of the convolution.
const (
	MaxDeltaKeys = 128
	MaxTaps      = 8
)

// Channels returns the columns of q, k and v side by side.
func (d Delta) Channels() int { return 2*d.KeyHeads*d.KeyDim + d.ValueHeads*d.ValueDim }

// Inner returns the columns of v, and of the output.
func (d Delta) Inner() int { return d.ValueHeads * d.ValueDim }

// Chunks returns the chunks of a sequence.
func (d Delta) Chunks() int { return (d.Len + DeltaChunk - 1) / DeltaChunk }

// MulAdds returns the multiplications of the forward in chunks, an addition with each: S̃ᵀk, S̃ᵀq and the update of S, and
// within a chunk k·k, q·k and their products with v. The backward, which computes the states again, needs 10 for each 3.
func (d Delta) MulAdds(backward bool) int64 {
	rest := int64(d.Len % DeltaChunk)
	pairs := int64(d.Len/DeltaChunk)*DeltaChunk*(DeltaChunk+1)/2 + rest*(rest+1)/2
	states := 3 * int64(d.Len) * int64(d.KeyDim) * int64(d.ValueDim)
	n := int64(d.Batch) * int64(d.ValueHeads) * (states + 2*pairs*int64(d.KeyDim+d.ValueDim))
	if backward {
		return n * 10 / 3
	}
	return n
}

// LinearAttention are the operations of Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), which carries a state from
// position to position instead of looking at all earlier ones. What is carried is float32.
//
// from is what was carried to the first position of each sequence, zero for none; to, if not zero, receives what is carried
// behind the last. They may be one tensor, and are absent with First.
type LinearAttention interface {
	// Conv is a causal convolution along each sequence, channel by channel, and SiLU:
	//
	//	y_t = silu(Σ_j w_j·x_{t−K+1+j}), j < K
	//
	// with x = 0 before the begin of a sequence or document. x, y [n, C], w [C, K] F32; from, to [Batch·(K−1), C] of x's type:
	// the last K−1 inputs of each sequence, the oldest first. y and x do not overlap.
	Conv(y, x, w, from, to Tensor, c Sequences)
	// ConvBackward writes dx and adds dw: with z the sum above and dz = dy·silu'(z), dx_s = Σ_j w_j·dz_{s+K−1−j} and
	// dw_j += Σ_t dz_t·x_{t−K+1+j}. dx does not overlap the others.
	ConvBackward(dx, dw, dy, x, w Tensor, c Sequences)

	// DeltaNet is the gated delta rule. u [n, 2·KeyHeads·KeyDim + ValueHeads·ValueDim] holds q, k and v, ba [n, 2·ValueHeads]
	// b and a; logA and dt [1, ValueHeads] F32. With l2(x) = x/√(Σx²+1e-6) over a head, at each position and value head
	//
	//	q = l2(q)/√KeyDim, k = l2(k), β = σ(b), g = −e^logA·softplus(a+dt)
	//	S̃ = e^g·S;  ε = v − S̃ᵀk;  S = S̃ + k(βε)ᵀ;  o = Sᵀq
	//
	// with S = 0 at the begin of a sequence or document. o [n, ValueHeads·ValueDim]; from, to F32
	// [Batch·ValueHeads, KeyDim·ValueDim], a state in each row. Several positions are computed by chunks: with G the sum of g
	// from the begin of the chunk and M_ij = e^(G_i−G_j) for j ≤ i of one document, X = βε solves
	//
	//	(I + strictlower(βKKᵀ∘M))·X = β(V − e^G·KS);  O = e^G·QS + lower(QKᵀ∘M)·X;  S' = e^G_last·S + (M_last∘K)ᵀX
	DeltaNet(o, u, ba, logA, dt, from, to Tensor, d Delta)
	// DeltaNetBackward writes du and dba, and adds to dLogA and ddt. At each position, from the last to the first,
	//
	//	dS += q·doᵀ;  dq = S·do;  dδ = dSᵀk;  dβ = dδ·ε;  dε = β·dδ;  dv = dε;  dk = dS(βε) − S̃·dε;
	//	dS̃ = dS − k·dεᵀ;  dg = ⟨dS̃, S̃⟩;  dS = e^g·dS̃
	//
	// and then through β, g and l2. states, F32 [Batch·ValueHeads·Chunks, KeyDim·ValueDim] without gaps, is scratch: the states
	// at the begin of chunks, computed again. None of the outputs overlaps another tensor.
	DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states Tensor, d Delta)
}

// CheckConv checks a call of Conv, but for the values of First.
func CheckConv(y, x, w, from, to Tensor, c Sequences) {
	const op = OpConv
	views(op, y)
	optional(op, from, to)
	convolution(op, x, w, c)
	typed(op, x.DType, wrongTypes, y, from, to)
	shaped(op, x.Rows, x.Cols, y)
	shaped(op, c.Batch*(w.Cols-1), x.Cols, from, to)
	carried(op, c, from, to)
}

// CheckConvBackward checks a call of ConvBackward, but for the values of First.
func CheckConvBackward(dx, dw, dy, x, w Tensor, c Sequences) {
	const op = OpConvBackward
	views(op, dx, dw, dy)
	convolution(op, x, w, c)
	typed(op, x.DType, wrongTypes, dx, dy)
	typed(op, tensor.F32, noFloat32, dw)
	shaped(op, x.Rows, x.Cols, dx, dy)
	shaped(op, w.Rows, w.Cols, dw)
}

// convolution is what Conv and its backward have in common.
func convolution(op Op, x, w Tensor, c Sequences) {
	views(op, x, w)
	floats(op, x)
	typed(op, tensor.F32, noFloat32, w)
	sequences(op, c, x)
	need(w.Cols > 0 && w.Rows == x.Cols, op, "the taps are not those of the channels")
}

// sequences demands that x has the rows of c.
func sequences(op Op, c Sequences, x Tensor) {
	need(c.Batch >= 0 && c.Len >= 0, op, "a number of rows is negative")
	need(x.Rows == c.Batch*c.Len, op, wrongShapes)
	if !c.First.IsZero() {
		ids(op, c.First, x.Rows)
	}
}

// carried demands that nothing is carried to or from documents.
func carried(op Op, c Sequences, from, to Tensor) {
	need(c.First.IsZero() || from.IsZero() && to.IsZero(), op, "documents of sequences that go on")
}

// CheckDeltaNet checks a call of DeltaNet, but for the values of First.
func CheckDeltaNet(o, u, ba, logA, dt, from, to Tensor, d Delta) {
	const op = OpDeltaNet
	views(op, o)
	optional(op, from, to)
	deltaRule(op, u, ba, logA, dt, d)
	typed(op, u.DType, wrongTypes, o)
	typed(op, tensor.F32, noFloat32, from, to)
	shaped(op, u.Rows, d.Inner(), o)
	shaped(op, d.Batch*d.ValueHeads, d.KeyDim*d.ValueDim, from, to)
	carried(op, d.Sequences, from, to)
}

// CheckDeltaNetBackward checks a call of DeltaNetBackward, but for the values of First.
func CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states Tensor, d Delta) {
	const op = OpDeltaNetBackward
	views(op, du, dba, dLogA, ddt, do, states)
	deltaRule(op, u, ba, logA, dt, d)
	typed(op, u.DType, wrongTypes, du, dba, do)
	typed(op, tensor.F32, noFloat32, dLogA, ddt, states)
	shaped(op, u.Rows, u.Cols, du)
	shaped(op, ba.Rows, ba.Cols, dba)
	shaped(op, u.Rows, d.Inner(), do)
	shaped(op, d.Batch*d.ValueHeads*d.Chunks(), d.KeyDim*d.ValueDim, states)
	vectors(op, d.ValueHeads, dLogA, ddt)
	need(states.Dense(), op, "a tensor has gaps between its rows")
}

// deltaRule is what DeltaNet and its backward have in common.
func deltaRule(op Op, u, ba, logA, dt Tensor, d Delta) {
	need(d.KeyHeads > 0 && d.ValueHeads > 0 && d.ValueHeads%d.KeyHeads == 0, op, "heads do not divide")
	need(d.KeyDim > 0 && d.ValueDim > 0, op, "heads have no values")
	views(op, u, ba, logA, dt)
	floats(op, u)
	typed(op, u.DType, wrongTypes, ba)
	typed(op, tensor.F32, noFloat32, logA, dt)
	sequences(op, d.Sequences, u)
	shaped(op, u.Rows, d.Channels(), u)
	shaped(op, u.Rows, 2*d.ValueHeads, ba)
	vectors(op, d.ValueHeads, logA, dt)
}

// DeltaStep is what a DeltaNet does for one position between its projections and that of its output.
type DeltaStep struct {
	Delta                      // of one sequence and position
	X, Z, BA           Tensor  // [1, Channels], [1, Inner], [1, 2·ValueHeads]
	Taps               Tensor  // F32 [Channels, K], of the convolution
	LogA, DT, Norm     Tensor  // F32 [1, ValueHeads], the same, [1, ValueDim]
	From, To           Tensor  // F32 [ValueHeads, KeyDim·ValueDim]; From zero: none before
	FromInputs, Inputs Tensor  // [K−1, Channels]; FromInputs zero: none before
	Eps                float64 // of the norm
}

// DeltaStepper is a Stream that may run a DeltaStep as one operation.
type DeltaStepper interface {
	// DeltaStep writes To, Inputs and y [1, Inner]: u = Conv(X), o = DeltaNet(u, BA), y = silu(Z)·HeadNorm(o), in the
	// bits of these operations. It reports false, and has done nothing, if the device has no such operation for these.
	DeltaStep(y Tensor, d DeltaStep) bool
}

// CheckDeltaStep checks a call of DeltaStepper.DeltaStep.
func CheckDeltaStep(y Tensor, d DeltaStep) {
	const op = OpDeltaNet
	need(d.Batch == 1 && d.Len == 1 && d.First.IsZero(), op, "of several positions")
	CheckConv(d.X, d.X, d.Taps, d.FromInputs, d.Inputs, d.Sequences)
	CheckDeltaNet(y, d.X, d.BA, d.LogA, d.DT, d.From, d.To, d.Delta)
	views(op, d.Z, d.Norm, d.To, d.Inputs)
	typed(op, y.DType, wrongTypes, d.Z)
	typed(op, tensor.F32, noFloat32, d.Norm)
	shaped(op, 1, d.Inner(), d.Z)
	vectors(op, d.ValueDim, d.Norm)
}
